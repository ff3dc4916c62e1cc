"""The distributed engine over real SuperLink and SuperNode processes on loopback.

A process starts for every message and takes seconds of one core, so one deployment serves many tests, with
tiny data; `test_flower_in_process.py` has the many combinations. Whatever is started here is ended here.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from fedmt.config import load_config
from fedmt.engines.flower.keys import make_keys
from fedmt.engines.flower.processes import Deployment, Started, alive, write_app
from fedmt.run import run
from fedmt.runs.folder import RunFolder

CONFIG = """
seed = 3
device = "cpu"
[method]
{method}
[aggregation]
{aggregation}
[training]
rounds = 3
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
spaces = {{ {spaces} }}
per_class = 2
samples = 20
test_samples = 50
[deployment]
wait = 120
timeout = {timeout}
"""

TWO = "department = 1, layer = 1"
THREE = "department = 2, layer = 1"

FAULTY_APP = '''
"""A center that can be told to fail: by faults.json beside its center.toml."""
import json, time
from pathlib import Path
from flwr.app import Message
from flwr.clientapp import ClientApp
from fedmt.engines.flower import center, wire

app = ClientApp()
app.query("check")(center.check)
app.query("statistics")(center.statistics)


@app.train()
def train(message, context):
    folder = Path(str(context.node_config["center"])).parent
    facts = wire.facts_of(message.content)
    name = center.find_settings(context).file.name
    fault = json.loads((folder / "faults.json").read_text()).get(name, {}).get(str(facts["round"]))
    if fault == "hang":
        (folder / f"hanging-{name}").touch()
        time.sleep(600)
    reply = center.train(message, context)
    said, update = wire.facts_of(reply.content), wire.tensors_of(reply.content, "update")
    if fault == "late":
        time.sleep(50)
    elif fault == "NaN":
        update = {k: v * float("nan") for k, v in update.items()}
    elif fault == "shapes":
        update = {k: v.flatten()[:1] for k, v in update.items()}
    elif fault == "run":
        said["run"] = "0" * 32
    return Message(wire.message(said, update=wire.to_bytes(update)), reply_to=message)
'''


def write_config(
    path: Path, method: str, aggregation: str = "", batch_norm: str = "static-reference", spaces: str = TWO,
    timeout: int = 120,
) -> Path:  # fmt: skip
    path.write_text(
        CONFIG.format(
            method=method, aggregation=aggregation, batch_norm=batch_norm, spaces=spaces, timeout=timeout
        )
    )
    return path


def write_center(folder: Path, number: int, federation: Path) -> Path:
    path = folder / f"node-{number}.toml"
    path.write_text(
        f'name = "center-{number}"\nstate = "state-{number}"\nfederation = "{federation}"\ndevice = "cpu"\n'
    )
    return path


def until(happened: Callable[[], object], what: str, patience: float = 150.0) -> None:
    deadline = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def finished(started: Started, patience: float = 420.0) -> str:
    """What `flwr run` printed, when the run is over."""
    until(lambda: not started.running, f"the end of the run:\n{started.output()}", patience)
    return started.output()


def assert_same(one: Path, two: Path) -> None:
    a, b = RunFolder(one).load(), RunFolder(two).load()
    assert a is not None and b is not None and a.round == b.round == 3
    assert a.weights.keys() == b.weights.keys()
    assert [k for k in a.weights if not torch.equal(a.weights[k], b.weights[k])] == []


@pytest.fixture(scope="module")
def deployment(tmp_path_factory) -> Iterator[Deployment]:
    """A SuperLink and two nodes."""
    folder = tmp_path_factory.mktemp("deployment")
    write_app(folder / "app")
    federation = write_config(folder / "federation.toml", 'name = "fedmt"')
    with Deployment(folder) as running:
        running.start_superlink()
        for number in (1, 2):
            running.start_supernode(f"node-{number}", write_center(folder, number, federation))
        yield running
        started = [pid for process in running.started for pid in process.family()]
    # Nothing is left behind.
    until(lambda: not any(map(alive, started)), "the end of all processes", 15)


SAME = {
    "FedMT (T)": ('name = "fedmt"\nxi = 0.3', "", "static-reference"),
    "FedRep": ('name = "fedrep"', "", "static-reference"),
    "SCAFFOLD": ('name = "fedmt"\nxi = 0.3', 'name = "scaffold"', "running"),
}


@pytest.mark.parametrize("name", SAME)
def test_same_result(deployment, name) -> None:
    """The local engine and Flower end in the same weights, to the bit."""
    folder = deployment.folder
    key = name.replace(" ", "").lower()
    federation = write_config(folder / f"{key}.toml", *SAME[name])
    run(load_config(federation), folder / f"{key}-local")
    said = finished(deployment.start_run(folder / "app", federation, folder / key, f"run-{key}"))
    assert (folder / key / "summary.json").exists(), said
    assert_same(folder / key, folder / f"{key}-local")


def test_same_result_with_a_coordinator_that_was_killed(deployment) -> None:
    """FedMT (E), with the exchange of statistics. SIGKILL to the SuperLink and the ServerApp after round 1;
    they are started again, go on from there, and nobody can tell from the weights."""
    folder = deployment.folder
    method = 'name = "fedmt"\nxi = 0.05\ncorrespondence = "estimated"\nestimator = "learnable"'
    federation = write_config(folder / "killed.toml", method, batch_norm="static")
    run(load_config(federation), folder / "killed-local")
    first = deployment.start_run(folder / "app", federation, folder / "killed", "run-killed")
    until(lambda: len(RunFolder(folder / "killed").metrics()) > 1, f"round 1:\n{first.output()}")
    assert deployment.superlink is not None
    deployment.superlink.kill()
    first.kill()
    assert len(RunFolder(folder / "killed").metrics()) < 4
    deployment.start_superlink()
    said = finished(deployment.start_run(folder / "app", federation, folder / "killed", "run-again"))
    assert "Going on after round 1 of 3." in said or "Going on after round 2 of 3." in said
    assert_same(folder / "killed", folder / "killed-local")


def test_a_mismatch_stops_the_run(deployment) -> None:
    """The nodes' centers label by department and by layer; this federation says otherwise."""
    folder = deployment.folder
    federation = write_config(folder / "mismatch.toml", 'name = "fedmt"', spaces="layer = 1, department = 1")
    said = finished(deployment.start_run(folder / "app", federation, folder / "mismatch", "run-mismatch"))
    assert (
        "Center 'center-1': it labels in 'department', but the federation's config says 'layer'" in said
        or ("Center 'center-2': it labels in 'layer', but the federation's config says 'department'" in said)
    )
    assert RunFolder(folder / "mismatch").load() is None


