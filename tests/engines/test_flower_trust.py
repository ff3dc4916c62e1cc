"""Identities, and what an answer from outside can do: attacks on a federation whose names are bound to keys.

The tests use no processes and train on rows of a table, so that an attack costs a fraction of a second.
`test_flower_secured.py` has real nodes with keys.
"""

import json
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedmt.config import load_config
from fedmt.core.errors import FedmtError
from fedmt.data.member import Member
from fedmt.engines.flower import center as center_app
from fedmt.engines.flower import keys as keys_module
from fedmt.engines.flower import roll as roll_module
from fedmt.engines.flower import wire
from fedmt.engines.flower.coordinator import FlowerEngine
from fedmt.engines.flower.identity import signed
from fedmt.engines.flower.keys import fingerprint, make_keys, read_private_key
from fedmt.engines.flower.server import coordinate
from fedmt.engines.flower.settings import CenterSettings
from fedmt.runs.audit import verify
from fedmt.runs.folder import RunFolder

CENTERS = ("Berlin", "Lyon", "Oslo")

FEDERATION = """
input = "vectors"
device = "cpu"
wanted = "kind"
{top}
[model]
backbone = "{backbone}"
[training]
rounds = 2
batch_size = 12
warmup_epochs = 1
batch_norm = "{batch_norm}"
weights = "{weights}"
[spaces]
kind = ["a", "b", "c"]
[reference]
source = "table"
path = "reference.csv"
[deployment]
wait = 0.2
timeout = 1
{deployment}
"""

CENTER = """
[[centers]]
name = "{name}"
source = "remote"
space = "kind"
"""

OWN = """
name = "{name}"
state = "state-{name}"
device = "cpu"
space = "kind"
spaces = {{ kind = ["a", "b", "c"] }}
{more}
[data]
source = "table"
path = "{name}.csv"
"""

Handle = Callable[[Message, Context], Message]
Change = Callable[[dict[str, Any], RecordDict], None]


class Nodes(Grid):
    """Flower's grid without processes, with nodes that have keys. Each answers immediately, by `handle`."""

    def __init__(self) -> None:
        self.files: dict[int, Path] = {}
        self.keys: dict[int, bytes] = {}
        self.handle: Handle = center_app.app
        self.replies: dict[str, Message] = {}
        self.asked: list[tuple[str, int]] = []
        self.round = 0
        self.before_round: Callable[[int], None] = lambda number: None

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
        return [NodeInfo(node_id=n, public_key=self.keys.get(n, b"")) for n in self.files]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            node = message.metadata.dst_node_id
            config = {"center": str(self.files[node])}
            context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
            self.asked.append((message.metadata.message_type, node))
            number = wire.facts_of(message.content)["round"]
            if number > self.round:
                self.round = number
                self.before_round(number)
            self.replies[message.metadata.message_id] = self.handle(message, context)
            yield message.metadata.message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]


