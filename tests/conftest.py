"""Shared by all tests: one thread, no deadlines, the order of the files, and a small real federation.

Tests, and the processes that they start, use one thread, because their tensors are tiny and threads that wait
for each other cost more than they save.
"""

import contextlib
import fcntl
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer.main
from hypothesis import settings

from fedmt import Center, Federation
from fedmt.aggregation import FedAvgM, Strategy
from fedmt.backbones import Classifier
from fedmt.backbones.heads import add_heads
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.commands import cli
from fedmt.data.sources.fashion_mnist import (
    GARMENT,
    GARMENT_TO_DEPARTMENT,
    GARMENT_TO_LAYER,
    read_fashion_mnist,
)
from fedmt.data.splits import iid_split
from fedmt.engines.local import LocalEngine
from fedmt.engines.state import State
from fedmt.inputs.images import pixel_statistics
from fedmt.methods import Method

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
if not torch.cuda.is_available():
    # `torch.manual_seed` formats the call stack for each kind of device that may be added, and the stack of a
    # test is deep. This takes a tenth of the time of a test that trains.
    for device in (torch.cuda, torch.mtia, torch.xpu):
        device.traceback = SimpleNamespace(format_stack=list)
# Waiting Flower processes poll ten times per second over HTTP, which wastes a fifth of a core.
os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.5")
# Examples are judged by their result, never by the time that a shared machine takes. They are the same in
# every run, so that a failure comes from a change; `--hypothesis-profile=explore` draws new ones.
settings.register_profile("fedmt", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("fedmt")
# A command-line process builds its commands once. Here, each of hundreds of calls would build them again.
typer.main.get_command = functools.cache(typer.main.get_command)

LONGEST_FIRST = (
    "engines/test_flower_processes.py",
    "docs/test_commands.py",
    "engines/test_flower_secured.py",
    "commands/test_tutorial.py",
    "commands/test_reproduce.py",
    "backbones/test_fused.py",
    "engines/test_flower_in_process.py",
    "tracking/test_tracking.py",
    "models/test_export.py",
    "training/test_resume.py",
    "docs/test_notebooks.py",
    "engines/test_fleet.py",
    "engines/test_flower_masking.py",
    "engines/test_local.py",
    "commands/test_cli.py",
    "reports/test_page_content.py",
    "reports/test_page_reading.py",
    "reports/test_page_looks.py",
    "test_wheel.py",
)
"""Files that take more than ten seconds. If one of them started last, the other workers would wait for it."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, the longest files run first."""
    if hasattr(config, "workerinput"):
        places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: places.get(item.path, len(places)))


MakeFederation = Callable[..., Federation]
MakeEngine = Callable[..., LocalEngine]


@pytest.fixture(scope="session")
def make_federation() -> MakeFederation:
    """Bundled images: a reference center, `departments` + `layers` centers, 500 test images.

    half: use half the resolution, 14x14, where a step costs a quarter. Otherwise there are 200 test images.
    """
    train, test = read_fashion_mnist("train"), read_fashion_mnist("test")
    truth = train.labels["garment"]
    halved = {
        id(s): torch.nn.functional.avg_pool2d(s.images.float(), 2).round().to(torch.uint8)
        for s in (train, test)
    }

    def make(
        per_class: int = 2,
        departments: int = 2,
        layers: int = 1,
        samples: int = 40,
        seed: int = 0,
        half: bool = True,
    ) -> Federation:
        pixels = halved[id(train)] if half else train.images
        matrices = [GARMENT_TO_DEPARTMENT] * departments + [GARMENT_TO_LAYER] * layers
        split = iid_split(truth, 10, per_class, len(matrices), samples, seed)
        reference = Center("reference", pixels[split.reference], GARMENT, truth[split.reference])
        centers = tuple(
            Center(f"center-{i}", pixels[part], m.coarse, m.map_labels(truth[part]), m, truth[part])
            for i, (part, m) in enumerate(zip(split.centers, matrices, strict=True), 1)
        )
        every = 4 if half else 10
        images = (halved[id(test)] if half else test.images)[::every]
        labels = test.labels["garment"][::every]
        tests = [Center("test", images, GARMENT, labels)]
        for m in {m.coarse.name: m for m in matrices}.values():
            tests.append(Center(f"test ({m.coarse.name})", images, m.coarse, m.map_labels(labels)))
        return Federation(GARMENT, reference, centers, tuple(tests))

    return make


@pytest.fixture
def make_model() -> Callable[[Federation], Classifier]:
    """The small network, with the same starting weights in every call."""

    def make(federation: Federation) -> Classifier:
        torch.manual_seed(7)
        mean, std = pixel_statistics(federation.reference.images)
        return Classifier(SmallCNN(len(federation.wanted), federation.input.shape[0]), mean, std)

    return make


@pytest.fixture
def make_engine(make_model: Callable[[Federation], Classifier]) -> MakeEngine:
    """An engine with those starting weights, and with one head per label space if the method needs it."""

    def make(
        federation: Federation, method: Method, strategy: Strategy | None = None, seed: int = 0
    ) -> LocalEngine:
        model = make_model(federation)
        if method.heads:
            add_heads(model, len(federation.wanted), [len(space) for space in federation.spaces[1:]])
        return LocalEngine(federation, method, model, seed, strategy=strategy or FedAvgM())

    return make


TINY = """
seed = 3
[method]
name = "{method}"
{options}
[training]
rounds = 1
local_epochs = 1
batch_size = 10
reference_epochs = 1
reference_batch_size = 10
warmup_epochs = 3
learning_rate = 0.05
batch_norm = "{batch_norm}"
[augmentation]
operations = ["rotate", "shear_x"]
[model]
backbone = "small_cnn"
[benchmark]
data = {{ source = "fashion_mnist" }}
wanted = "garment"
spaces = {{ department = 2, layer = 1 }}
per_class = {per_class}
samples = 30
test_samples = 200
{more}
"""

