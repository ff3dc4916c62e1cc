"""`fedmt reproduce` with real worker processes: its files, kills, failures, and the table."""

import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import fedmt
from fedmt.backbones.small_cnn import SmallCNN
from fedmt.commands import cli
from fedmt.commands.sweeps.curves import _draw
from fedmt.commands.sweeps.expansion import Sweep, expand
from fedmt.commands.sweeps.experiment import known_experiments, read_experiment
from fedmt.commands.sweeps.workers import run_all
from fedmt.core.errors import FedmtError
from fedmt.metrics.comparing import Difference, _mean, differences, mean_difference
from fedmt.metrics.evidence import Compared
from fedmt.runs.comparison import probabilities
from fedmt.runs.evaluation import Predicted, read_evaluation

pytestmark = pytest.mark.slow

BASE = """\
[training]
rounds = 6
batch_size = 10
reference_epochs = 1
warmup_epochs = 3

[images]
size = 14

[model]
backbone = "small_cnn"

[benchmark]
data = { source = "fashion_mnist" }
wanted = "garment"
spaces = { department = 2 }
per_class = 2
samples = 800
test_samples = 200
"""

EXPERIMENT = """\
title = "A sweep"
paper = "Table 9"
config = "base.toml"
show = ["accuracy.garment", "correspondence_error"]
curves = ["correspondence_error"]
note = "A note."
baseline = "Single"

[[columns]]
label = "Single"
set = { "method.name" = "single" }

[[columns]]
label = "FedMT (E)"
set = { "method.correspondence" = "estimated" }

[[rows]]
label = "good"
paper = { Single = [12.5, 0.5] }

[[rows]]
label = "the same"

[[rows]]
label = "bad"
set = { "training.learning_rate" = 1e30, "training.clip" = 0 }

[[skip]]
row = "bad"
column = "FedMT (E)"
reason = "one is enough"
"""


INSTALLED = (sys.executable, "-m", "fedmt")


