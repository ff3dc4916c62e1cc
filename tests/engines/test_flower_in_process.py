"""The distributed engine's arithmetic and checks without processes, fast enough for every combination."""

import json
import shutil
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from PIL import Image

import fedmt
from fedmt import Center, Federation
from fedmt.aggregation import Transform
from fedmt.backbones.frozen import encode
from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.core.labels import posterior
from fedmt.core.registry import importing_only
from fedmt.engines.flower import center as center_app
from fedmt.engines.flower import roll as roll_module
from fedmt.engines.flower import server, wire
from fedmt.engines.flower.memory import Memory
from fedmt.engines.flower.roll import Roll
from fedmt.engines.flower.server import coordinate
from fedmt.engines.flower.settings import CenterSettings
from fedmt.engines.site import Outcome, Site
from fedmt.estimators.expectation_maximization import expectation_maximization
from fedmt.inputs.tables import Schema, Statistics
from fedmt.inputs.tabular import read_frame
from fedmt.methods import METHODS, FedMT
from fedmt.runs.folder import RunFolder
from fedmt.training.run import run, run_engine

CONFIG = """
seed = 3
device = "{device}"
{top}
[method]
{method}
[aggregation]
{aggregation}
[training]
rounds = {rounds}
local_epochs = 1
batch_size = 10
reference_epochs = 1
reference_batch_size = 10
warmup_epochs = 3
{training}
[augmentation]
operations = ["rotate", "shear_x"]
[model]
backbone = "small_cnn"
[benchmark]
data = {{ source = "fashion_mnist" }}
wanted = "garment"
spaces = {{ department = 2, layer = 1, garment = 1 }}
per_class = 2
samples = 20
test_samples = 50
[deployment]
insecure = true
wait = 1
timeout = 1
{deployment}
"""

CENTERS = 4


Handle = Callable[[Message, Context], Message]


class InProcessGrid(Grid):
    """Flower's grid without processes: a center's app handles each message immediately.

    centers: the center.toml of each node, by its number. handle: what a node does with a message.
    """

    def __init__(
        self, centers: dict[int, Path], handle: Callable[[Message, Context], Message] = center_app.app
    ) -> None:
        self.centers, self.handle = dict(centers), handle
        self.replies: dict[str, Message] = {}
        self.seen: list[tuple[str, int, RecordDict, RecordDict]] = []
        """(kind, node, what was sent, what came back)"""

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.centers)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            node = message.metadata.dst_node_id
            context = Context(
                run_id=1,
                node_id=node,
                node_config={"center": str(self.centers[node])},
                state=RecordDict(),
                run_config={},
            )
            identifier = message.metadata.message_id
            try:
                reply = self.handle(message, context)
            except TimeoutError:  # a node that does not answer
                sent.append(identifier)
                continue
            self.seen.append((message.metadata.message_type, node, message.content, reply.content))
            self.replies[identifier] = reply
            sent.append(identifier)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise NotImplementedError


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(roll_module, "POLL", 0.01)
    # As in the process of a ServerApp, a message says which run it belongs to.
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)

    @lru_cache
    def read(path: Path, text: str) -> Federation:
        with importing_only(None):  # as in the unpatched function
            return build_federation(load_config(path))[0]

    def center(self: CenterSettings) -> Center:
        path = self.file.federation
        assert path is not None
        return next(c for c in read(path, path.read_text()).centers if c.name == self.file.name)

    monkeypatch.setattr(CenterSettings, "of_federation", center)  # read once, not once per message


@pytest.fixture
def make(tmp_path, quick) -> Callable[..., tuple[Path, dict[int, Path]]]:
    """A federation's config, and the files of its centers."""

    def make_config(
        method: str = 'name = "fedmt"\nxi = 0.3',
        aggregation: str = "",
        training: str = "",
        deployment: str = "",
        center: str = "",
        rounds: int = 3,
        top: str = "",
        device: str = "cpu",
    ) -> tuple[Path, dict[int, Path]]:
        path = tmp_path / "federation.toml"
        path.write_text(
            CONFIG.format(
                method=method,
                aggregation=aggregation,
                training=training if "learning_rate" in training else f"learning_rate = 0.05\n{training}",
                deployment=deployment,
                rounds=rounds,
                top=top,
                device=device,
            )
        )
        files = {}
        for number in range(1, CENTERS + 1):
            file = files[number + 100] = tmp_path / f"center-{number}.toml"
            file.write_text(
                f'name = "center-{number}"\nstate = "state-{number}"\nfederation = "federation.toml"\n'
                f'device = "{device}"\n{center}'
            )
        return path, files

    return make_config


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = RunFolder(folder).load()
    assert state is not None
    return dict(state.weights)


def assert_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert [k for k in one if not (one[k].dtype == two[k].dtype and torch.equal(one[k], two[k]))] == []


LEARNABLE = """
name = "fedmt"
xi = 0.3
correspondence = "estimated"
estimator = "learnable"
projection = "all"
"""

COMBINATIONS = {
    "FedMT (T)": {"method": 'name = "fedmt"\nxi = 0.3'},
    "FedMT (E)": {"method": 'name = "fedmt"\nxi = 0.3\ncorrespondence = "estimated"'},
    "learnable M, half of the centers": {
        "method": LEARNABLE,
        "training": "participation = 0.5\ndropouts = 0.2",
    },
    "averaged M-hat": {
        "method": 'name = "fedmt"\nxi = 0.3\ncorrespondence = "estimated"\naverage = true',
        "center": "share_correspondence = true",
    },
    "averaged M-hat, half of the centers": {
        "method": 'name = "fedmt"\nxi = 0.3\ncorrespondence = "estimated"\naverage = true',
        "training": "participation = 0.5",
        "center": "share_correspondence = true",
    },
    "by samples, reference's statistics": {
        "training": 'weights = "samples"\nbatch_norm = "static-reference"'
    },
    "SemiFL": {"method": 'name = "semifl"\nxi = 0.3', "aggregation": 'name = "fedprox"'},
    "abstaining": {"method": 'name = "fedmt"\nxi = 0.999'},
    "FedRep": {"method": 'name = "fedrep"'},
    "FedRep with SCAFFOLD": {"method": 'name = "fedrep"', "aggregation": 'name = "scaffold"'},
    "FedTrans": {"method": 'name = "fedtrans"\nfine_tune_epochs = 2'},
    "FedTrans with FedYogi": {
        "method": 'name = "fedtrans"\nfine_tune_epochs = 2',
        "aggregation": 'name = "fedyogi"',
        "training": 'batch_norm = "running"',
    },
    "SCAFFOLD": {"aggregation": 'name = "scaffold"', "training": "participation = 0.5"},
    "FedBN": {"aggregation": 'name = "fedbn"', "training": 'batch_norm = "running"\nparticipation = 0.5'},
    "FedBN, abstaining at first": {
        "method": 'name = "fedmt"\nxi = 0.75',
        "aggregation": 'name = "fedbn"',
        "training": 'batch_norm = "running"\nlearning_rate = 0.1',
    },
    "FedRep with FedBN": {
        "method": 'name = "fedrep"',
        "aggregation": 'name = "fedbn"',
        "training": 'batch_norm = "running"',
    },
    "FedAdam": {"aggregation": 'name = "fedadam"', "training": 'batch_norm = "running"'},
    "trimmed mean": {"aggregation": 'name = "trimmed_mean"\ntrim = 0.3', "training": 'weights = "samples"'},
    "FedRep with a trimmed mean": {
        "method": 'name = "fedrep"',
        "aggregation": 'name = "trimmed_mean"',
    },
    "FLTrust": {"aggregation": 'guard = "fltrust"'},
    "FedRep with FLTrust": {"method": 'name = "fedrep"', "aggregation": 'guard = "fltrust"'},
    "clipped, with SCAFFOLD": {"aggregation": 'name = "scaffold"\nguard = { multiple = 1.0, mix = 1 }'},
    "FedTrans with a geometric median": {
        "method": 'name = "fedtrans"\nfine_tune_epochs = 2',
        "aggregation": 'guard = "geometric_median"',
    },
    "Single": {"method": 'name = "single"'},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINATIONS)
