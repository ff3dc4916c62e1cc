"""Secure aggregation between machines, in process: the local engine's weights, and no update leaves."""

import json
import resource
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedmt import Center
from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.engines.flower import center as center_app
from fedmt.engines.flower import masked as masked_module
from fedmt.engines.flower import roll as roll_module
from fedmt.engines.flower import wire
from fedmt.engines.flower.keys import make_keys
from fedmt.engines.flower.server import coordinate
from fedmt.engines.flower.settings import CenterSettings
from fedmt.engines.summing import SummedUpdates, arrays
from fedmt.privacy.masking.fixed_point import Layout
from fedmt.runs.files import writing
from fedmt.runs.folder import RunFolder
from fedmt.training.run import run

CONFIG = """
seed = 3
device = "cpu"
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
warmup_epochs = 1
learning_rate = 0.05
{training}
[augmentation]
operations = ["rotate"]
[model]
backbone = "small_cnn"
[benchmark]
data = {{ source = "fashion_mnist" }}
wanted = "garment"
spaces = {{ department = 2, layer = 1, garment = 1 }}
per_class = 2
samples = 20
test_samples = 20
[deployment]
insecure = true
wait = 1
timeout = 0.05
secure_aggregation = true
max_samples = 32
{deployment}
"""
NAMES = tuple(f"center-{number}" for number in range(1, 5))
Handle = Callable[[Message, Context], Message]


class Nodes(Grid):
    """Flower's grid without processes. handle: what a node does with a message; TimeoutError: nothing."""

    def __init__(self, files: dict[int, Path]) -> None:
        self.files, self.handle = files, center_app.app
        self.replies: dict[str, Message] = {}
        self.seen: list[tuple[str, str, RecordDict, RecordDict]] = []
        """(kind, center, what was sent, what came back)"""

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.files)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.files]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = identifier = uuid.uuid4().hex
            node = message.metadata.dst_node_id
            config = {"center": str(self.files[node])}
            context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
            try:
                reply = self.handle(message, context)
                kind = message.metadata.message_type
                self.seen.append((kind, NAMES[node - 1], message.content, reply.content))
                self.replies[identifier] = reply
            except TimeoutError:
                pass
            yield identifier

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("keys")
    return folder, make_keys(folder, ["127.0.0.1"], [*NAMES, "Mallory"])


@pytest.fixture
def make(tmp_path, keys, monkeypatch) -> Callable[..., tuple[Path, Nodes]]:
    monkeypatch.setattr(roll_module, "POLL", 0.01)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)
    read = lru_cache(lambda path, text: build_federation(load_config(path))[0])

    def center(self: CenterSettings) -> Center:
        path = self.file.federation
        assert path is not None
        return next(c for c in read(path, path.read_text()).centers if c.name == self.file.name)

    monkeypatch.setattr(CenterSettings, "of_federation", center)  # read once, not once per message
    folder, prints = keys

    def make_config(
        method: str = 'name = "fedmt"\nxi = 0.3',
        aggregation: str = "",
        training: str = "",
        deployment: str = "",
        center: str = "",
        peers: dict[str, str] | None = None,
        rounds: int = 2,
    ) -> tuple[Path, Nodes]:
        path = tmp_path / "federation.toml"
        given = {"method": method, "aggregation": aggregation, "training": training}
        path.write_text(CONFIG.format(deployment=deployment, rounds=rounds, **given))
        files = {}
        for number, name in enumerate(NAMES, 1):
            file = files[number] = tmp_path / f"{name}.toml"
            believed = peers if peers is not None else {n: prints[n] for n in NAMES}
            file.write_text(
                f'name = "{name}"\nstate = "state-{name}"\nfederation = "federation.toml"\ndevice = "cpu"\n'
                f'key = "{folder / name}"\n{center}\n[peers]\n'
                + "".join(f'"{n}" = "{p}"\n' for n, p in believed.items() if n != name)
            )
        return path, Nodes(files)

    return make_config


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = RunFolder(folder).load()
    assert state is not None
    return dict(state.weights)


def vanishing(grid: Nodes, gone: dict[tuple[str, int], Iterable[str]]) -> None:
    """Makes centers silent, by kind of message and round."""

    def handle(message: Message, context: Context) -> Message:
        number = wire.facts_of(message.content)["round"]
        if NAMES[context.node_id - 1] in gone.get((message.metadata.message_type, number), ()):
            raise TimeoutError
        return center_app.app(message, context)

    grid.handle = handle