@dataclass
class Federation:
    """Files and keys of three centers, and their nodes 1, 2 and 3."""

    folder: Path
    fingerprints: dict[str, str]
    grid: Nodes = field(default_factory=Nodes)

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def public(self, name: str) -> bytes:
        return read_private_key(self.folder / "keys" / name).public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )  # fmt: skip

    def write(
        self,
        keys: bool = True,
        batch_norm: str = "static-reference",
        weights: str = "equal",
        backbone: str = "linear",
        deployment: str = "",
        top: str = "",
        more: str = "",
    ) -> None:
        text = FEDERATION.format(
            batch_norm=batch_norm, weights=weights, backbone=backbone, deployment=deployment, top=top
        )
        for number, name in enumerate(CENTERS, 1):
            text += CENTER.format(name=name) + (f'key = "{self.fingerprints[name]}"\n' if keys else "")
            self.center(name, number, more=more + (f'\nkey = "keys/{name}"' if keys else ""))
        (self.folder / "federation.toml").write_text(text)

    def center(self, name: str, node: int, key: str | None = None, more: str = "") -> Path:
        """A node whose center.toml states `name`, authenticated with the key of `key`."""
        path = self.folder / f"{name}-{node}.toml"
        path.write_text(OWN.format(name=name, more=more))
        self.grid.files[node] = path
        self.grid.keys[node] = self.public(key or name)
        return path

    def run(self) -> list[dict[str, Any]]:
        coordinate(self.grid, load_config(self.folder / "federation.toml"), self.out)
        return [record["centers"] for record in RunFolder(self.out).metrics()]

    def audit(self, event: str) -> list[dict[str, Any]]:
        entries, problems = verify(self.out / "audit.jsonl")
        assert problems == []
        return [entry for entry in entries if entry["event"] == event]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Iterator[tuple[Path, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("trust")
    prints = make_keys(folder / "keys", ["127.0.0.1"], [*CENTERS, "Mallory"])
    for number, name in enumerate(("reference", *CENTERS)):
        rng = np.random.default_rng(number)
        rows = [f"{rng.normal() + i % 3:.3f},{rng.normal():.3f},{'abc'[i % 3]}" for i in range(24)]
        (folder / f"{name}.csv").write_text("\n".join(["age,tsh,label", *rows]) + "\n")
    yield folder, prints


@pytest.fixture
def federation(files, tmp_path, monkeypatch) -> Federation:
    monkeypatch.setattr(roll_module, "POLL", 0.01)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)
    source, prints = files
    for path in source.iterdir():
        (tmp_path / path.name).symlink_to(path)
    made = Federation(tmp_path, prints)
    made.write()
    return made


def left_out(records: list[dict[str, Any]]) -> dict[str, str]:
    """The centers that were left out of the last round, and why."""
    return {name: record["left_out"] for name, record in records[-1].items() if "left_out" in record}


def change(
    federation: Federation, name: str, changed: Change, kind: str = "train",
    rounds: Iterable[int] = (2,), signer: str | None = None,
) -> None:  # fmt: skip
    """Center `name` answers with facts and content changed by `changed`, and signs the answer. signer: the
    center whose key is used instead, or '' for no signature."""

    def handle(message: Message, context: Context) -> Message:
        reply = center_app.app(message, context)
        facts = wire.facts_of(reply.content)
        if (facts["center"], message.metadata.message_type) != (name, kind) or facts["round"] not in rounds:
            return reply
        changed(facts, reply.content)
        if signer != "":
            key = read_private_key(federation.folder / "keys" / (signer or name))
            signed(reply.content, key, facts, message.metadata.message_id)
        return reply

    federation.grid.handle = handle


def put(**facts: Any) -> Callable[[dict[str, Any], RecordDict], None]:
    """Puts these facts into the answer, whether or not JSON can express them."""

    def changed(before: dict[str, Any], content: RecordDict) -> None:
        before.update(facts)
        content["facts"] = ConfigRecord({"json": json.dumps(before)})

    return changed


# -- names follow from keys ---------------------------------------------------------------------------


def test_fingerprints_are_those_of_ssh() -> None:
    """The key and the fingerprint are those that ssh-keygen (OpenSSH 9.2) wrote."""
    line = (
        b"ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBNQfLtnvP5O9tg0f0AeySPMp5Z"
        b"Buf0m+bjLyrWqQ3GPKGe1gf6Hiu+13A2uuY0t9zGMqmVcoFT8X5zJDTGkN0kLYWfMxSnajXVU/oexO4Pr8MYLgw+omO8HAy+dZvNLYbg=="
    )
    key = serialization.load_ssh_public_key(line)
    assert fingerprint(key) == "SHA256:wK2sqqadKN/LZvW0wyZLLwJu+8H+OTekVx54h8pbhTo"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keys", "--host", "example.org:8443"], "--host 'example.org:8443': expected a name in ASCII"),
        (["keys", "--host", "bücher.example"], "--host 'bücher.example': expected a name in ASCII"),
        (["keys", "--center", "Berlin/Mitte"], "'Berlin/Mitte' cannot be used as a file name"),
        (["keys", "--center", "server.key"], "'server.key' cannot be used as a file name"),
        (["keys", "--center", "Lyon", "--center", "Lyon.pub"], "'Lyon.pub' cannot be used as a file name"),
        (["file"], "file: it cannot be written, because"),
        (["made"], "made has keys already"),
    ],
)
def test_mistakes_when_keys_are_made(tmp_path, monkeypatch, capsys, words, said) -> None:
    """Nothing is overwritten, and nothing is made before everything is checked."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    make_keys(Path("made"), [], ["Berlin"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as end:
        keys_module.main(words)
    assert end.value.code == 2 and said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_host_may_have_a_long_name(tmp_path) -> None:
    """The common name of a certificate is limited to 64 characters, and a host's name to 253."""
    host = f"{'a' * 60}.example.org"
    make_keys(tmp_path, [host], [])
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in names.get_values_for_type(x509.DNSName)