def test_same_as_the_local_engine(make, tmp_path, name) -> None:
    """Every method and strategy gives bit-identical weights. The second round starts with what the first
    left. A third round has centers that were absent or abstained before."""
    options = COMBINATIONS[name]
    longer = "participation" in str(options) or "abstaining" in name
    path, files = make(**options, rounds=3 if longer else 2)
    run(load_config(path), tmp_path / "local")
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))
    ours, theirs = RunFolder(tmp_path / "flower").metrics(), RunFolder(tmp_path / "local").metrics()
    assert [m["accuracy"]["garment"] for m in ours] == [m["accuracy"]["garment"] for m in theirs]
    for one, two in zip(ours, theirs, strict=True):
        for center, record in two["centers"].items():
            assert one["centers"][center].get("absent") == record.get("absent")
            assert one["centers"][center].get("abstained") == record.get("abstained")
    if name == "Single":
        assert grid.seen == []


PRIVATE = "[privacy]\nepsilon = 4\ndelta = 1e-3\nsize = 24\n"


@pytest.fixture
def make_private(make):
    """A federation whose centers promise privacy, each in its own file."""
    pytest.importorskip("dp_accounting")

    def make_config(
        center: str = PRIVATE, training: str = "", **options: Any
    ) -> tuple[Path, dict[int, Path]]:
        return make(center=center, training=f'batch_norm = "static-reference"\n{training}', **options)

    return make_config


def test_a_private_center_tells_its_update_and_what_it_spent(make_private, tmp_path) -> None:
    """The noise is the center's own: the coordinator knows the seed, but cannot reproduce the noise."""
    path, files = make_private(training='weights = "samples"', rounds=1)
    out = []
    for name in ("one", "two"):
        for number in range(1, CENTERS + 1):
            shutil.rmtree(tmp_path / f"state-{number}", ignore_errors=True)
        grid = InProcessGrid(files)
        coordinate(grid, load_config(path), tmp_path / name)
        out.append(weights(tmp_path / name)["backbone.fc.bias"])
    assert not torch.equal(*out)
    answers = [wire.facts_of(back) for kind, _, _, back in grid.seen if kind == "train"]
    assert len(answers) == CENTERS
    for facts in answers:
        assert facts["metrics"].keys() == {"privacy_spent"}
        assert facts["samples"] == 24  # the number that may be known, which is not the true one
    last = RunFolder(tmp_path / "two").metrics()[-1]
    assert all(3 < c["privacy_spent"] <= 4 for c in last["centers"].values())
    assert "losses" not in last


def test_a_private_center_counts_rounds_that_are_asked_for_again(make_private, tmp_path) -> None:
    """It counts them in another run and for a coordinator that forgot, because the ledger is the center's."""
    path, files = make_private(rounds=2)
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "one")
    ledger = tmp_path / "state-1" / "privacy.json"
    spent = json.loads(ledger.read_text())
    assert spent["steps"][0][2] == 2 * 3 and spent["spent"]["epsilon"] <= 4
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "two")
    told = RunFolder(tmp_path / "two").metrics()[-1]["centers"]
    assert all("its privacy budget is spent" in c["abstained"] for c in told.values())
    assert json.loads(ledger.read_text()) == spent
    for number in range(1, CENTERS + 1):  # a center may lose what it kept, but not its ledger
        (tmp_path / f"state-{number}" / "privacy.json").write_text("{}")
    with pytest.raises(FedmtError, match="0 of 4 centers answered"):
        coordinate(InProcessGrid(files), load_config(path), tmp_path / "three")


def test_a_private_center_refuses_what_would_break_it(make_private, make, tmp_path) -> None:
    """It refuses whatever the coordinator's plan says, with a reason that reveals nothing about the data."""
    path, files = make(center=PRIVATE)
    with pytest.raises(FedmtError, match=r"center-1.* cannot be guaranteed: .*training.batch_norm: 'static'"):
        coordinate(InProcessGrid(files), load_config(path), tmp_path / "one")
    for key in ("share_metrics", "share_prior", "share_correspondence"):
        _, files = make_private(center=f"{key} = true\n{PRIVATE}")
        with pytest.raises(FedmtError, match=rf"center-1.toml: '{key}' with \[privacy\]"):
            CenterSettings.read(files[101])


def test_a_private_center_sends_no_statistics_though_asked(make_private, tmp_path) -> None:
    """A coordinator may ask for anything, regardless of its plan."""
    path, files = make_private(rounds=1)
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "plain")
    _, node, sent, _ = next(seen for seen in grid.seen if seen[0] == "train")
    facts = {**wire.facts_of(sent), "base": None, "label": "0" * 32}
    question = wire.message(facts, weights=wire.to_bytes(wire.tensors_of(sent, "weights")))
    grid.push_messages([Message(question, node, "query.statistics")])
    answer = wire.facts_of(grid.seen[-1][3])
    assert "does not allow statistics" in answer["problem"] and "samples" not in answer


def test_the_coordinator_can_ask_every_center_for_privacy(make_private, tmp_path) -> None:
    asked = "[privacy]\nepsilon = 2\ndelta = 1e-3\n"
    for center, wrong in (("", "its center.toml has none"), (PRIVATE, "epsilon 4 .* requires at most 2")):
        path, files = make_private(center=center)
        path.write_text(path.read_text() + asked)
        with pytest.raises(FedmtError, match=f"center-1.*{wrong}"):
            coordinate(InProcessGrid(files), load_config(path), tmp_path / "out")


OWN = """
from dataclasses import dataclass
from fedmt.aggregation import FedProx
from fedmt.estimators import Estimate, Estimator
from fedmt.methods import FedMT

class Squares(Estimator):
    trained = True

    def estimate(self, evidence):
        if evidence.before is not None:
            return Estimate(evidence.before, None)
        shape = evidence.classes, evidence.probabilities.shape[1]
        return Estimate(evidence.probabilities.new_full(shape, 1 / evidence.classes), None)

    def free_parameters(self, matrix):
        return matrix.sqrt()

    def matrix_of(self, free):
        return free.square() / free.square().sum(0)

@dataclass(frozen=True)
class Eager(FedMT):
    extra: int = 1

@dataclass(frozen=True)
class Near(FedProx):
    factor: float = 1.0
    @property
    def proximal(self) -> float:
        return self.factor * self.mu
"""