def environment() -> dict[str, str]:
    source = str(Path(fedmt.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def start(*arguments: object, fedmt: Sequence[object] = INSTALLED) -> subprocess.Popen[str]:
    # The process gets its own session, so that its workers can be distinguished from other processes.
    return subprocess.Popen(
        [*map(str, fedmt), "reproduce", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def fedmt_reproduce(warm: Path, *arguments: object) -> tuple[int, str]:
    process = start(*arguments, fedmt=[warm / "fedmt"])
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in out + err
    return process.returncode, out + err


def alive(group: int) -> list[str]:
    """The processes of a session that are neither gone nor zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == group and fields[0] not in "ZX":
                found.append(path.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended in the meantime
    return found


def wait_until_gone(group: int) -> None:
    """Python's own helper process in a session ends shortly after the others."""
    limit = time.monotonic() + 20
    while alive(group):
        assert time.monotonic() < limit, alive(group)
        time.sleep(0.05)


def wait_for(reached, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 60
    while not reached():
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.005)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, warm) -> Path:
    """The experiment, run once with two seeds into `out`. `said` is the printed output."""
    path = tmp_path_factory.mktemp("reproduce")
    (path / "base.toml").write_text(BASE)
    (path / "sweep.toml").write_text(EXPERIMENT)
    status, said = fedmt_reproduce(warm, *arguments(path, "out"))
    assert status == 1, said  # because of the bad row
    (path / "said").write_text(said)
    (path / "first.md").write_text((path / "out" / "sweep-tiny.md").read_text())
    return path


def arguments(path: Path, out: str) -> list[object]:
    return [path / "sweep.toml", "--scale", "tiny", "--seeds", 2, "--out", path / out]


def table(path: Path, out: str) -> dict[str, object]:
    return json.loads((path / out / "sweep-tiny.json").read_text())


def test_json_and_markdown_agree_with_the_runs(folder):
    found = table(folder, "out")
    assert (found["scale"], found["seeds"], found["paper"]) == ("tiny", 2, "Table 9")
    runs = {r["config_hash"]: r for r in found["runs"]}
    assert len(runs) == 6  # the rows 'good' and 'the same' share their runs
    assert len(list((folder / "out" / "runs").glob("*/summary.json"))) == 4
    markdown = (folder / "first.md").read_text()
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert lines[:2] == ["| | Single | FedMT (E) |", "| --- | ---: | ---: |"]
    rows = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:4]] for line in lines[2:5]}
    for cell in found["cells"]:
        shown = rows[cell["row"]][["Single", "FedMT (E)"].index(cell["column"])]
        if cell["row"] == "bad":
            assert shown == ("failed" if cell["column"] == "Single" else "\N{EN DASH}")
            continue
        # Recomputed from the run folders: last round, mean, and standard deviation with n - 1.
        values = []
        for digest in cell["runs"]:
            path = Path(runs[digest]["path"])
            summary = json.loads((path / "summary.json").read_text())
            last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
            assert last["round"] == 2 and summary["accuracy"] == last["accuracy"]
            assert runs[digest]["last_round"]["accuracy"] == last["accuracy"]
            assert runs[digest]["seconds"] == summary["seconds"] and runs[digest]["seed"] == summary["seed"]
            assert path.name.endswith(digest)
            values.append(100 * summary["accuracy"]["garment"])
        middle, spread = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
        figure = cell["metrics"]["accuracy.garment"]
        assert figure["n"] == 2
        assert figure["mean"] == pytest.approx(middle) and figure["sd"] == pytest.approx(spread)
        assert statistics.stdev(values) == pytest.approx(spread)
        paper = "<br>*paper 12.50 ± 0.50*" if (cell["row"], cell["column"]) == ("good", "Single") else ""
        assert shown == f"{middle:.1f} ± {spread:.1f}{paper}"
    for text in ("Scale: tiny", "not the paper's setting", "A note.", "one is enough", "Table 9"):
        assert text in markdown
    (command,) = [line.strip() for line in markdown.splitlines() if line.startswith("    fedmt")]
    assert shlex.split(command)[1:3] == ["reproduce", str(folder / "sweep.toml")]
    for ending in ("png", "svg"):
        assert (folder / "out" / f"sweep-tiny-correspondence_error.{ending}").stat().st_size > 1000
    assert "(sweep-tiny-correspondence_error.png)" in markdown


def test_the_difference_from_the_baseline_is_the_paired_one(folder):
    """Here the test samples depend on the seed, so each seed has its own difference."""
    found = table(folder, "out")
    paths = {r["config_hash"]: Path(r["path"]) for r in found["runs"]}
    cells = {c["column"]: c for c in found["cells"] if c["row"] == "good"}
    each, tests = [], []
    for digests in zip(cells["FedMT (E)"]["runs"], cells["Single"]["runs"], strict=True):
        one, other = (_evaluation(paths[digest]) for digest in digests)
        labels = torch.from_numpy(one.labels.astype("int64"))
        sides = [probabilities(one)], [probabilities(other)]
        tests.append(Compared(*sides, labels))
        each.append(differences(*sides, labels, ["accuracy"])["accuracy"])
    shown = cells["FedMT (E)"]["metrics"]["accuracy.garment"]["difference"]
    assert shown == mean_difference(tests, "accuracy").to_json()
    assert shown["value"] == pytest.approx(sum(d.value for d in each) / 2)
    assert "difference" not in cells["Single"]["metrics"]["accuracy.garment"]
    ends = [f"{100 * shown[key]:+.1f}" for key in ("value", "low", "high")]
    lines = (folder / "first.md").read_text().splitlines()
    assert f"| good | {ends[0]} ({ends[1]} to {ends[2]}) |" in lines


def _evaluation(path: Path) -> Predicted:
    evaluation = read_evaluation(path / "evaluation.npz")
    assert evaluation is not None
    return next(test for test in evaluation.tests if test.space == "garment")