def test_a_federation_with_keys(federation) -> None:
    records = federation.run()
    assert len(records) == 3 and left_out(records) == {}
    connected = {entry["center"]: entry["key"] for entry in federation.audit("connected")}
    assert connected == {name: federation.fingerprints[name] for name in CENTERS}
    assert all(entry["signed"] for entry in federation.audit("received"))
    assert len(federation.audit("received")) == 6


def test_an_unknown_key_is_not_asked(federation, caplog) -> None:
    """It is registered at the SuperLink and claims to be Berlin, which is not online."""
    del federation.grid.files[1]
    federation.center("Berlin", 9, key="Mallory", more='key = "keys/Mallory"')
    records = federation.run()
    assert left_out(records) == {"Berlin": "it is not connected"}
    assert 9 not in {node for _, node in federation.grid.asked}
    mallory = federation.fingerprints["Mallory"]
    assert f"node 9: its key {mallory} is not in the federation's config" in caplog.text
    (refused,) = federation.audit("refused")
    assert refused["key"] == mallory and refused["node"] == 9


def test_a_key_of_one_center_does_not_open_the_door_of_another(federation) -> None:
    """Lyon's key is good, but its node claims to be Berlin, which is online."""
    federation.center("Berlin", 2, key="Lyon", more='key = "keys/Lyon"')
    with pytest.raises(FedmtError, match=r"Center 'Lyon': its node answers for center 'Berlin', which has"):
        federation.run()
    assert federation.audit("refused")[0]["center"] == "Lyon"


def test_a_second_node_with_the_same_key_is_refused(federation, caplog) -> None:
    federation.center("Berlin", 9, more='key = "keys/Berlin"')
    assert left_out(federation.run()) == {}
    assert 9 not in {node for _, node in federation.grid.asked}
    assert "node 9: node 1 has the same key, that of center 'Berlin'" in caplog.text


@pytest.mark.parametrize("later", [False, True])
def test_without_keys_a_name_that_is_online_is_not_taken_over(federation, caplog, later) -> None:
    """A second node with the same center.toml starts, then stops. The original continues."""
    federation.write(keys=False, deployment="insecure = true")
    second = federation.folder / "Berlin-1.toml"

    def before_round(number: int) -> None:
        if number == 1 and not later:
            federation.grid.files.pop(9, None)  # it stops
        elif number == 1:
            federation.grid.files[9] = second  # it starts, and is asked before round 2

    federation.grid.before_round = before_round
    if not later:
        federation.grid.files[9] = second
    records = federation.run()
    assert left_out(records) == {}
    assert ("train", 9) not in federation.grid.asked and federation.grid.asked.count(("train", 1)) == 2
    if later:
        assert "node 9: it calls itself 'Berlin', which is node 1" in caplog.text