TINY_RUNS: dict[str, dict[str, object]] = {
    "fedmt": {"options": "xi = 0.1"},
    "fedmt-estimated": {
        "options": 'xi = 0.1\ncorrespondence = "estimated"',
        "per_class": 8,
        "more": "[calibration]\nshare = 0.5\nminimum = 40",
    },
    "single": {},
    "semifl": {"options": "xi = 0.1"},
    "fedrep": {},
    "fedrep-fedbn": {"batch_norm": "running", "more": '[aggregation]\nname = "fedbn"'},
    "fedtrans": {"options": "fine_tune_epochs = 3"},
}
"""Small real runs, one for each way to answer in a label space."""

TinyRun = Callable[[str], Path]


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """Lets one worker in at a time."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> TinyRun:
    """The folder of one of `TINY_RUNS`, trained when a worker first asks for it (a second or two)."""
    base = tmp_path_factory.getbasetemp()
    if hasattr(pytestconfig, "workerinput"):
        base = base.parent  # the folder of all workers

    def make(name: str) -> Path:
        from fedmt.config import load_config
        from fedmt.training.run import run

        folder = base / "tiny" / name
        folder.parent.mkdir(exist_ok=True)
        with alone(folder.with_suffix(".lock")):
            if not folder.exists():
                values = {
                    "options": "",
                    "batch_norm": "static",
                    "per_class": 2,
                    "more": "",
                    **TINY_RUNS[name],
                }
                config = folder.with_suffix(".toml")
                config.write_text(TINY.format(method=name.split("-")[0], **values))
                run(load_config(config), folder)
        return folder

    return make


@pytest.fixture
def play(make_engine: MakeEngine) -> Callable[..., tuple[list[State], list[dict[str, Any]]]]:
    """All states and records of a run, starting with round 0. `rounds` ends it early."""

    def play(
        federation: Federation,
        method: Method,
        strategy: Strategy | None = None,
        rounds: int | None = None,
        seed: int = 0,
    ) -> tuple[list[State], list[dict[str, Any]]]:
        engine = make_engine(federation, method, strategy, seed)
        state, record = engine.start()
        states, records = [state], [record]
        for _ in range(method.training.rounds if rounds is None else rounds):
            state, record = engine.round(state)
            states.append(state)
            records.append(record)
        return states, records

    return play


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `fedmt ARGUMENTS` in this process: (exit status, standard output, standard error)."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # because `main` replaces it

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return command


WARM = pytest.StashKey[tuple[Path, int]]()


def pytest_configure(config: pytest.Config) -> None:
    """In the process that distributes the tests: a folder for the one warm Python of all workers."""
    if hasattr(config, "workerinput"):
        return
    folder = Path(tempfile.mkdtemp(prefix="fedmt-"))  # the path of a socket has to be short
    os.mkfifo(folder / "alive")
    config.stash[WARM] = folder, os.open(folder / "alive", os.O_RDWR)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by xdist: what each worker is told."""
    node.workerinput["warm"] = str(node.config.stash[WARM][0])


def pytest_unconfigure(config: pytest.Config) -> None:
    if WARM in config.stash:
        folder, alive = config.stash[WARM]
        os.close(alive)  # this ends the warm Python
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def warm(pytestconfig: pytest.Config) -> Path:
    """A folder with the programs of warm.py: `fedmt` and `python-c CODE`. The first use starts the server."""
    worker = getattr(pytestconfig, "workerinput", None)
    folder = pytestconfig.stash[WARM][0] if worker is None else Path(worker["warm"])
    program, path = Path(__file__).with_name("warm.py"), folder / "socket"
    with alone(folder / "lock"):
        if not path.exists():
            client = shlex.join([sys.executable, "-IS", str(program), "call", str(path)])
            for called in ("fedmt", "python-c"):
                (folder / called).write_text(f'#!/bin/sh\nexec {client} {called} "$@"\n')
                (folder / called).chmod(0o755)
            with (folder / "alive").open("rb") as alive:
                server = subprocess.Popen([sys.executable, str(program), "serve", str(path)], stdin=alive)
            while not path.exists():
                assert server.poll() is None, "the warm server ended"
                time.sleep(0.02)
    return folder


class Process(subprocess.Popen[str]):
    """`fedmt ARGUMENTS` as a process of the warm Python. Signals go to it, not to the waiting client."""

    def __init__(self, warm: Path, told: Path, *arguments: object, **options: Any) -> None:
        self.told = told
        environment = {**options.pop("env", os.environ), "WARM_PID": str(told)}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        super().__init__([warm / "fedmt", *map(str, arguments)], env=environment, text=True, **options)

    def send_signal(self, sig: int) -> None:
        while self.poll() is None and not self.told.exists():
            time.sleep(0.002)
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(int(self.told.read_text()), sig)


@pytest.fixture
def start(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Process]:
    """Runs `fedmt ARGUMENTS` in a separate process. Once it has ended, none of its processes is left."""
    folder = tmp_path_factory.mktemp("started")
    return lambda *arguments, **options: Process(warm, folder / uuid.uuid4().hex, *arguments, **options)


FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # Each window would draw the suggestions of its address bar in advance, which takes longer than a test.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxFullPopup,WebUIOmniboxAimPopup,PreloadTopChromeWebUI",
]
"""Chromium without its own sandbox, a GPU or anything that uses the network."""


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Skips without Chromium (Debian: `apt-get install chromium`) or without playwright."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium: the report's browser tests are skipped")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()