def test_a_method_an_estimator_and_a_strategy_of_ones_own(make, tmp_path, monkeypatch) -> None:
    """A center looks them up by the names in the coordinator's plan."""
    (tmp_path / "fedmt_test_flower.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    path, files = make(
        method='name = "fedmt_test_flower:Eager"\nxi = 0.3\nextra = 2\ncorrespondence = "estimated"\n'
        'estimator = "fedmt_test_flower:Squares"\nprojection = "all"',
        center='share_correspondence = true\nallow = ["built-in", "fedmt_test_flower:Eager", '
        '"fedmt_test_flower:Squares", "fedmt_test_flower:Near"]',
        aggregation='name = "fedmt_test_flower:Near"\nfactor = 3.0',
        rounds=2,
    )
    run(load_config(path), tmp_path / "local")
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))
    sent = [wire.facts_of(sent)["plan"]["config"] for kind, _, sent, _ in grid.seen if kind == "train"]
    assert sent and all(config["method"]["name"] == "fedmt_test_flower:Eager" for config in sent)
    assert all(config["method"]["extra"] == 2 and config["aggregation"]["factor"] == 3.0 for config in sent)
    for folder in ("local", "flower"):
        state = RunFolder(tmp_path / folder).load()
        assert state is not None
        matrix = state.kept["center-1"]["correspondence"]  # it was trained, so it is no longer uniform
        assert matrix.std() > 1e-4
        torch.testing.assert_close(matrix.sum(0), torch.ones(10))


TOY = Path(__file__).parents[1] / "inputs" / "fedmt_toy.py"

POINTS = """
input = "fedmt_toy:Points"
device = "cpu"
[model]
backbone = "fedmt_toy:network"
[training]
rounds = 2
batch_size = 15
warmup_epochs = 3
[benchmark]
data = { source = "fedmt_toy:Clouds" }
wanted = "kind"
spaces = { pair = 2 }
per_class = 4
test_per_class = 4
[points]
count = 90
[deployment]
insecure = true
"""


def test_another_input_than_images(tmp_path, monkeypatch, quick) -> None:
    """A center learns from the plan what a sample is."""
    shutil.copy(TOY, tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "points.toml"
    path.write_text(POINTS)
    files = {}
    for number in (1, 2):
        files[number] = tmp_path / f"center-{number}.toml"
        files[number].write_text(
            f'name = "center-{number}"\nstate = "state-{number}"\nfederation = "points.toml"\n'
            'allow = ["built-in", "fedmt_toy:Points", "fedmt_toy:network"]\n'
        )
    run(load_config(path), tmp_path / "local")
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "flower")
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))


ROWS = """
input = "{input}"
device = "cpu"
wanted = "kind"
[method]
name = "fedmt"
correspondence = "estimated"
{options}
[training]
rounds = 2
batch_size = 10
warmup_epochs = 3
[spaces]
kind = ["a", "b", "c"]
pair = ["a", "other"]
[reference]
source = "table"
path = "reference.csv"
[[centers]]
name = "center-1"
source = "table"
path = "center-1.csv"
space = "pair"
[[centers]]
name = "center-2"
source = "table"
path = "center-2.csv"
[[tests]]
source = "table"
path = "reference.csv"
[deployment]
insecure = true
"""

OWN_ROWS = """
name = "center-{number}"
state = "state-{number}"
device = "cpu"
{space}
[data]
source = "table"
path = "center-{number}.csv"
"""


@pytest.mark.parametrize("kind", ["vectors", "tables"])
def test_rows_of_a_table(tmp_path, quick, kind: str) -> None:
    """Centers read their own files, and the plan has the mean, deviation or schema. Bit-identical weights."""
    for number, name in enumerate(("reference", "center-1", "center-2")):
        rng = np.random.default_rng(number)
        lines = ["age,tsh,label"]
        for i in range(36):
            label = "abc"[i % 3] if number != 1 else ("a", "other", "other")[i % 3]
            tsh = "" if kind == "tables" and i % 5 == 0 else f"{1000 * (i % 3) + 300 * rng.normal():.3f}"
            lines.append(f"{rng.normal():.3f},{tsh},{label}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    options = '[tables]\nschema = "schema.toml"' if kind == "tables" else ""
    path = tmp_path / "rows.toml"
    path.write_text(ROWS.format(input=kind, options=options))
    if kind == "tables":
        tables = [read_frame(tmp_path / f"{name}.csv") for name in ("reference", "center-1", "center-2")]
        schema = Schema.pooled(Statistics.of(t, t.name, {"label"}) for t in tables)
        (tmp_path / "schema.toml").write_text(schema.to_toml())
    run(load_config(path), tmp_path / "local")
    files = {}
    for number, space in ((1, 'space = "pair"\nspaces = { pair = ["a", "other"] }'), (2, "")):
        files[number] = tmp_path / f"center-{number}.toml"
        files[number].write_text(OWN_ROWS.format(number=number, space=space))
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert any(kind == "train" for kind, *_ in grid.seen)
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))


TEXTS = """
input = "text"
device = "cpu"
wanted = "kind"
[model]
backbone = "fedmt_toy:network"
[text]
features = 64
length = 4
[training]
rounds = 2
batch_size = 4
warmup_epochs = 3
[spaces]
kind = ["card", "flight"]
[reference]
source = "text"
path = "reference.csv"
[[centers]]
name = "Bonn"
source = "text"
path = "Bonn.csv"
space = "kind"
[[tests]]
source = "text"
path = "reference.csv"
[deployment]
insecure = true
"""


def test_texts_are_hashed_at_their_center(tmp_path, monkeypatch, quick) -> None:
    """With their own table [data]: the plan says how to hash, and no word is in any message."""
    shutil.copy(TOY, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, word in (("reference", "please"), ("Bonn", "zanzibar")):
        rows = [
            f"my {word} card number {i},card\nbook {word} flight {i * 'x'} soon,flight\n" for i in range(8)
        ]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(rows))
    path, center = tmp_path / "texts.toml", tmp_path / "center.toml"
    path.write_text(TEXTS)
    center.write_text(
        'name = "Bonn"\nstate = "state"\nspace = "kind"\nallow = ["built-in", "fedmt_toy:network"]\n'
        '[spaces]\nkind = ["card", "flight"]\n'
        '[data]\nsource = "text"\npath = "Bonn.csv"\n'
    )
    run(load_config(path), tmp_path / "local")
    grid = InProcessGrid({1: center})
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))
    assert grid.seen and not any("zanzibar" in str(wire.facts_of(reply)) for *_, reply in grid.seen)
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0  # nobody else on the machine reads what it keeps


# -- a center's device --------------------------------------------------------------------------------


def test_a_center_estimates_m_on_its_own_device(make, tmp_path, monkeypatch) -> None:
    """Its labels and images are on the device of its model. The meta device holds no values, but like CUDA it
    refuses to mix devices. So a center's computation there ends where values are first read."""
    path, files = make(
        method='name = "fedmt"\ncorrespondence = "estimated"',
        training='batch_norm = "static-reference"',
        rounds=2,
    )
    there = torch.device("meta")
    checked = Center.__post_init__
    monkeypatch.setattr(Center, "__post_init__", lambda c: None if c.images.is_meta else checked(c))
    monkeypatch.setattr(center_app, "pick_device", lambda name: there)
    found = []

    def estimate(site, center, weights, server, kept, number) -> Outcome:
        site.trainer.load(weights)
        guesses = site.trainer.predict(center.images)
        m = expectation_maximization(guesses, center.labels, len(center.space)).matrix
        right = posterior(guesses, m, center.labels).argmax(1) == center.truth
        found.append((number, m.device, right.device))
        return Outcome({"abstained": "nothing has a value here"}, {})

    monkeypatch.setattr(Site, "center_round", estimate)
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "flower")
    assert found == [(number, there, there) for number in (1, 2) for _ in files]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["FedMT (T)", "FedMT (E)", "averaged M-hat", "FedRep with FedBN"])