def test_without_keys_a_node_may_replace_one_that_is_silent_or_gone(federation) -> None:
    federation.write(keys=False, deployment="insecure = true")
    federation.grid.files[9] = federation.grid.files[1]

    def before_round(number: int) -> None:
        if number == 1:
            del federation.grid.files[1]

    federation.grid.before_round = before_round
    federation.run()
    assert ("train", 9) in federation.grid.asked  # it was ignored first, and asked again


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('key = "SHA256:', 'key = "SHA1:', "centers.key: 'SHA1:"),
        ("[deployment]", "[deployment]\ninsecure = true", "but 'Berlin', 'Lyon', 'Oslo' have keys"),
    ],
)
def test_mistakes_with_keys(federation, old, new, said) -> None:
    path = federation.folder / "federation.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(FedmtError) as error:
        federation.run()
    assert said in str(error.value) and "federation.toml" in str(error.value)
    assert not federation.out.exists() and federation.grid.asked == []


def test_keys_are_required_and_distinct(federation) -> None:
    path = federation.folder / "federation.toml"
    keyed = path.read_text()
    federation.write(keys=False)
    with pytest.raises(FedmtError, match=r"no key binds the name of 'Berlin', 'Lyon', 'Oslo'. Give each"):
        federation.run()
    path.write_text(keyed.replace(federation.fingerprints["Lyon"], federation.fingerprints["Berlin"]))
    with pytest.raises(FedmtError, match=r"'Berlin', 'Lyon' have the same key"):
        federation.run()
    assert federation.grid.asked == []


def test_a_key_may_change_when_a_run_goes_on(federation) -> None:
    federation.run()
    path = federation.folder / "federation.toml"
    path.write_text(path.read_text().replace(federation.fingerprints["Oslo"], "SHA256:" + "A" * 43))
    coordinate(federation.grid, load_config(path), federation.out)  # finished, so nothing is asked again


# -- signatures ---------------------------------------------------------------------------------------


def test_an_unsigned_answer_stops_the_run_before_it_begins(federation) -> None:
    federation.center("Berlin", 1)  # its center.toml names no private key
    with pytest.raises(FedmtError, match=r"Center 'Berlin': its answer is not signed; name its private key"):
        federation.run()


def scaled(facts: dict[str, Any], content: RecordDict) -> None:
    update = wire.tensors_of(content, "update")
    content["update"] = wire.record(wire.to_bytes({k: 2 * v for k, v in update.items()}))


@pytest.mark.parametrize("signer", ["", "Lyon", "Mallory"])
def test_a_forged_answer_is_left_out(federation, signer) -> None:
    """Another node sends it under Berlin's id, with Berlin's signature of something else or with its own."""
    change(federation, "Berlin", scaled, signer=signer)
    found = left_out(federation.run())
    assert found == {"Berlin": "its answer is not signed with its own key, or it was changed in transit"}
    assert federation.audit("left out")[0]["center"] == "Berlin"


def test_an_answer_cannot_be_played_again(federation) -> None:
    """Berlin's true answer to round 1 is sent for round 2, with or without the round in it changed."""
    kept: list[RecordDict] = []

    def replay(facts: dict[str, Any], content: RecordDict) -> None:
        if facts["round"] == 1:
            kept.append(RecordDict(dict(content)))
        else:
            for name in kept[0]:
                content[name] = kept[0][name]

    change(federation, "Berlin", replay, rounds=(1, 2), signer="")
    assert "not signed with its own key" in left_out(federation.run())["Berlin"]


def test_a_signature_covers_every_part(federation) -> None:
    def smuggled(facts: dict[str, Any], content: RecordDict) -> None:
        content["extra"] = MetricRecord({"loss": 1.0})

    change(federation, "Berlin", smuggled, signer="")
    assert left_out(federation.run()) == {"Berlin": "a message with a record 'extra' that is not fedmt's"}


# -- whatever an answer does wrong is only its center's problem ---------------------------------------


def deep(facts: dict[str, Any], content: RecordDict) -> None:
    text = json.dumps(facts)[:-1] + ', "deep": ' + "[" * 100_000 + "]" * 100_000 + "}"
    content["facts"] = ConfigRecord({"json": text})