COMBINATIONS = {
    "FedMT (T), static batch norm": {},
    "by samples, running batch norm": {
        "training": 'weights = "samples"\nbatch_norm = "running"',
        "aggregation": 'name = "fedadam"',
    },
    "abstaining, three of four": {
        "method": 'name = "fedmt"\nxi = 0.999\nsoft = false',
        "training": "participation = 0.75",
    },
    "FedRep with SCAFFOLD": {"method": 'name = "fedrep"', "aggregation": 'name = "scaffold"'},
    "FedTrans, whose heads are those of few": {"method": 'name = "fedtrans"\nfine_tune_epochs = 1'},
    "FedBN": {"aggregation": 'name = "fedbn"', "training": 'batch_norm = "running"'},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_simulation_equals_the_deployment_to_the_bit(make, tmp_path, name) -> None:
    path, grid = make(**COMBINATIONS[name])
    run(load_config(path), tmp_path / "local")
    coordinate(grid, load_config(path), tmp_path / "flower")
    ours, theirs = weights(tmp_path / "flower"), weights(tmp_path / "local")
    assert ours.keys() == theirs.keys()
    assert [k for k in ours if not torch.equal(ours[k], theirs[k])] == []
    assert not any(
        "left_out" in c for m in RunFolder(tmp_path / "flower").metrics() for c in m["centers"].values()
    )


def test_nothing_leaves_a_center_but_masked_numbers(make, tmp_path, monkeypatch) -> None:
    """Checks the content of each answer, and that it reveals nothing about the trained update."""
    trained: dict[str, np.ndarray] = {}

    def noted(update: Any) -> Any:
        found = arrays(update)
        trained["last"] = np.concatenate([found[k].ravel() for k in sorted(found)])
        return found

    monkeypatch.setattr(center_app, "arrays", noted)
    path, grid = make(training='weights = "samples"', rounds=1)
    told: list[tuple[np.ndarray, np.ndarray]] = []

    def handle(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        if message.metadata.message_type == "train":
            masked = wire.tensors_of(reply.content, "masked")["vector"].numpy()
            told.append((trained["last"], masked[: len(trained["last"])]))
        return reply

    grid.handle = handle
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert len(told) == 4
    for update, masked in told:
        assert abs(np.corrcoef(update, masked)[0, 1]) < 5 / np.sqrt(len(update))
    for kind, _, _, reply in grid.seen:
        facts = wire.facts_of(reply)
        if kind == "query.check":
            assert "samples" not in facts
        else:
            assert set(facts) - {"run", "round", "center"} == (
                {"revealed"} if kind == "query.reveal" else set()
            )
            assert set(reply) - {"facts", "signature"} == (set() if kind == "query.reveal" else {"masked"})
    assert {kind for kind, *_ in grid.seen} == {"query.check", "train", "query.statistics", "query.reveal"}
    (record,) = RunFolder(tmp_path / "flower").metrics()[1:]
    assert record["centers"] == {name: {} for name in NAMES}


def test_a_center_that_vanishes_is_left_out_and_the_sum_is_right(make, tmp_path) -> None:
    """It vanishes before masking, or between the messages. In the second case, its update is in the sum."""
    path, grid = make(training='batch_norm = "static-reference"', rounds=2)
    vanishing(grid, {("train", 1): ["center-2"], ("query.reveal", 2): ["center-3"]})
    coordinate(grid, load_config(path), tmp_path / "flower")
    first, second = (m["centers"] for m in RunFolder(tmp_path / "flower").metrics()[1:])
    assert {n for n, r in first.items() if "left_out" in r} == {"center-2"}
    assert not any("left_out" in r for r in second.values())


@pytest.mark.parametrize(("kind", "in_sum"), [("query.check", 3), ("train", 3), ("query.reveal", 4)])
def test_whenever_a_center_vanishes_the_sum_is_that_of_the_integers(
    make, tmp_path, monkeypatch, kind, in_sum
) -> None:
    """It vanishes during setup, before masking or between messages. The sum is that of what was encoded."""
    encoded: list[np.ndarray] = []
    totals: list[np.ndarray] = []
    encode, add_total = Layout.encode, SummedUpdates.add_total

    def noted(layout: Layout, *given: Any) -> Any:
        found = encode(layout, *given)
        encoded.append(found[0].copy())
        return found

    def adding(updates: SummedUpdates, total: np.ndarray, present: int) -> None:
        totals.append(total.copy())
        add_total(updates, total, present)

    monkeypatch.setattr(Layout, "encode", noted)
    monkeypatch.setattr(SummedUpdates, "add_total", adding)
    path, grid = make(training='batch_norm = "static-reference"', rounds=1)
    vanishing(grid, {(kind, 0 if kind == "query.check" else 1): ["center-4"]})
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert len(encoded) == in_sum and len(totals) == 1
    assert np.array_equal(totals[0], np.sum(encoded, axis=0, dtype=totals[0].dtype))
    centers = RunFolder(tmp_path / "flower").metrics()[1]["centers"]
    assert {n for n, r in centers.items() if "left_out" in r} == ({"center-4"} if in_sum == 3 else set())


def test_one_before_and_one_between_give_no_sum_and_no_wrong_one(make, tmp_path) -> None:
    """The round is dropped, and the model continues as if no center had trained. The next round counts."""
    path, grid = make(training='batch_norm = "static-reference"', deployment="threshold = 3", rounds=2)
    vanishing(grid, {("train", 1): ["center-2"], ("query.reveal", 1): ["center-3"]})
    coordinate(grid, load_config(path), tmp_path / "flower")
    first, second = (m["centers"] for m in RunFolder(tmp_path / "flower").metrics()[1:])
    assert all("left_out" in record for record in first.values())
    assert "the sum of the round was lost" in first["center-1"]["left_out"]
    assert not any("left_out" in record for record in second.values())


def test_three_rounds_without_a_sum_stop_the_run(make, tmp_path) -> None:
    path, grid = make(training='batch_norm = "static-reference"', rounds=4)
    vanishing(grid, {("train", number): ["center-2", "center-3"] for number in (1, 2, 3)})
    with pytest.raises(
        FedmtError, match="the updates could not be summed in 3 rounds: 2 masked updates arrived, but the"
    ):
        coordinate(grid, load_config(path), tmp_path / "flower")


def test_a_run_that_is_started_again_goes_on(make, tmp_path) -> None:
    """The coordinator dies after the seeds of round 2 were revealed. It asks again, and the centers agree."""
    path, grid = make(rounds=2)
    run(load_config(path), tmp_path / "local")

    def handle(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        facts = wire.facts_of(message.content)
        if (message.metadata.message_type, facts["round"], context.node_id) == ("query.reveal", 2, 4):
            raise KeyboardInterrupt
        return reply

    grid.handle = handle
    with pytest.raises(KeyboardInterrupt):
        coordinate(grid, load_config(path), tmp_path / "flower")
    grid.handle = center_app.app
    coordinate(grid, load_config(path), tmp_path / "flower")
    ours, theirs = weights(tmp_path / "flower"), weights(tmp_path / "local")
    assert [k for k in ours if not torch.equal(ours[k], theirs[k])] == []


def test_a_coordinator_cannot_invent_a_peer(make, keys, tmp_path) -> None:
    """Three centers do not know the fourth's key, so none of them masks an update for a sum with it."""
    prints = keys[1]
    peers = {**{name: prints[name] for name in NAMES}, "center-4": prints["Mallory"]}
    path, grid = make(training='batch_norm = "static-reference"', peers=peers, rounds=3)
    with pytest.raises(FedmtError, match="'center-1': the key claimed for 'center-4' was not signed"):
        coordinate(grid, load_config(path), tmp_path / "flower")
    assert not [1 for kind, *_ in grid.seen if kind == "query.reveal"]


def test_a_center_with_peers_sends_nothing_unmasked(make, tmp_path) -> None:
    """The coordinator does not ask for masks. Without the rule, updates would be sent unmasked."""
    path, grid = make(rounds=1)
    path.write_text(path.read_text().replace("secure_aggregation = true", ""))
    with pytest.raises(
        FedmtError, match=r"Center 'center-1': its center.toml has \[peers\], so it sends only masked"
    ):
        coordinate(grid, load_config(path), tmp_path / "flower")
    for file in grid.files.values():
        file.write_text(file.read_text().partition("[peers]")[0])
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert all("update" in reply for kind, _, _, reply in grid.seen if kind == "train")


def test_in_flowers_simulation_nobody_has_a_key(make, tmp_path) -> None:
    """All nodes are on one machine and trust each other."""
    path, grid = make(training='batch_norm = "static-reference"', rounds=1)
    run(load_config(path), tmp_path / "local")

    def handle(message: Message, context: Context) -> Message:
        context.node_config = {"partition-id": context.node_id - 1}
        context.run_config = {"federation": str(path), "out": str(tmp_path / "flower")}
        return center_app.app(message, context)

    grid.handle = handle
    coordinate(grid, load_config(path), tmp_path / "flower")
    ours, theirs = weights(tmp_path / "flower"), weights(tmp_path / "local")
    assert [k for k in ours if not torch.equal(ours[k], theirs[k])] == []


def test_seeds_are_revealed_once(make, tmp_path) -> None:
    """A repeated request, with the same centers or with one fewer, is refused."""
    path, grid = make(training='batch_norm = "static-reference"', rounds=1)
    refused: list[str] = []

    def handle(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        if message.metadata.message_type == "query.reveal":
            facts = wire.facts_of(message.content)
            again = json.loads(facts["reveal"])
            gone = again["survived"].popitem()[0]
            again["vanished"] = [gone]
            for request in (facts["reveal"], json.dumps(again)):
                other = Message(
                    wire.message({**facts, "reveal": request}), context.node_id, "query.reveal", ttl=60
                )
                other.metadata.__dict__["_message_id"] = uuid.uuid4().hex
                refused.append(wire.facts_of(center_app.app(other, context).content)["problem"])
        return reply

    grid.handle = handle
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert len(refused) == 8 and all("already revealed its seeds" in why for why in refused)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"aggregation": 'name = "trimmed_mean"'}, "'trimmed_mean' looks at each center's own update"),
        ({"aggregation": 'guard = "clip"'}, "aggregation.guard = 'clip' looks at each center's own update"),
        ({"training": "dropouts = 0.5"}, "training.dropouts simulates centers that vanish"),
        (
            {"method": 'name = "fedmt"\ncorrespondence = "estimated"\naverage = true'},
            "method.average needs each center's estimated correspondence",
        ),
        ({"deployment": "threshold = 2"}, "expected at least 3 for 4 centers"),
        ({"deployment": "threshold = 5"}, "at most 4, the number that take part"),
        ({"training": "participation = 0.5"}, "at most 2, the number that take part"),
        ({"center": "share_metrics = true"}, "share_metrics = true, which secure aggregation excludes"),
        ({"center": "threshold = 4"}, "its threshold is 4, but the coordinator's deployment.threshold is 3"),
        ({"peers": {}}, r"needs `key` and \[peers\]"),
        ({"deployment": "", "samples": 200}, "deployment.max_samples"),
    ],
)
def test_what_it_excludes_is_refused_with_a_reason(make, tmp_path, given, message) -> None:
    given = dict(given)
    samples = given.pop("samples", 20)
    path, grid = make(**given, rounds=1)
    path.write_text(path.read_text().replace("samples = 20\n", f"samples = {samples}\n", 1))
    with pytest.raises(FedmtError, match=message):
        coordinate(grid, load_config(path), tmp_path / "flower")