def test_centers_on_cuda(make, tmp_path, name) -> None:
    """Every center's answer is accepted in every round."""
    told = {"center": "share_correspondence = true\nshare_metrics = true", "rounds": 2, "device": "cuda"}
    path, files = make(**{**COMBINATIONS[name], **told})
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "flower")
    _, *rounds = RunFolder(tmp_path / "flower").metrics()
    assert [m["round"] for m in rounds] == [1, 2]
    for record in rounds:
        assert len(record["centers"]) == CENTERS
        assert all(c["losses"]["loss"] > 0 for c in record["centers"].values())
    assert all(bool(v.isfinite().all()) for v in weights(tmp_path / "flower").values())


@pytest.mark.parametrize(("graphs", "workers"), [("graphs = true", 1), ("graphs = false", None), ("", None)])
def test_the_coordinator_heeds_graphs(make, tmp_path, monkeypatch, graphs, workers) -> None:
    """The config decides whether steps are captured. Only the reference center trains here: one model."""
    path, files = make(top=graphs, rounds=1)
    engines = []

    def began(*arguments: Any) -> None:
        engines.append(arguments[1])
        run_engine(*arguments)

    monkeypatch.setattr(server, "run_engine", began)
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "flower")
    (engine,) = engines
    assert engine.graphs == {"graphs = true": True, "graphs = false": False, "": None}[graphs]
    assert (None if engine._fleet is None else len(engine._fleet._workers)) == workers


# -- transforms ---------------------------------------------------------------------------------------


class Clip(Transform):
    """Scales an update down to a length of `limit` and adds noise. The coordinator scales it down again."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.seen: list[tuple[str, int, str]] = []

    def before_sending(self, update, round, center, rng):
        self.seen.append(("sent", round, center))
        scale = self.limit / max(length(update), self.limit)
        return {k: v * scale + 1e-3 * float(rng.normal()) for k, v in update.items()}

    def after_receiving(self, update, round, center, rng):
        self.seen.append(("received", round, center))
        scale = self.limit / max(length(update), self.limit)
        return {k: v * scale for k, v in update.items()}


def use(monkeypatch, transform: Transform) -> None:
    """Acts as if the config asked for it."""
    for place in ("training.run", "engines.flower.server", "engines.flower.center"):
        monkeypatch.setattr(f"fedmt.{place}.build_transforms", lambda config: (transform,))


def length(update: dict[str, torch.Tensor]) -> float:
    return sum(float(v.double().square().sum()) for v in update.values()) ** 0.5


@pytest.mark.parametrize("aggregation", ["fedavg", "scaffold", "trimmed_mean"])
@pytest.mark.parametrize("method", ["fedmt", "fedrep"])
def test_transforms_do_the_same_in_both_engines(make, tmp_path, monkeypatch, method, aggregation) -> None:
    path, files = make(f'name = "{method}"', f'name = "{aggregation}"', rounds=2)
    run(load_config(path), tmp_path / "plain")
    transform = Clip(0.05)
    use(monkeypatch, transform)
    run(load_config(path), tmp_path / "local")
    # Each update passes through each hook once, one center after another.
    names = [f"center-{n}" for n in range(1, CENTERS + 1)]
    if method == "fedrep":
        names.append("reference")  # its update counts in the mean, so it is treated like the others
    expected = [(what, r, n) for r in (1, 2) for n in names for what in ("sent", "received")]
    assert transform.seen == expected
    transform.seen.clear()
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "flower")
    assert sorted(transform.seen) == sorted(expected)
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))
    plain, clipped = weights(tmp_path / "plain"), weights(tmp_path / "local")
    assert any(not torch.equal(plain[k], clipped[k]) for k in plain)


def test_a_transform_that_breaks_an_update_leaves_its_center_out(make, tmp_path, monkeypatch) -> None:
    class Broken(Transform):
        def after_receiving(self, update, round, center, rng):
            return {k: v / 0 for k, v in update.items()} if center == "center-2" else update

    path, files = make(aggregation='name = "fedavg"', rounds=1)
    use(monkeypatch, Broken())
    run(load_config(path), tmp_path / "local")
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "flower")
    for folder in ("local", "flower"):
        centers = RunFolder(tmp_path / folder).metrics()[-1]["centers"]
        assert [n for n, c in centers.items() if "NaN or Inf" in c.get("left_out", "")] == ["center-2"]


# -- what travels -------------------------------------------------------------------------------------


def size(weights: dict[str, torch.Tensor]) -> int:
    return sum(v.nbytes for v in weights.values())


def test_what_travels(make, tmp_path) -> None:
    """A round sends the weights once in each direction. What the exchange of statistics brings is not sent
    again in the round. Nothing but the documented facts comes back."""
    path, files = make(method='name = "fedmt"\nxi = 0.3\ncorrespondence = "estimated"')
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    model = weights(tmp_path / "flower")
    statistics = {k for k in model if "running" in k or "num_batches" in k}
    kinds = [kind for kind, *_ in grid.seen]
    assert (
        kinds
        == ["query.check"] * 4 + (["query.statistics"] * 4 + ["train"] * 4) * 3 + ["query.statistics"] * 4
    )
    allowed = {
        "query.check": {"run", "round", "center", "version", "shares", "space", "model", "shape", "samples"},
        "train": {"run", "round", "center"},
        "query.statistics": {"run", "round", "center", "samples"},
    }
    for kind, _, sent, back in grid.seen:
        assert set(wire.facts_of(back)) == allowed[kind]
        assert set(back) <= {"facts", {"train": "update", "query.statistics": "statistics"}.get(kind, "")}
        if kind == "query.statistics":
            assert wire.tensors_of(sent, "weights").keys() == model.keys()
            assert wire.tensors_of(back, "statistics").keys() == {k for k in statistics if "running" in k}
        elif kind == "train":
            assert wire.tensors_of(sent, "weights").keys() <= statistics
            floating = {k for k, v in model.items() if v.is_floating_point()}
            assert wire.tensors_of(back, "update").keys() == floating


def test_the_coordinator_tracks_and_the_centers_do_not_know(make, tmp_path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, files = make(top="tracking.tensorboard = true", rounds=2)
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    events = EventAccumulator(str(tmp_path / "flower" / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("accuracy/garment")] == [0, 1, 2]
    assert all("tracking" not in json.dumps(wire.facts_of(sent)) for _, _, sent, _ in grid.seen)


def test_local_layers_stay(make, tmp_path) -> None:
    """FedRep's heads come once from the coordinator, and never leave a center."""
    path, files = make(method='name = "fedrep"', training='batch_norm = "static-reference"')
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    trained = [(sent, back) for kind, _, sent, back in grid.seen if kind == "train"]
    for number, (sent, back) in enumerate(trained):
        heads = [k for k in wire.tensors_of(sent, "weights") if ".fc." in k]
        assert len(heads) == (2 if number < CENTERS else 0)  # its own head, in the first round
        assert not [k for k in wire.tensors_of(back, "update") if ".fc." in k]
    state = RunFolder(tmp_path / "flower").load()
    assert state is not None
    assert all(set(kept) <= {"accepted", "layers"} for kept in state.kept.values())