def tensors(name: str, dtype: torch.dtype) -> Callable[[dict[str, Any], RecordDict], None]:
    def changed(facts: dict[str, Any], content: RecordDict) -> None:
        found = wire.tensors_of(content, name) or {"correspondence": torch.full((3, 3), 1 / 3)}
        content[name] = wire.record(safetensors.torch.save({k: v.to(dtype) for k, v in found.items()}))

    return changed


MALFORMED: dict[str, tuple[Callable[[dict[str, Any], RecordDict], None], str]] = {
    "samples": (put(samples=10**400), "a message with a number of 401 digits"),
    "a share": (put(metrics={"confident_share": 10**400}), "a message with a number of 401 digits"),
    "a text for a number": (put(samples="many"), "it reports 'many' samples"),
    "a list for a number": (put(samples=[[]]), "it reports [[]] samples"),
    "not a number": (put(samples=float("nan")), "a message with NaN for a number"),
    "deep": (deep, "a message whose facts are nested too deeply"),
    "long": (put(abstained="x" * (wire.LONGEST + 1)), "characters long"),
    "float8": (tensors("update", torch.float8_e4m3fn), "has tensors of type torch.float8_e4m3fn"),
    "shared float8": (tensors("shared", torch.float8_e4m3fn), "has tensors of type torch.float8_e4m3fn"),
    "no table": (lambda f, c: c.__setitem__("facts", ConfigRecord({"json": "[1]"})), "facts are not a table"),
    "no facts": (lambda f, c: c.__setitem__("facts", ConfigRecord({"text": "{}"})), "without facts"),
    "no tensors": (lambda f, c: c.__setitem__("update", ConfigRecord({"a": 1})), "that is not fedmt's"),
    "metrics": (put(metrics={"losses": {"loss": {}}}), "one of its losses is {}"),
    "unknown kinds": (put(metrics=[1], lost={"a": []}, abstained={"why": [1]}), ""),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_is_left_out(federation, name) -> None:
    """Signed with a good key: the center is registered, but compromised. The others continue."""
    changed, reason = MALFORMED[name]
    federation.write(weights="samples")
    change(federation, "Berlin", changed, signer="" if name in ("no facts", "no tensors") else None)
    records = federation.run()
    found = left_out(records)
    if reason:
        assert reason in found.pop("Berlin")
    assert found == {} and len(records) == 3


def test_an_answer_that_nobody_thought_of_is_left_out(federation, monkeypatch) -> None:
    """Whatever an answer makes the coordinator's own code do, only that center is affected."""
    own = FlowerEngine._shared

    def raising(engine: FlowerEngine, center: Member, found: Any) -> Any:
        if center.name == "Berlin" and engine._number == 2:
            raise ZeroDivisionError
        return own(engine, center, found)

    monkeypatch.setattr(FlowerEngine, "_shared", raising)
    assert left_out(federation.run()) == {"Berlin": "its answer cannot be accepted (ZeroDivisionError)"}


@pytest.mark.parametrize("name", ["samples", "deep", "not a number", "float8"])
def test_malformed_statistics_are_left_out(federation, name) -> None:
    changed, reason = MALFORMED[name]
    if name == "float8":
        changed = tensors("statistics", torch.float8_e4m3fn)
    federation.write(batch_norm="static", backbone="mlp")
    change(federation, "Berlin", changed, "query.statistics", (1,))
    records = federation.run()
    assert reason in records[1]["Berlin"]["left_out_of_statistics"]
    assert "left_out_of_statistics" not in records[2]["Berlin"]


@pytest.mark.parametrize(
    "changed",
    [
        *(put(space=space) for space in (5, [[], {}], ["kind", 5], ["kind"])),
        *(put(**{key: value}) for key in ("version", "model", "shape") for value in ({}, [{}])),
        deep,
        put(samples=10**400),
    ],
)
def test_a_malformed_check_harms_nobody_else(federation, changed, caplog) -> None:
    """A mismatch that can be named is someone's mistake and stops the run. A malformed check does not."""
    change(federation, "Berlin", changed, "query.check", (0,))
    records = federation.run()
    assert left_out(records) == {"Berlin": "it is not connected"}
    assert "the answer of center 'Berlin' to the check is malformed" in caplog.text


def test_an_answer_that_flower_cannot_unpack(federation) -> None:
    class Torn(Nodes):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            found = [self.replies.pop(i) for i in list(message_ids) if i in self.replies]
            if self.round == 2 and found and found[0].metadata.src_node_id == 1:
                raise ValueError("Object content is malformed.")  # as inflate_object_from_contents does
            return found

    torn = Torn()
    torn.files, torn.keys = federation.grid.files, federation.grid.keys
    federation.grid = torn
    assert left_out(federation.run()) == {"Berlin": "its answer cannot be read (ValueError)"}


CLEAR = "down\n\x1b[2J\x1b[31mRound 9: everything is fine\r\n"


@pytest.mark.parametrize("key", ["problem", "abstained", "left_out"])
def test_text_from_a_center_forges_no_line(federation, caplog, key) -> None:
    change(federation, "Berlin", put(**{key: CLEAR}))
    records = federation.run()
    said = r"down\n\x1b[2J\x1b[31mRound 9: everything is fine\r\n"
    assert said in records[-1]["Berlin"].values()
    for record in caplog.records:
        assert record.getMessage().isprintable()
    text = (federation.out / "audit.jsonl").read_text() + (federation.out / "metrics.jsonl").read_text()
    assert "\x1b" not in text


def test_names_of_tensors_forge_no_line(federation, caplog) -> None:
    def renamed(facts: dict[str, Any], content: RecordDict) -> None:
        update = wire.tensors_of(content, "update")
        content["update"] = wire.record(wire.to_bytes({**update, CLEAR: torch.zeros(1)}))

    change(federation, "Berlin", renamed)
    assert left_out(federation.run())["Berlin"].isprintable()
    assert all(record.getMessage().isprintable() for record in caplog.records)


# -- a center's own file and data ---------------------------------------------------------------------


@pytest.mark.parametrize("keys", [True, False])
def test_a_broken_center_file_in_mid_run(federation, caplog, keys) -> None:
    """The coordinator learns only that there was an error, without a path or a word of the parser."""
    federation.write(keys=keys, deployment="" if keys else "insecure = true")
    file = federation.grid.files[1]

    def before_round(number: int) -> None:
        if number == 1:
            file.write_text("name = 'secret-project")
        else:
            file.unlink()

    federation.grid.before_round = before_round
    records = federation.run()
    for number in (1, 2):
        assert records[number]["Berlin"]["left_out"].endswith("its center.toml has a problem")
    assert "Berlin-1.toml" in caplog.text  # it is in the center's own log
    for name in ("metrics.jsonl", "audit.jsonl"):
        text = (federation.out / name).read_text()
        assert "secret" not in text and "toml:" not in text and str(federation.folder) not in text


def test_a_broken_center_file_before_a_run_without_keys(federation) -> None:
    """The owner of the node is unknown, but its problem is reported."""
    federation.write(keys=False, deployment="insecure = true\nmin_centers = 3")
    federation.grid.files[1].write_text("name = 'secret-project")
    with pytest.raises(FedmtError, match=r"'Berlin' had not .* node 1: its center.toml has a problem.$"):
        federation.run()


@pytest.mark.parametrize("kind", ["query.check", "train", "query.statistics"])
@pytest.mark.parametrize("facts", [{}, {"run": {}, "round": []}, {"run": "../..", "round": 1, "plan": 5}])
def test_a_message_that_is_not_fedmts_is_answered_without_a_word_of_why(federation, kind, facts) -> None:
    """Flower would send the text of an exception, with everything in it."""
    message = Message(wire.message(facts), 1, kind)
    message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
    config = {"center": str(federation.grid.files[1])}
    context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})
    reply = center_app.app(message, context)
    said = wire.facts_of(reply.content)
    assert said["center"] == "Berlin" and said["problem"].endswith(("for the reason", "own log"))