def test_separate_test_samples_add_their_squared_errors():
    ones = [Difference("accuracy", 0.6, 0.5, 0.1, 0.1 - 0.03, 0.1 + 0.04)] * 4
    together = _mean(ones)
    assert (together.first, together.second) == pytest.approx((0.6, 0.5))
    assert (together.value, together.low, together.high) == pytest.approx((0.1, 0.1 - 0.015, 0.1 + 0.02))


def test_a_failing_run_is_named_and_ends_no_other(folder):
    said = (folder / "said").read_text()
    failed = [line for line in said.splitlines() if line.startswith("Failed: ")]
    assert [re.match(r"Failed: (Single, bad, seed \d)", line).group(1) for line in failed] == [
        "Single, bad, seed 0",
        "Single, bad, seed 1",
    ]
    assert all("diverged" in line and "learning_rate" in line for line in failed)
    statuses = [r["status"] for r in table(folder, "out")["runs"]]
    assert statuses.count("failed") == 2 and statuses.count("finished") == 4


def test_a_warning_in_a_worker_is_a_note_about_its_run(folder, tmp_path, warm):
    save_file(SmallCNN(1, 1).state_dict(), tmp_path / "other.safetensors")
    changed = ["--only", "Single, good", "--set", f"model.weights={tmp_path / 'other.safetensors'}"]
    status, said = fedmt_reproduce(warm, *arguments(folder, "pretrained"), *changed)
    assert status == 0, said
    assert re.search("Note: Single, good, seed [01]: ", said)  # the note of whichever worker was first
    assert said.count("The head starts from its random") == 1
    assert "UserWarning" not in said


def test_finished_runs_are_kept(folder, command):
    files = sorted((folder / "out" / "runs").glob("*/*.json*"))
    assert files
    before = {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files if (p.parent / "summary.json").exists()
    }
    cells = table(folder, "out")["cells"]
    status, said, errors = command("reproduce", *arguments(folder, "out"), "--only", "good")
    assert status == 0 and "started" not in said + errors  # all runs existed
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in before} == before
    assert table(folder, "out")["cells"] == cells  # the rows that were not selected are known too
    # The versions are those with which the runs were made.
    summary = next(p for p in before if p.name == "summary.json")
    text, made = summary.read_text(), table(folder, "out")["versions"]
    assert made == json.loads(text)["versions"]
    summary.write_text(text.replace(f'"{fedmt.__version__}"', '"0.0.7"'))
    command("sweep", *arguments(folder, "out"), "--only", "good")
    assert table(folder, "out")["versions"]["fedmt"] == f"0.0.7 and {fedmt.__version__}"
    summary.write_text(text)


def test_sigkill_in_the_middle_then_again(folder, warm):
    process = start(*arguments(folder, "killed"), "--jobs", 2)
    runs = folder / "killed" / "runs"
    wait_for(lambda: any(runs.glob("*/metrics.jsonl")), process)
    assert len(alive(process.pid)) >= 2
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until_gone(process.pid)
    assert len(list(runs.glob("*/summary.json"))) < 4
    # No figure depends on the number of workers, which is different here.
    status, said = fedmt_reproduce(warm, *arguments(folder, "killed"), "--jobs", 1)
    assert status == 1, said
    assert table(folder, "killed")["cells"] == table(folder, "out")["cells"]
    tables = [(folder / name).read_text() for name in ("first.md", "killed/sweep-tiny.md")]
    one, two = (text.split(f"fedmt {fedmt.__version__}")[0] for text in tables)  # the command differs
    assert one == two
    assert not list(runs.rglob("*.tmp"))