def test_half_the_bytes(make, tmp_path) -> None:
    path, files = make(training='batch_norm = "running"', deployment='wire = "bfloat16"')
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    model = weights(tmp_path / "flower")
    sent, back = next((s, b) for kind, _, s, b in grid.seen if kind == "train")
    for content, name in ((sent, "weights"), (back, "update")):
        assert len(content[name][wire.FORMAT].data) < 0.6 * size(model)
    run(load_config(path), tmp_path / "local")
    local = weights(tmp_path / "local")
    # A bfloat16 has 8 significant bits, so the weights stay close over three rounds but are not the same.
    difference = max(float((model[k] - local[k]).abs().max()) for k in model if model[k].dim() >= 2)
    assert 0 < difference < 0.1


def test_shared_by_choice(make, tmp_path) -> None:
    path, files = make(
        method='name = "fedmt"\nxi = 0.3\ncorrespondence = "estimated"',
        center="share_correspondence = true\nshare_metrics = true",
    )
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "flower")
    run(load_config(path), tmp_path / "local")
    ours, theirs = RunFolder(tmp_path / "flower").load(), RunFolder(tmp_path / "local").load()
    assert ours is not None and theirs is not None
    for name, kept in theirs.kept.items():
        if "correspondence" in kept:
            assert torch.equal(ours.kept[name]["correspondence"], kept["correspondence"])
    assert not any("prior" in kept for kept in ours.kept.values())
    one, two = (RunFolder(tmp_path / f).metrics()[-1] for f in ("flower", "local"))
    for key in ("accuracy", "losses", "confident_share", "prior_error"):
        assert one[key] == two[key]


@pytest.mark.parametrize("willing", [(102,), (102, 103)])
def test_a_prior_leaves_its_center_by_choice_alone(make, tmp_path, willing: tuple[int, ...]) -> None:
    """It is not sent with M-hat either. The coordinator's model knows the mean of what was sent, but does not
    show the estimate of a single center as that of all."""
    method = 'name = "fedmt"\nxi = 0.3\ncorrespondence = "estimated"'
    path, files = make(method=method, center="share_correspondence = true", rounds=1)
    for node in willing:
        files[node].write_text(files[node].read_text() + "\nshare_prior = true")
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    sent = {
        node: set(wire.tensors_of(back, "shared")) for kind, node, _, back in grid.seen if kind == "train"
    }
    assert all(sent.pop(node) == {"correspondence", "prior", "size"} for node in willing)
    assert set().union(*sent.values()) == {"correspondence"}
    state = RunFolder(tmp_path / "flower").load()
    kept = [state.kept[f"center-{node - 100}"] for node in willing]
    assert [int(own["size"]) for own in kept] == [20] * len(kept)
    model = fedmt.load(tmp_path / "flower", "cpu")
    if len(willing) == 1:
        assert "centers" not in model.priors
        return
    mean = torch.stack([own["prior"] for own in kept]).mean(0).tolist()
    assert list(model.priors["centers"].values()) == pytest.approx(mean, abs=1e-6)
    assert f"(the mean of {len(willing)} of {CENTERS} centers)" in model.answering_for("centers").prior.words