@pytest.mark.parametrize(
    ("center", "peers", "message"),
    [
        ("threshold = 2", None, "threshold: 2 given, expected 3 to 4"),
        ("", {"center-2": "SHA256:short"}, "peers.center-2: 'SHA256:short' given, expected the fingerprint"),
    ],
)
def test_a_centers_file_is_checked(make, center, peers, message) -> None:
    _, grid = make(center=center, peers=peers)
    with pytest.raises(FedmtError, match=message):
        CenterSettings.read(grid.files[1])


def test_the_key_of_a_run_is_its_owners_alone(make, tmp_path) -> None:
    path, grid = make(training='batch_norm = "static-reference"', rounds=1)
    coordinate(grid, load_config(path), tmp_path / "flower")
    (key,) = (tmp_path / "state-center-1").glob("*/masking.key")
    assert key.stat().st_mode & 0o077 == 0
    assert masked_module.X25519PrivateKey.from_private_bytes(key.read_bytes())


def test_a_key_that_could_not_be_written_is_made_again(make, tmp_path, monkeypatch) -> None:
    """A disk that was full once must not leave a key that nobody can read."""
    path, grid = make(training='batch_norm = "static-reference"', rounds=1)
    limits = [0]

    @contextmanager
    def on_a_full_disk(file: Path) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        with writing(file):
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limits.pop() if limits else before[0], before[1]))
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(masked_module, "writing", on_a_full_disk)
    with pytest.raises(FedmtError, match=r"'center-1': its data or its center\.toml has"):
        coordinate(grid, load_config(path), tmp_path / "flower")
    assert list(tmp_path.glob("state-center-1/*/masking.key*")) == []
    coordinate(grid, load_config(path), tmp_path / "flower")
    assert RunFolder(tmp_path / "flower").summary() is not None