def test_ctrl_c_stops_all_workers_and_says_how_to_go_on(folder):
    process = start(*arguments(folder, "stopped"), "--set", "training.rounds=60", "--only", "single")
    runs = folder / "stopped" / "runs"
    wait_for(lambda: any(runs.glob("*/metrics.jsonl")), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers as well
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in out + err and err == ""
    (command,) = [line for line in out.splitlines() if line.startswith("  fedmt reproduce")]
    assert shlex.split(command)[1:] == [
        "reproduce", str(folder / "sweep.toml"), "--only", "single", "--set", "training.rounds=60",
        "--seeds", "2", "--scale", "tiny", "--out", str(folder / "stopped"),
    ]  # fmt: skip
    wait_until_gone(process.pid)
    assert not list(runs.glob("*/summary.json"))


def test_an_error_in_between_waits_for_no_run(folder, tmp_path):
    """A table that cannot be written (a full disk) is reported at once, not after the last run."""
    experiment = read_experiment(folder / "sweep.toml")
    sweep = Sweep(1, "tiny", ("Single, good",), ("training.rounds=1",))
    (short,) = next(c.runs for c in expand(experiment, sweep) if c.selected)
    (long,) = next(
        c.runs for c in expand(experiment, replace(sweep, overrides=("training.rounds=5000",))) if c.selected
    )

    class Watching:
        stop_asked = False

        def heard(self, run, kind, *rest): ...

        def done(self, run, said): ...

    def ended(run, outcome):
        raise FedmtError("the disk is full")

    with pytest.raises(FedmtError, match="the disk is full"):
        run_all([short, long], tmp_path, 2, Watching(), ended)
    assert (tmp_path / short.key / "summary.json").exists()
    assert not (tmp_path / long.key / "summary.json").exists()


def test_a_metric_that_no_run_has(folder, command):
    text = (folder / "sweep.toml").read_text()
    text = text.replace('curves = ["correspondence_error"]', 'curves = ["losses.fixx"]')
    (folder / "odd.toml").write_text(text.replace('"accuracy.garment",', '"accuracy.garmet",'))
    options = ["--scale", "tiny", "--seeds", 2, "--out", folder / "out", "--only", "good"]
    command("reproduce", folder / "odd.toml", *options)
    markdown = (folder / "out" / "odd-tiny.md").read_text()
    assert "No run has a metric 'accuracy.garmet'. Did you mean 'accuracy.garment'?" in markdown
    assert "No run has a metric 'losses.fixx'. Did you mean 'losses.fix'?" in markdown
    assert ".png" not in markdown


def test_curves_of_few_rounds_have_whole_rounds_on_their_axis(tmp_path):
    points = [(0, 50.0, 1.0), (1, 60.0, 1.0), (2, 65.0, 1.0)]
    _, drawing = _draw(tmp_path / "curve", "accuracy.fine", {("row", "column"): points})
    shown = re.findall(r"<!-- (.*?) -->", drawing.read_text())
    assert shown[: shown.index("round")] == ["0", "1", "2"]


def test_list_names_every_file(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    status, said, _ = command("reproduce", "--list")
    assert status == 0
    names = {line.split("│")[1].strip() for line in said.splitlines() if line.startswith("│")} - {""}
    source = Path(__file__).parents[2] / "experiments"
    assert names == {p.stem for p in source.glob("*.toml")} == set(known_experiments())
    assert "Next: fedmt reproduce methods" in said and "methods" in names
    assert not list(tmp_path.iterdir())


def test_mistakes_end_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` replaces it
    for said, arguments in {
        "Did you mean 'methods'": ["method"],
        "Known: 'full', 'small', 'tiny'": ["methods", "--scale", "smal"],
        "fedmt reproduce --list": [],
        "cifar-100-python is missing: unpack": ["lambda2", "--data", tmp_path],
        "Or give the folder that contains the data with --data": ["lambda2", "--data", tmp_path],
        "Choose N with --seeds": ["lambda2", "--set", "seed=4"],
    }.items():
        monkeypatch.setattr(sys, "argv", ["fedmt", "reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2 and said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # nothing ran


def test_a_run_that_another_experiment_finished_is_found(folder):
    (folder / "other.toml").write_text(EXPERIMENT.replace('label = "good"', 'label = "n = 2"'))
    other = expand(read_experiment(folder / "other.toml"), Sweep(seeds=2, scale="tiny"))
    (cell,) = [c for c in other if (c.row, c.column) == ("n = 2", "FedMT (E)")]
    assert all((folder / "out" / "runs" / r.key / "summary.json").exists() for r in cell.runs)