def test_data_that_change_between_rounds(federation, caplog) -> None:
    table = federation.folder / "Berlin.csv"
    text = table.read_text()
    table.unlink()
    table.write_text(text)

    def before_round(number: int) -> None:
        if number == 2:
            table.write_text(text.replace(",a\n", ",b\n", 1))  # one label

    federation.grid.before_round = before_round
    records = federation.run()
    assert records[1]["Berlin"].keys() == {"update_norm", "update_cosine"}
    assert left_out(records) == {"Berlin": "its data have changed since the run began"}
    assert "Restore them to continue" in caplog.text


# -- what a plan may name -----------------------------------------------------------------------------

EVIL = """
from pathlib import Path
Path("imported").touch()
from torch import nn

def network(classes, features):
    return nn.Linear(features, classes)
"""


@pytest.mark.parametrize("allow", ["", 'allow = ["built-in", "fedmt_evil:other"]'])
def test_a_plan_does_not_make_a_center_import_code(federation, monkeypatch, allow) -> None:
    """Both the coordinator's and the center's folder have the module, but the center did not allow it."""
    (federation.folder / "fedmt_evil.py").write_text(EVIL)
    monkeypatch.chdir(federation.folder)
    federation.write(backbone="fedmt_evil:network", more=allow)
    imports: list[bool] = []

    def handle(message: Message, context: Context) -> Message:
        (federation.folder / "imported").unlink(missing_ok=True)  # left by the coordinator
        monkeypatch.delitem(sys.modules, "fedmt_evil", raising=False)
        reply = center_app.app(message, context)
        imports.append((federation.folder / "imported").exists())
        return reply

    federation.grid.handle = handle
    with pytest.raises(
        FedmtError, match=r"its center.toml does not allow model.backbone = 'fedmt_evil:network'"
    ):
        federation.run()
    assert imports and not any(imports)
    entries, _ = verify(federation.folder / "state-Berlin" / "audit.jsonl")
    assert [entry["event"] for entry in entries] == ["asked", "refused"]