def test_the_coordinator_takes_no_other_prior(make, tmp_path) -> None:
    path, files = make(rounds=1)
    odd, alone = "prior does not have one share per wanted class", "without its number of samples"
    lies = {
        101: ({"prior": torch.full((9,), 1 / 9), "size": torch.tensor(20)}, odd),
        102: ({"prior": torch.full((10,), float("nan")), "size": torch.tensor(20)}, odd),
        103: ({"prior": torch.full((10,), 0.1)}, alone),
    }

    def lying(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        if message.metadata.message_type != "train" or context.node_id not in lies:
            return reply
        facts, update = wire.facts_of(reply.content), wire.tensors_of(reply.content, "update")
        tensors = {"update": wire.to_bytes(update), "shared": wire.to_bytes(lies[context.node_id][0])}
        return Message(wire.message(facts, **tensors), reply_to=message)

    coordinate(InProcessGrid(files, lying), load_config(path), tmp_path / "flower")
    records = RunFolder(tmp_path / "flower").metrics()[-1]["centers"]
    for node, (_, reason) in lies.items():
        assert reason in records[f"center-{node - 100}"]["left_out"]
    assert "left_out" not in records["center-4"]


def test_the_coordinator_takes_no_other_m_hat(make, tmp_path) -> None:
    path, files = make(rounds=1, center="share_correspondence = true")

    def lying(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        if message.metadata.message_type != "train" or context.node_id != 101:
            return reply
        facts, update = wire.facts_of(reply.content), wire.tensors_of(reply.content, "update")
        matrix = torch.full((len(wire.facts_of(message.content)["plan"]["spaces"][1][1]), 10), -5.0)
        tensors = {"update": wire.to_bytes(update), "shared": wire.to_bytes({"correspondence": matrix})}
        return Message(wire.message(facts, **tensors), reply_to=message)

    coordinate(InProcessGrid(files, lying), load_config(path), tmp_path / "flower")
    records = RunFolder(tmp_path / "flower").metrics()[-1]["centers"]
    assert "whose columns sum to 1" in records["center-1"]["left_out"]
    assert "left_out" not in records["center-2"]


# -- the check before round 1 -------------------------------------------------------------------------

DATA = """
name = "center-1"
state = "state-1"
device = "cpu"
space = "department"
[data]
source = "npz"
path = "center-1.npz"
[spaces]
department = {classes}
"""


def stopped(grid: InProcessGrid, path: Path, out: Path) -> str:
    with pytest.raises(FedmtError) as error:
        coordinate(grid, load_config(path), out)
    assert RunFolder(out).load() is None  # nothing was trained
    return str(error.value)


def test_another_space_and_other_classes(make, tmp_path) -> None:
    path, files = make()
    files[101].write_text(files[101].read_text().replace("center-1", "center-3", 1))
    files[103].write_text(files[103].read_text().replace("center-3", "center-1", 1))
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "swapped")  # any node may have any center
    for classes, reason in (
        (["tops", "bottoms"], "its classes of 'department' are 'tops', 'bottoms', but"),
        (None, "it labels in 'shelf', but the federation's config says 'department'"),
    ):
        text = DATA.format(classes=json.dumps(classes or ["a", "b"]))
        files[101].write_text(text if classes else text.replace("department", "shelf"))
        said = stopped(InProcessGrid({101: files[101]}), path, tmp_path / f"stopped-{classes is None}")
        assert said.startswith(f"Center 'center-1': {reason}")


def test_another_version_or_network(make, tmp_path, monkeypatch) -> None:
    path, files = make()

    def lying(**said: object) -> Handle:
        def handle(message: Message, context: Context) -> Message:
            reply = center_app.app(message, context)
            facts = wire.facts_of(reply.content)
            if facts["center"] == "center-2":
                facts |= said
            return Message(wire.message(facts), reply_to=message)

        return handle

    for number, (said, reason) in enumerate(
        [
            ({"version": "0.0.9"}, "it runs fedmt 0.0.9, but the coordinator"),
            ({"model": "abc"}, "model 'small_cnn' has different weights there"),
            ({"shape": [3, 28, 28]}, "its images have shape [3, 28, 28]"),
            ({"space": None}, "it has no labels, but the federation's config gives it labels"),
            ({"problem": "its data has a problem"}, "its data has a problem"),
        ]
    ):
        answer = stopped(InProcessGrid(files, lying(**said)), path, tmp_path / f"stopped-{number}")
        assert answer.startswith("Center 'center-2': ") and reason in answer


def of_another_version(monkeypatch: pytest.MonkeyPatch, center: str, since: int) -> Handle:
    """A center that runs another version of fedmt from this round on."""

    def handle(message: Message, context: Context) -> Message:
        facts = wire.facts_of(message.content)
        theirs = center in context.node_config["center"] and facts["round"] >= since
        with monkeypatch.context() as patch:
            if theirs:
                patch.setattr(fedmt, "__version__", "9.9")
            return center_app.app(message, context)

    return handle


def test_a_center_of_another_version_says_so_first(make, tmp_path, monkeypatch) -> None:
    """Also if the plan names something that its version does not have, which `allow` could not help."""
    monkeypatch.setitem(METHODS, "fednew", FedMT)
    path, files = make(method='name = "fednew"\nxi = 0.3')

    def handle(message: Message, context: Context) -> Message:
        with monkeypatch.context() as patch:
            patch.delitem(METHODS, "fednew")
            return of_another_version(patch, "center-2", 0)(message, context)

    said = stopped(InProcessGrid({102: files[102]}, handle), path, tmp_path / "out")
    assert said.startswith(
        f"Center 'center-2': it runs fedmt 9.9, but the coordinator runs {fedmt.__version__}."
    )


def test_an_update_of_fedmt_in_mid_run_is_named(make, tmp_path, monkeypatch) -> None:
    """The center would otherwise read the plan as its own version's, or fail without a reason."""
    path, files = make()
    grid = InProcessGrid(files, of_another_version(monkeypatch, "center-2", 2))
    coordinate(grid, load_config(path), tmp_path / "out")
    records = [record["centers"] for record in RunFolder(tmp_path / "out").metrics()]
    assert "left_out" not in records[1]["center-2"]
    for record in records[2:]:
        assert record["center-2"] == {
            "left_out": f"it runs fedmt 9.9, but the coordinator runs {fedmt.__version__}"
        }


def test_all_centers_that_do_not_fit_are_named_at_once(make, tmp_path) -> None:
    path, files = make()
    for number in (1, 2):
        classes = DATA.format(classes=json.dumps(["tops", "bottoms"]))
        files[100 + number].write_text(classes.replace("center-1", f"center-{number}", 1))
    said = stopped(InProcessGrid(files), path, tmp_path / "out").splitlines()
    assert [line.partition(":")[0] for line in said[:-1]] == ["Center 'center-1'", "Center 'center-2'"]
    assert said[-1].startswith("The run has not started.") and "remove it from the config" in said[-1]


def test_average_needs_consent(make, tmp_path) -> None:
    path, files = make(method='name = "fedmt"\ncorrespondence = "estimated"\naverage = true')
    said = stopped(InProcessGrid(files), path, tmp_path / "out")
    assert "Center 'center-1': method.average needs its estimated correspondence" in said


def test_missing_centers(make, tmp_path) -> None:
    path, files = make(deployment="min_centers = 3")
    files[104].write_text(files[104].read_text().replace("center-4", "centre-4", 1))
    del files[103]
    said = stopped(InProcessGrid(files), path, tmp_path / "out")
    assert "'center-3', 'center-4' had not answered" in said and "deployment.min_centers is 3" in said


def test_a_broken_file_stays_at_its_center(make, tmp_path, caplog) -> None:
    """The coordinator learns that there is a problem. File names and labels are only in the center's log."""
    path, files = make()
    files[101].write_text(DATA.format(classes='["a", "b"]').replace("center-1.npz", "secret-name.npz"))
    config = path.read_text().replace("{ department = 2, layer = 1, garment = 1 }", "{ department = 4 }")
    path.write_text(config)
    classes = build_federation(load_config(path))[0].spaces[1].classes
    files[101].write_text(
        DATA.format(classes=json.dumps(list(classes))).replace("center-1.npz", "secret-name.npz")
    )
    grid = InProcessGrid(files)
    said = stopped(grid, path, tmp_path / "out")
    first, advice = said.splitlines()
    assert first == "Center 'center-1': its data or its center.toml has a problem; see its own log."
    assert "at the center or in the federation's config" in advice and "start the run again" in advice
    assert "secret-name" in caplog.text
    assert all("secret-name" not in json.dumps(wire.facts_of(back)) for *_, back in grid.seen)


def test_what_data_say_of_themselves_is_in_the_centers_log(make, tmp_path, caplog) -> None:
    path, files = make(rounds=1)
    path.write_text(
        path.read_text().replace("{ department = 2, layer = 1, garment = 1 }", "{ department = 4 }")
    )
    center = build_federation(load_config(path))[0].centers[0]
    assert center.space is not None and center.labels is not None
    for number, (image, label) in enumerate(zip(center.images, center.labels, strict=True)):
        place = tmp_path / "scans" / center.space.classes[int(label)] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(place)
    (place.parent / "secret.nii").write_bytes(b"DICM")
    text = DATA.format(classes=json.dumps(list(center.space))).replace('"npz"', '"folder"')
    files[101].write_text(text.replace("center-1.npz", "scans"))
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "out")
    said = [r.getMessage() for r in caplog.records if "skipped (.nii)" in r.getMessage()]
    assert len(said) == 1  # in the check, not with every message
    assert all("nii" not in json.dumps(wire.facts_of(back)) for *_, back in grid.seen)


# -- faults -------------------------------------------------------------------------------------------