def test_faults(deployment) -> None:
    """Each is left out of its round, named, and welcomed back: NaN, wrong shapes, a node that is killed while
    it trains, a late answer, an answer for an unknown run."""
    folder = deployment.folder
    app = write_app(folder / "faulty-app", "faulty-app", center="faulty:app")
    (app / "faulty.py").write_text(FAULTY_APP)
    method = 'name = "fedmt"\nxi = 0.05\ncorrespondence = "estimated"\nestimator = "learnable"'
    federation = write_config(folder / "faults.toml", method, spaces=THREE, timeout=45)
    for number in (1, 2, 3):
        write_center(folder, number, federation)
    faults = {
        "center-1": {"2": "hang"},
        "center-2": {"1": "NaN", "2": "late"},
        "center-3": {"1": "shapes", "3": "run"},
    }
    (folder / "faults.json").write_text(json.dumps(faults))
    deployment.start_supernode("node-3", folder / "node-3.toml")
    started = deployment.start_run(app, federation, folder / "faults", "run-faults")
    until(lambda: (folder / "hanging-center-1").exists(), f"round 2:\n{started.output()}")
    node = next(s for s in deployment.started if s.log.name == "supernode-node-1.log")
    node.kill()
    deployment.start_supernode("node-1", folder / "node-1.toml")
    said = finished(started)
    records = [m["centers"] for m in RunFolder(folder / "faults").metrics()]
    assert len(records) == 4, said
    assert "NaN or Inf" in records[1]["center-2"]["left_out"]
    assert "expected" in records[1]["center-3"]["left_out"]
    assert "no answer within" in records[2]["center-2"]["left_out"]
    assert "left_out" in records[2]["center-1"]
    assert "it answered for run 0000" in records[3]["center-3"]["left_out"]
    for name in ("center-1", "center-2", "center-3"):
        assert f"center '{name}' is left out" in said
    fine = [(1, "center-1"), (2, "center-3"), (3, "center-1"), (3, "center-2")]
    assert [place for place in fine if "left_out" in records[place[0]][place[1]]] == []
    # The killed center went on with the M-hat of round 1: it was asked for it, and had it.
    state = RunFolder(folder / "faults").load()
    assert state is not None and int(state.kept["center-1"]["accepted"]) == 3
    assert len(list((folder / "state-1").rglob("round-000001.safetensors"))) >= 1


# -- TLS and authentication ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("secured")
    make_keys(folder / "keys", ["127.0.0.1"], ["known", "unknown"])
    make_keys(folder / "other-keys", ["127.0.0.1"], ["known"])
    (folder / "center.toml").write_text('name = "known"\nstate = "state"\nfederation = "none.toml"\n')
    with Deployment(folder, folder / "keys") as running:
        running.start_superlink()
        running.register("known")
        yield running


def refused(node: Started, *words: str) -> None:
    """It ends by itself, or keeps being turned away; either way no node."""
    until(
        lambda: not node.running or any(w in node.output() for w in words), f"a refusal:\n{node.output()}", 60
    )
    assert any(w in node.output() for w in words), node.output()
    assert "SuperNode ID" not in node.output()
    node.stop(3)


def test_a_registered_node_is_let_in(secured) -> None:
    node = secured.start_supernode("known", secured.folder / "center.toml")
    until(lambda: "SuperNode ID" in node.output() or not node.running, "the node", 60)
    assert "SuperNode ID" in node.output()
    node.stop(3)


def test_an_unregistered_node_is_refused(secured) -> None:
    node = secured.start_supernode("unknown", secured.folder / "center.toml")
    refused(node, "Failed to initialize the connection")


def test_a_wrong_authority_is_refused(secured) -> None:
    wrong = secured.folder / "other-keys" / "ca.crt"
    node = secured.start_supernode(
        "known-2", secured.folder / "center.toml", key=secured.keys / "known", authority=wrong
    )
    refused(node, "SSL/TLS handshake error", "certificate verify failed")


def test_plain_text_is_refused(secured) -> None:
    node = secured.start_supernode("plain", secured.folder / "center.toml", insecure=True)
    refused(node, "Connection attempt failed", "Failed to initialize the connection")
