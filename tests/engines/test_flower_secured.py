"""Flower with TLS and node authentication: who is let in, and the example of docs/deployment.md."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedmt.engines.flower.keys import make_keys
from fedmt.engines.flower.processes import Deployment, Started
from fedmt.runs.folder import RunFolder

pytestmark = pytest.mark.slow

HOSPITALS = Path(__file__).parents[2] / "examples" / "hospitals"


def test_the_hospitals(tmp_path) -> None:
    """The tutorial of docs/deployment.md, with TLS, node authentication and data of the centers' own."""
    options = ["--out", str(tmp_path / "out"), "--rounds", "1", "--samples", "40"]
    demo = [sys.executable, str(HOSPITALS / "demo.py"), *options]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("garment", "department", "layer", "Everything that was started has ended."):
        assert word in done.stdout
    metrics = RunFolder(tmp_path / "out" / "coordinator" / "run").metrics()
    assert [m["round"] for m in metrics] == [0, 1]
    centers = metrics[1]["centers"]
    assert set(centers) == {"Berlin", "Lyon", "Oslo"} and not any("left_out" in c for c in centers.values())
    assert "losses" in centers["Oslo"] and "losses" not in centers["Berlin"]  # what each allows
    # What a center keeps is with it, and M-hat is with the coordinator where it was let out.
    assert list((tmp_path / "out" / "lyon" / "state").rglob("round-000001.safetensors"))
    state = RunFolder(tmp_path / "out" / "coordinator" / "run").load()
    assert state is not None
    assert "correspondence" in state.kept["Oslo"] and "correspondence" not in state.kept["Lyon"]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[dict[str, Started]]:
    """Nodes of all kinds at a SuperLink with TLS and node authentication, started together."""
    folder = tmp_path_factory.mktemp("secured")
    keys = folder / "keys"
    make_keys(keys, ["127.0.0.1"], ["known", "unknown"])
    make_keys(folder / "other-keys", ["127.0.0.1"], [])
    center = folder / "center.toml"
    center.write_text('name = "known"\nstate = "state"\nfederation = "none.toml"\n')
    with Deployment(folder, keys) as running:
        running.start_superlink()
        running.register("known")
        wrong = folder / "other-keys" / "ca.crt"
        yield {
            "registered": running.start_supernode("known", center),
            "unregistered": running.start_supernode("unknown", center),
            "wrong authority": running.start_supernode("wrong", center, keys / "known", wrong),
            "plain text": running.start_supernode("plain", center, insecure=True),
        }


def output(node: Started, words: str, patience: float = 90.0) -> str:
    """What a node printed, once these words are in it or the node has ended."""
    deadline = time.monotonic() + patience
    while words not in node.output() and node.running:
        assert time.monotonic() < deadline, f"waited in vain for '{words}':\n{node.output()}"
        time.sleep(0.1)
    return node.output()


def test_a_registered_node_is_let_in(nodes) -> None:
    assert "SuperNode ID" in output(nodes["registered"], "SuperNode ID")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("unregistered", "Failed to initialize the connection"),
        ("wrong authority", "SSL/TLS handshake error"),
        ("plain text", "Connection attempt failed"),
    ],
)
def test_others_are_refused(nodes, kind, words) -> None:
    """An unregistered key, a certificate of another authority and plain text: no node comes of them."""
    printed = output(nodes[kind], words)
    assert words in printed and "SuperNode ID" not in printed