def faulty(faults: dict[tuple[str, int], Callable[..., Any]]) -> Handle:
    """A center's app with changed answers: for each (center, round), a function of facts and update."""

    def handle(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        facts = wire.facts_of(reply.content)
        change = faults.get((facts["center"], facts["round"]))
        if message.metadata.message_type != "train" or change is None:
            return reply
        facts, update = change(facts, wire.tensors_of(reply.content, "update"))
        return Message(wire.message(facts, update=wire.to_bytes(update)), reply_to=message)

    return handle


def first(update: dict[str, torch.Tensor], value: object) -> dict[str, torch.Tensor]:
    key = next(iter(update))
    changed = update[key].clone()
    changed.view(-1)[0] = value  # type: ignore[call-overload]
    return {**update, key: changed}


def telling(**lies: object) -> Callable[..., Any]:
    return lambda facts, update: ({**facts, "metrics": {**facts["metrics"], **lies}}, update)


def never(facts: object, update: object) -> object:
    raise TimeoutError


FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "NaN": (lambda f, u: (f, first(u, float("nan"))), "NaN or Inf"),
    "Inf": (lambda f, u: (f, first(u, float("inf"))), "NaN or Inf"),
    "wrong shape": (lambda f, u: (f, {k: v[..., :1] for k, v in u.items()}), "expected"),
    "wrong type": (lambda f, u: (f, {k: v.double() for k, v in u.items()}), "torch.float64"),
    "missing weights": (lambda f, u: (f, dict(list(u.items())[1:])), "other weights than expected"),
    "nothing": (lambda f, u: (f, {}), "other weights than expected"),
    "unknown run": (lambda f, u: ({**f, "run": "0" * 32}, u), "it answered for run 0000"),
    "another's name": (lambda f, u: ({**f, "center": "center-1"}, u), "it answered for run"),
    "late": (never, "no answer within 1 s"),
    "scaled": (lambda f, u: (f, {k: 1e6 * v for k, v in u.items()}), "its update is not plausible"),
    "3e38": (lambda f, u: (f, {k: torch.full_like(v, 3e38) for k, v in u.items()}), "times the median"),
    "a share below 0": (telling(confident_share=-1e308), "its confident_share is -1e+308, expected 0 to 1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_its_round_alone(make, tmp_path, name) -> None:
    """The center is left out of round 2, named, and back in round 3. The run is as if it had been absent."""
    fault, reason = FAULTS[name]
    path, files = make(
        aggregation='name = "scaffold"',
        training='batch_norm = "static-reference"',
        center="share_metrics = true",
    )
    grid = InProcessGrid(files, faulty({("center-2", 2): fault}))
    coordinate(grid, load_config(path), tmp_path / "flower")
    records = [m["centers"] for m in RunFolder(tmp_path / "flower").metrics()]
    assert reason in records[2]["center-2"]["left_out"]
    assert all("losses" in record for center, record in records[2].items() if center != "center-2")
    assert "losses" in records[3]["center-2"] and "losses" in records[1]["center-2"]
    # In round 3, the center continued from round 1, the last one that counted.
    asked = [wire.facts_of(s) for kind, node, s, _ in grid.seen if kind == "train" and node == 102]
    assert [f["accepted"] for f in asked][-1] == 1


def test_without_a_guard_one_update_is_the_whole_mean(make, tmp_path) -> None:
    """Here the attack succeeds: all other centers are present, but none of them counts any more."""
    fault = faulty({("center-2", 2): FAULTS["scaled"][0]})
    found = {}
    for guard in ("clip", "none"):
        path, files = make(
            aggregation=f'guard = "{guard}"', training='batch_norm = "static-reference"', rounds=2
        )
        coordinate(InProcessGrid(files, fault), load_config(path), tmp_path / guard)
        record = RunFolder(tmp_path / guard).metrics()[-1]["centers"]["center-2"]
        assert record["update_norm"] > 1e5 and ("left_out" in record) == (guard == "clip")
        found[guard] = max(
            float(v.abs().max()) for k, v in weights(tmp_path / guard).items() if "run" not in k
        )
    assert found["clip"] < 10 and found["none"] > 1e3


def spoiled(name: str, tensor: Callable[[str, torch.Tensor], torch.Tensor], **facts: object) -> Handle:
    """A center's app whose statistics are changed after the warm-up."""

    def handle(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        told = wire.facts_of(reply.content)
        if told["center"] != name or message.metadata.message_type != "query.statistics" or not told["round"]:
            return reply
        changed = {k: tensor(k, v) for k, v in wire.tensors_of(reply.content, "statistics").items()}
        return Message(wire.message({**told, **facts}, statistics=wire.to_bytes(changed)), reply_to=message)

    return handle


@pytest.mark.parametrize(
    ("value", "facts", "said"),
    [
        (1e30, {}, "a variance of 1e+30"),
        (None, {"samples": 10**9}, "it reports 1000000000 samples"),
    ],
)
def test_absurd_statistics_are_left_out_and_named(make, tmp_path, value, facts, said) -> None:
    """The model is that of a round whose statistics were measured without the center."""
    path, files = make(rounds=1)

    def change(key: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if value is None or "running_var" not in key else torch.full_like(tensor, value)

    coordinate(
        InProcessGrid(files, spoiled("center-2", change, **facts)), load_config(path), tmp_path / "out"
    )
    record = RunFolder(tmp_path / "out").metrics()[-1]["centers"]["center-2"]
    assert said in record["left_out_of_statistics"] and "update_norm" in record
    for key, found in weights(tmp_path / "out").items():
        if key.endswith("running_var"):
            assert bool((found >= 0).all()) and float(found.max()) < 1e3


def test_samples_are_fixed_at_the_check_and_recorded(make, tmp_path) -> None:
    """A center that claims 1e9 samples, later or from the start, does not become the whole mean."""
    path, files = make(training='weights = "samples"\nbatch_norm = "static-reference"', rounds=2)
    grid = InProcessGrid(files, faulty({("center-2", 2): lambda f, u: ({**f, "samples": 10**9}, u)}))
    coordinate(grid, load_config(path), tmp_path / "later")
    records = [m["centers"] for m in RunFolder(tmp_path / "later").metrics()]
    assert all(r["samples"] == 20 for r in records[1].values())
    assert "1000000000 samples" in records[2]["center-2"]["left_out"]

    def boasting(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        facts = wire.facts_of(reply.content)
        if message.metadata.message_type == "query.check" and facts["center"] == "center-2":
            return Message(wire.message({**facts, "samples": 10**9}), reply_to=message)
        return reply

    assert "Center 'center-2': it reports 1000000000 samples" in stopped(
        InProcessGrid(files, boasting), path, tmp_path / "at once"
    )


def test_too_few_answers_stop_the_run(make, tmp_path) -> None:
    path, files = make(training='batch_norm = "static-reference"', deployment="min_centers = 4")
    grid = InProcessGrid(files, faulty({("center-2", 2): FAULTS["NaN"][0]}))
    with pytest.raises(FedmtError, match=r"Round 2: 3 of 4 centers answered.*'center-2': its update"):
        coordinate(grid, load_config(path), tmp_path / "flower")
    # When started again, it continues, and the fault has left no trace.
    coordinate(InProcessGrid(files), load_config(path), tmp_path / "flower")
    run(load_config(path), tmp_path / "local")
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))


def test_a_lost_state_folder(make, tmp_path) -> None:
    """A center whose memory is gone reports it, and starts again in the next round."""
    path, files = make(method='name = "fedrep"', training='batch_norm = "static-reference"')

    def handle(message: Message, context: Context) -> Message:
        facts = wire.facts_of(message.content)
        if message.metadata.message_type == "train" and facts["round"] == 2:
            for file in (tmp_path / "state-1").rglob("round-*"):
                file.unlink()
        return center_app.app(message, context)

    coordinate(InProcessGrid(files, handle), load_config(path), tmp_path / "flower")
    records = [m["centers"] for m in RunFolder(tmp_path / "flower").metrics()]
    assert "its memory of round 1 is missing" in records[2]["center-1"]["left_out"]
    assert records[3]["center-1"].keys() == {"update_norm", "update_cosine"}


def test_a_node_that_comes_back(make, tmp_path) -> None:
    """It returns under its name as a different Flower node, is checked, and continues with what it kept."""
    path, files = make(method=LEARNABLE)
    grid = InProcessGrid(files)

    def handle(message: Message, context: Context) -> Message:
        facts = wire.facts_of(message.content)
        reply = center_app.app(message, context)
        if (message.metadata.message_type, facts["round"], context.node_id) == ("query.statistics", 2, 104):
            grid.centers[202] = grid.centers.pop(102)
        return reply

    grid.handle = handle
    coordinate(grid, load_config(path), tmp_path / "flower")
    run(load_config(path), tmp_path / "local")
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))
    assert {node for kind, node, *_ in grid.seen if kind == "train"} == {101, 102, 103, 104, 202}


def test_a_node_that_never_answers_its_check_is_waited_for_once(quick, monkeypatch) -> None:
    monkeypatch.setattr(roll_module, "CHECK_TIMEOUT", 0.3)

    def silent(message: Message, context: Context) -> Message:
        raise TimeoutError

    class Counting(InProcessGrid):
        looks = 0

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            self.looks += 1
            return super().pull_messages(message_ids)

    grid = Counting({7: Path("nowhere.toml")}, silent)
    roll = roll_module.Roll(grid, ["goa"], "a run", lambda name, facts: "")
    looks = []
    for _ in range(3):
        before = grid.looks
        roll.update({})
        looks.append(grid.looks - before)
    assert looks[0] > 1 and looks[1:] == [1, 1]  # it is still listened to
    grid.centers = {}
    roll.update({})
    assert not roll._pending  # it is gone, so its answer will never come


# -- a center's own file ------------------------------------------------------------------------------


class Announcing:
    """A SuperLink that has the announcement of an answer, and never the rest of it."""

    def __init__(self, reply: Message) -> None:
        self.reply = reply

    def PullMessages(self, _: object) -> PullAppMessagesResponse:
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(self.reply)], message_object_trees=[get_object_tree(self.reply)]
        )

    def PullObject(self, _: object) -> PullObjectResponse:
        return PullObjectResponse(object_found=True, object_available=False)


