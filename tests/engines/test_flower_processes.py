"""The distributed engine over real SuperLink and SuperNode processes on loopback.

The centers' nodes are fedmt's own, so each center has a resident process. All other processes are Flower's
commands. One deployment serves many tests, with tiny data and few rounds. `test_flower_in_process.py` has the
many combinations. Two rounds show what a center remembers, because the second one starts with what the first
left on its disk. FedMT runs with a given correspondence in the simulation, and with an estimated one in the
test that kills the coordinator. All processes are ended.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from fedmt.config import load_config
from fedmt.engines.flower.processes import Deployment, Started, alive, residents, write_app
from fedmt.runs.audit import verify
from fedmt.runs.folder import RunFolder
from fedmt.training.run import run

pytestmark = pytest.mark.slow

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
insecure = true
wait = 300
timeout = {timeout}
"""

TWO = "department = 1, layer = 1"
THREE = "department = 2, layer = 1"

FAULTY_CENTERS = '''
"""Python imports this when it starts: centers that can be told to fail, by faults.json beside center.toml."""
import json, os, signal, sys, time
from pathlib import Path


def install():
    from flwr.app import Message
    from fedmt.engines.flower import center, task, wire

    def train(message, context):
        folder = Path(str(context.node_config["center"])).parent
        facts = wire.facts_of(message.content)
        name = task.find_settings(context).file.name
        faults = json.loads((folder / "faults.json").read_text())
        fault = faults.get(name, {}).get(str(facts["round"]))
        if fault == "hang":
            (folder / f"hanging-{name}").touch()
            time.sleep(600)
        reply = center.train(message, context)
        if fault is None:
            return reply
        if fault == "killed":
            killed = folder / f"killed-{name}"
            if not killed.exists():
                killed.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return reply
        said, update = wire.facts_of(reply.content), wire.tensors_of(reply.content, "update")
        if fault == "late":
            time.sleep(35)
        elif fault == "NaN":
            update = {k: v * float("nan") for k, v in update.items()}
        elif fault == "shapes":
            update = {k: v.flatten()[:1] for k, v in update.items()}
        elif fault == "run":
            said["run"] = "0" * 32
        return Message(wire.message(said, update=wire.to_bytes(update)), reply_to=message)

    center.app._registered_funcs["train.default"] = train


if "fedmt.engines.flower.resident" in sys.orig_argv or "fedmt.engines.flower.conversation" in sys.orig_argv:
    install()
'''