def test_what_a_center_allows_by_name_is_imported(federation, monkeypatch) -> None:
    (federation.folder / "fedmt_good.py").write_text(EVIL)
    monkeypatch.chdir(federation.folder)
    federation.write(backbone="fedmt_good:network", more='allow = ["built-in", "fedmt_good:network"]')
    assert left_out(federation.run()) == {}


def test_a_center_may_allow_less_than_all_that_is_built_in(federation) -> None:
    federation.write(more='allow = ["linear", "vectors", "fedavgm", "em"]')
    with pytest.raises(FedmtError, match=r"does not allow method.name = 'fedmt'; whoever runs"):
        federation.run()


def test_a_mistake_in_allow(federation) -> None:
    path = federation.center("Berlin", 1, more='allow = ["resnet81"]')
    with pytest.raises(FedmtError, match=r"allow: nothing is called 'resnet81'. Did you mean 'resnet18'\?"):
        CenterSettings.read(path)


def test_the_logs_of_both_sides_agree(federation) -> None:
    """What Berlin logs as sent is what the coordinator logs as received, and the logs contain no values."""
    federation.run()
    entries, problems = verify(federation.folder / "state-Berlin" / "audit.jsonl")
    assert problems == []
    sent = {e["message"]: e["parts"] for e in entries if e["event"] == "sent" and e["kind"] == "train"}
    received = {e["message"]: e["parts"] for e in federation.audit("received") if e["center"] == "Berlin"}
    assert sent == received and len(sent) == 2
    update = next(iter(sent.values()))["update"]
    assert "F32 [3, 2]" in update["tensors"].values() and update["bytes"] > 0
    assert {e["key"] for e in entries if e["event"] == "sent"} == {federation.fingerprints["Berlin"]}
    (began,) = federation.audit("began")
    assert began["keys"] == {name: federation.fingerprints[name] for name in CENTERS}
    assert began["versions"]["flwr"].startswith("1.41")