def test_an_upload_that_breaks_off_is_not_waited_for_longer_than_any_other(monkeypatch) -> None:
    """Flower would wait for the rest for minutes, and all other centers with it."""
    for field in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{field}", 1)
    message = Message(wire.message({"run": "r", "round": 1}), 7, "train")
    message.metadata.__dict__["_message_id"] = "sent"
    grid = HttpGrid(token="none")
    monkeypatch.setattr(grid, "_run", SimpleNamespace(run_id=1))
    monkeypatch.setattr(grid, "_client", Announcing(Message(wire.message({}), reply_to=message)))
    roll = Roll(grid, ["center-1"], "r", lambda *_: "")
    roll.nodes["center-1"] = 7
    before = time.monotonic()
    answer = roll._wait("center-1", "sent", 1, before + 0.5, 0.5)
    assert "objects are unavailable" in answer.problem
    assert time.monotonic() - before < 5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('space = "department"', 'spce = "department"', "unknown key 'spce'. Did you mean 'space'?"),
        ('space = "department"', 'space = "shelf"', "space 'shelf' is not in [spaces]"),
        ('[data]\nsource = "npz"\npath = "center-1.npz"\n', "", "expected either [data] or `federation`"),
        ('state = "state-1"\n', "", "'state' is missing"),
        ('"npz"', '"nzp"', "data.source"),
    ],
)
def test_mistakes_in_a_center_file(tmp_path, old, new, said) -> None:
    path = tmp_path / "center.toml"
    text = DATA.format(classes='["a", "b"]')
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(FedmtError) as error:
        CenterSettings.read(path)
    assert said in str(error.value) and str(path) in str(error.value)


def test_a_state_folder_belongs_to_one_center(make, tmp_path) -> None:
    """As when center.toml was copied for a second center. Each would read the other's memory."""
    path, files = make()
    files[102].write_text(files[102].read_text().replace("state-2", "state-1"))
    said = stopped(InProcessGrid(files), path, tmp_path / "out")
    assert said.startswith("Center 'center-2': its state folder is another center's too")


@pytest.mark.parametrize("key", ["federation", "out"])
def test_the_paths_of_a_run_are_absolute(tmp_path, monkeypatch, key) -> None:
    """They are read on the coordinator's machine, in whatever folder the SuperLink was started."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    given = {"federation": str(tmp_path / "federation.toml"), "out": str(tmp_path / "out"), key: "here"}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=given)
    with pytest.raises(FedmtError, match=rf"--run-config: {key} = 'here' is not an absolute path") as error:
        server.app(InProcessGrid({}), context)
    assert "File " not in "".join(traceback.format_exception(error.value))  # Flower prints it


def test_memory_is_of_one_center_run_and_round(tmp_path) -> None:
    memory = Memory(tmp_path, "ab" * 8, "Berlin")
    for number in range(1, 7):
        memory.save(number, {"correspondence": torch.full((2, 3), float(number))}, keep_from=number - 3)
    assert memory.load(None) == {}
    assert memory.load(6)["correspondence"][0, 0] == 6
    kept = sorted(p.name for p in memory.folder.iterdir())
    assert kept == [f"round-00000{n}.safetensors" for n in (3, 4, 5, 6)]  # as many as may be requested
    with pytest.raises(FedmtError, match="its memory of round 2 is missing"):
        memory.load(2)
    with pytest.raises(FedmtError, match="belongs to another center, run or round"):
        Memory(tmp_path, "ab" * 8, "Lyon").load(6)
    (memory.folder / "round-000006.safetensors").write_bytes(b"cut")
    with pytest.raises(FedmtError, match="is damaged"):
        memory.load(6)
    with pytest.raises(FedmtError, match="not the name of a run"):
        Memory(tmp_path, "../../etc", "Berlin")


FROZEN = {
    "FedMT (E)": ('name = "fedmt"\nxi = 0.3\ncorrespondence = "estimated"', "linear"),
    "FedRep, whose heads stay": ('name = "fedrep"', "mlp"),
}


def frozen(path: Path, head: str = "linear") -> None:
    text = path.read_text().replace('operations = ["rotate", "shear_x"]', "noise = 0.1")
    path.write_text(text.replace("[benchmark]", f'freeze = true\nhead = "{head}"\n[benchmark]'))


@pytest.mark.parametrize("name", FROZEN)
def test_a_frozen_backbone_travels_once(make, tmp_path, monkeypatch, name) -> None:
    """The weights are bit-identical to the local engine's, and each center makes its own features once."""
    made: list[str] = []

    def counted(*arguments: Any) -> torch.Tensor:
        made.append(arguments[-1])
        return encode(*arguments)

    monkeypatch.setattr(center_app, "encode", counted)
    method, head = FROZEN[name]
    path, files = make(method=method, rounds=2)
    frozen(path, head)
    run(load_config(path), tmp_path / "local")
    grid = InProcessGrid(files)
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert_equal(weights(tmp_path / "flower"), weights(tmp_path / "local"))
    own = (tmp_path / "flower" / "frozen.safetensors").read_bytes()
    assert own == (tmp_path / "local" / "frozen.safetensors").read_bytes()
    with_network = [kind for kind, _, sent, _ in grid.seen if "frozen" in sent]
    assert with_network == ["query.check"] * CENTERS
    for kind, _, sent, back in grid.seen:
        if kind != "query.check":  # the rounds send only the head, and no convolution weight
            every = {**wire.tensors_of(sent, "weights"), **wire.tensors_of(back, "update")}
            assert all(v.dim() <= 2 for v in every.values())
    assert made == [f"Center 'center-{number}'" for number in range(1, CENTERS + 1)]


def test_a_center_that_lost_the_frozen_backbone_is_sent_it_again(make, tmp_path) -> None:
    path, files = make(rounds=3)
    frozen(path)
    calls: list[str] = []

    def handle(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train" and context.node_id == 101:
            calls.append("train")
            if len(calls) == 2:  # before its part of round 2
                (folder,) = (path for path in (tmp_path / "state-1").iterdir() if path.is_dir())
                shutil.rmtree(folder)
        return center_app.app(message, context)

    grid = InProcessGrid(files, handle)
    coordinate(grid, load_config(path), tmp_path / "flower")
    metrics = RunFolder(tmp_path / "flower").metrics()
    assert "missing from its state folder" in metrics[2]["centers"]["center-1"]["left_out"]
    assert "left_out" not in metrics[3]["centers"]["center-1"]