def write_config(
    path: Path, method: str, aggregation: str = "", batch_norm: str = "static-reference", spaces: str = TWO,
    timeout: int = 300, rounds: int = 2,
) -> Path:  # fmt: skip
    path.write_text(
        CONFIG.format(
            method=method,
            aggregation=aggregation,
            batch_norm=batch_norm,
            spaces=spaces,
            timeout=timeout,
            rounds=rounds,
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
    """The output of `flwr run`, once the run is over."""
    until(lambda: not started.running, f"the end of the run:\n{started.output()}", patience)
    return started.output()


def assert_same(one: Path, two: Path) -> None:
    a, b = RunFolder(one).load(), RunFolder(two).load()
    assert a is not None and b is not None and a.round == b.round == 2
    assert a.weights.keys() == b.weights.keys()
    assert [k for k in a.weights if not torch.equal(a.weights[k], b.weights[k])] == []


# This runs before the deployment exists, whose idle processes would slow it down.
def test_simulation(tmp_path) -> None:
    """`flwr run` on Flower's simulation engine gives the same weights again."""
    federation = write_config(tmp_path / "federation.toml", 'name = "fedmt"\nxi = 0.3', batch_norm="static")
    run(load_config(federation), tmp_path / "local")
    with Deployment(tmp_path) as running:
        running.start_superlink(simulation=True)
        options = ["--federation-config", "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=1"]
        app, out = write_app(tmp_path / "app"), tmp_path / "runs" / "simulated"
        said = finished(running.start_run(app, federation, out, more=options))
    assert (out / "summary.json").exists(), said
    assert_same(out, tmp_path / "local")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory) -> Iterator[Deployment]:
    """A SuperLink and two nodes, with centers that fail as faults.json tells them."""
    folder = tmp_path_factory.mktemp("deployment")
    write_app(folder / "app")
    (folder / "faults.json").write_text("{}")
    (folder / "python").mkdir()
    (folder / "python" / "sitecustomize.py").write_text(FAULTY_CENTERS)
    federation = write_config(folder / "federation.toml", 'name = "fedmt"')
    with Deployment(folder) as running:
        paths = [str(folder / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        running.environment["PYTHONPATH"] = os.pathsep.join(paths)
        running.start_superlink()
        for number in (1, 2):
            running.start_supernode(f"node-{number}", write_center(folder, number, federation))
        yield running
        started = [pid for process in running.started for pid in process.family()] + residents(folder)
    # No process is left behind.
    until(lambda: not any(map(alive, started)), "the end of all processes", 15)


@pytest.fixture(scope="module")
def side_by_side(deployment) -> dict[str, Started]:
    """Two runs at once on the same nodes, because this is faster. The runs are independent of each other."""
    folder = deployment.folder
    (folder / "faults.json").write_text(json.dumps({"center-2": {"1": "killed"}}))
    federation = write_config(
        folder / "kept.toml", 'name = "fedrep"', 'name = "scaffold"', batch_norm="running"
    )
    started = {"kept": deployment.start_run(folder / "app", federation, folder / "kept", "run-kept")}
    # The nodes' centers label by department and by layer, but this federation says otherwise.
    federation = write_config(folder / "mismatch.toml", 'name = "fedmt"', spaces="layer = 1, department = 1")
    started["mismatch"] = deployment.start_run(
        folder / "app", federation, folder / "mismatch", "run-mismatch"
    )
    return started


def test_same_result(deployment, side_by_side) -> None:
    """The weights of the local engine and of Flower are bit-identical. FedRep with SCAFFOLD is the pair that
    keeps most on the centers' disks: heads and control variates. The process of one center is killed at the
    end of its part of round 1, before it can answer, and a new process takes over its message."""
    folder = deployment.folder
    said = finished(side_by_side["kept"])
    assert (folder / "kept" / "summary.json").exists(), said
    assert not alive(int((folder / "killed-center-2").read_text()))
    centers = RunFolder(folder / "kept").metrics()[1]["centers"]
    assert not any("left_out" in record for record in centers.values()), said
    run(load_config(folder / "kept.toml"), folder / "kept-local")
    assert_same(folder / "kept", folder / "kept-local")


def test_two_nodes_on_one_machine_do_not_mix_up_their_centers(deployment, side_by_side) -> None:
    """They have the same home and the same user. Each has a resident process, which alone wrote its log."""
    folder = deployment.folder
    finished(side_by_side["kept"])
    commands = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in residents(folder)]
    assert sorted({words[3] for words in commands}) == [str(folder / f"node-{n}.toml") for n in (1, 2)]
    assert len({words[5] for words in commands}) == 2  # the nodes whose end ends them
    sent = []
    for number in (1, 2):
        entries, problems = verify(folder / f"state-{number}" / "audit.jsonl")
        assert problems == []
        sent.append({e["message"] for e in entries if e["event"] == "sent"})
        assert (folder / f"state-{number}" / "resident").stat().st_mode & 0o777 == 0o700
    assert sent[0] and sent[1] and not sent[0] & sent[1]
    # According to the coordinator's log, each message went to the center whose own log has the answer.
    entries, _ = verify(folder / "kept" / "audit.jsonl")
    for number, messages in zip((1, 2), sent, strict=True):
        asked = {
            e["message"] for e in entries if e["event"] == "received" and e["center"] == f"center-{number}"
        }
        assert asked and asked <= messages


def test_a_mismatch_stops_the_run(deployment, side_by_side) -> None:
    said = finished(side_by_side["mismatch"])
    reasons = (
        "Center 'center-1': it labels in 'department', but the federation's config says 'layer'",
        "Center 'center-2': it labels in 'layer', but the federation's config says 'department'",
    )
    assert any(reason in said for reason in reasons), said
    assert RunFolder(deployment.folder / "mismatch").load() is None


def test_same_result_with_a_coordinator_that_was_killed(deployment) -> None:
    """FedMT (E) with the exchange of statistics. SIGKILL ends the SuperLink and the ServerApp after round 1.
    They are started again and continue from there, and the weights are the same."""
    folder = deployment.folder
    method = (
        'name = "fedmt"\nxi = 0.05\ncorrespondence = "estimated"\nestimator = "learnable"\nprojection = "all"'
    )
    federation = write_config(folder / "killed.toml", method, batch_norm="static")
    run(load_config(federation), folder / "killed-local")
    first = deployment.start_run(folder / "app", federation, folder / "killed", "run-killed")

    def saved() -> bool:
        """Metrics are written before the checkpoint. If killed in between, a run continues after round 0."""
        state = RunFolder(folder / "killed").load()
        return state is not None and state.round >= 1

    until(saved, f"round 1:\n{first.output()}")
    assert deployment.superlink is not None
    deployment.superlink.kill()
    first.kill()
    assert len(RunFolder(folder / "killed").metrics()) < 3
    deployment.start_superlink()
    said = finished(deployment.start_run(folder / "app", federation, folder / "killed", "run-again"))
    assert "Continuing after round 1 of 2." in said
    assert_same(folder / "killed", folder / "killed-local")


def test_faults(deployment) -> None:
    """Each center is left out of its round, named, and accepted again later. The faults are NaN, wrong
    shapes, a node that is killed while it trains, a late answer, and an answer for an unknown run."""
    folder = deployment.folder
    method = (
        'name = "fedmt"\nxi = 0.05\ncorrespondence = "estimated"\nestimator = "learnable"\nprojection = "all"'
    )
    federation = write_config(folder / "faults.toml", method, spaces=THREE, timeout=30, rounds=3)
    for number in (1, 2, 3):
        write_center(folder, number, federation)
    faults = {
        "center-1": {"2": "hang"},
        "center-2": {"1": "NaN", "2": "late"},
        "center-3": {"1": "shapes", "3": "run"},
    }
    (folder / "faults.json").write_text(json.dumps(faults))
    deployment.start_supernode("node-3", folder / "node-3.toml")
    started = deployment.start_run(folder / "app", federation, folder / "faults", "run-faults")
    until(lambda: (folder / "hanging-center-1").exists(), f"round 2:\n{started.output()}")
    node = next(s for s in deployment.started if s.log.name == "supernode-node-1.log")
    hanging = [pid for pid in residents(folder) if "node-1.toml" in Path(f"/proc/{pid}/cmdline").read_text()]
    node.kill()
    until(lambda: not any(map(alive, hanging)), "the end of the resident of the killed node", 15)
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
    # The killed center continued with the M-hat of round 1, which it was asked for and still had.
    state = RunFolder(folder / "faults").load()
    assert state is not None and int(state.kept["center-1"]["accepted"]) == 3
    assert len(list((folder / "state-1").rglob("round-000001.safetensors"))) >= 1
