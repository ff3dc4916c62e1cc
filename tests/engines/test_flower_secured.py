"""Flower with TLS and node authentication: who is admitted, and the example of docs/guides/deployment.md."""

import http.client
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.common.config import parse_config_args
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from fedmt.core.errors import FedmtError
from fedmt.engines.flower import node
from fedmt.engines.flower.keys import fingerprint, make_keys, read_private_key
from fedmt.engines.flower.processes import Deployment, Started, write_app
from fedmt.runs.audit import verify
from fedmt.runs.folder import RunFolder

pytestmark = pytest.mark.slow

HOSPITALS = Path(__file__).parents[2] / "examples" / "hospitals"


needs_nginx = pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin") is None,
    reason="nginx is not installed (Debian: apt-get install nginx)",
)

FAKETIME = next((str(p) for p in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), "")
needs_faketime = pytest.mark.skipif(
    not FAKETIME, reason="libfaketime is not installed (Debian: apt-get install faketime)"
)


def reached(port: int, path: str, authority: Path) -> int:
    """The status of a request made in the way of Flower's own programs. The path is sent as written."""
    trusted = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusted, timeout=30)
    try:
        connection.request("POST", path, b"", {"Content-Type": PROTOBUF_MEDIA_TYPE})
        return connection.getresponse().status
    finally:
        connection.close()


INSIDE = (
    "/v1/control/list-runs",
    "/v1/control/register-node",
    "/v1/runtime/get-nodes",
    "/v1/runtime/acquire-task",
)
AROUND = (
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "//v1/control/list-runs",
    "/v1/control/list-runs?from=/v1/fleet/",
    "https://127.0.0.1/v1/control/list-runs",
    "/",
)


@dataclass
class Demo:
    """The result of the demo. direct, outside: the status of each path while it trained, at the SuperLink
    itself and through the proxy."""

    out: Path
    said: str
    direct: dict[str, int]
    outside: dict[str, int]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, warm) -> Demo:
    """The tutorial of docs/guides/deployment.md: TLS, node authentication, names bound to keys, secure
    aggregation, and nginx."""
    out = tmp_path_factory.mktemp("hospitals") / "out"
    options = ["--out", str(out), "--rounds", "1", "--samples", "40"]
    program = f"import runpy; runpy.run_path({str(HOSPITALS / 'demo.py')!r}, run_name='__main__')"
    command = [warm / "python-c", program, *options]
    direct: dict[str, int] = {}
    outside: dict[str, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        timer = threading.Timer(400, demo.kill)
        timer.start()
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if line.startswith("round 0"):  # round 1 is running at the hospitals
                ports = {name: int(port) for name, port in re.findall(r"(\w+) on 127.0.0.1:(\d+)", said)}
                authority = out / "keys" / "ca.crt"
                for path in (*INSIDE, *AROUND) if "nginx" in ports else ():
                    direct[path] = reached(ports["SuperLink"], path, authority)
                    outside[path] = reached(ports["nginx"], path, authority)
        timer.cancel()
    assert demo.returncode == 0, said
    return Demo(out, said, direct, outside)


def test_the_hospitals(hospitals: Demo) -> None:
    """The centers use their own data."""
    for word in ("garment", "department", "layer", "Everything that was started has ended."):
        assert word in hospitals.said
    folder = hospitals.out / "coordinator" / "run"
    metrics = RunFolder(folder).metrics()
    assert [m["round"] for m in metrics] == [0, 1]
    centers = metrics[1]["centers"]
    assert set(centers) == {"Berlin", "Lyon", "Oslo"} and not any("left_out" in c for c in centers.values())
    assert all(record == {} for record in centers.values())  # secure aggregation reveals nothing about them
    # What a center keeps stays with it, and the coordinator has M-hat if the center shared it.
    assert list((hospitals.out / "lyon" / "state").rglob("round-000001.safetensors"))
    state = RunFolder(folder).load()
    assert state is not None
    assert "correspondence" in state.kept["Oslo"] and "correspondence" not in state.kept["Lyon"]


def test_the_hospitals_are_known_by_their_keys(hospitals: Demo) -> None:
    """They are the keys that Flower authenticated, and the logs of both sides agree about what was sent."""
    entries, problems = verify(hospitals.out / "coordinator" / "run" / "audit.jsonl")
    assert problems == []
    keys = {e["center"]: e["key"] for e in entries if e["event"] == "connected"}
    own = {n: read_private_key(hospitals.out / "keys" / n).public_key() for n in ("Berlin", "Lyon", "Oslo")}
    assert keys == {name: fingerprint(key) for name, key in own.items()}
    received = {e["center"]: e for e in entries if e["event"] == "received"}
    assert all(e["signed"] for e in received.values())
    for name in own:
        theirs, problems = verify(hospitals.out / name.lower() / "state" / "audit.jsonl")
        assert problems == []
        assert theirs[-1]["event"] == "sent" and theirs[-1]["parts"] == received[name]["parts"]


@needs_nginx
def test_nothing_but_the_fleet_is_reached_while_a_federation_trains(hospitals: Demo) -> None:
    """Tests examples/deployment/nginx.conf. Without it, anyone can list the runs and take the coordinator's
    tasks."""
    assert hospitals.direct["/v1/control/list-runs"] == 200
    assert all(hospitals.direct[path] not in (403, 404) for path in INSIDE)
    assert set(hospitals.outside.values()) == {403}
    log = (hospitals.out / "nginx" / "access.log").read_text()
    assert "POST /v1/fleet/push-messages" in log  # the hospitals went through it
    passed = [line for line in log.splitlines() if " 403 " not in line]
    assert passed and all("/v1/fleet/" in line for line in passed)


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Deployment]:
    """A SuperLink with TLS and node authentication."""
    folder = tmp_path_factory.mktemp("secured")
    make_keys(folder / "keys", ["127.0.0.1"], ["known", "unknown", "dropped"])
    with Deployment(folder, folder / "keys") as running:
        running.start_superlink()
        running.register("known")
        running.register("dropped")
        yield running


@pytest.fixture(scope="module")
def nodes(running) -> dict[str, Started]:
    """Nodes of all kinds, started together. The second node of a key starts once the first is online."""
    folder = running.folder
    make_keys(folder / "other-keys", ["127.0.0.1"], [])
    center = folder / "center.toml"
    center.write_text('name = "known"\nstate = "state"\nfederation = "none.toml"\n')
    known, wrong = folder / "keys" / "known", folder / "other-keys" / "ca.crt"
    started = {
        "registered": running.start_supernode("known", center),
        "unregistered": running.start_supernode("unknown", center),
        "wrong authority": running.start_supernode("wrong", center, known, wrong),
        "plain text": running.start_supernode("plain", center, insecure=True),
    }
    assert "SuperNode ID" in output(started["registered"], "SuperNode ID")
    return {**started, "same key": running.start_supernode("second", center, known)}


def output(node: Started, words: str, patience: float = 90.0) -> str:
    """The output of a node, once it contains these words or the node has ended."""
    deadline = time.monotonic() + patience
    while words not in node.output() and node.running:
        assert time.monotonic() < deadline, f"waited in vain for '{words}':\n{node.output()}"
        time.sleep(0.1)
    return node.output()


def test_a_registered_node_is_let_in(nodes) -> None:
    assert nodes["registered"].running


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("unregistered", "Failed to initialize the connection"),
        ("same key", "Failed to initialize the connection"),
        ("wrong authority", "SSL/TLS handshake error"),
        ("plain text", "Connection attempt failed"),
    ],
)
def test_others_are_refused(nodes, kind, words) -> None:
    """An unregistered key, a certificate of another authority and plain text give no node. Neither does a key
    whose node is online, and that node continues."""
    printed = output(nodes[kind], words)
    assert words in printed and "SuperNode ID" not in printed
    assert nodes["registered"].running


EVIL = '''
"""An app with code in it: the coordinator is compromised."""
import time
from pathlib import Path
from flwr.app import Message, RecordDict, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

HERE = Path("{folder}")
server = ServerApp()
app = ClientApp()

@server.main()
def main(grid, context):
    (node,) = grid.get_node_ids()
    content = RecordDict({{"facts": ConfigRecord({{"json": "{{}}"}})}})
    (sent,) = grid.push_messages([Message(content, node, "query.check")])
    deadline, replies = time.time() + 60, []
    while not replies and time.time() < deadline:
        replies = list(grid.pull_messages([sent]))
        time.sleep(0.2)
    HERE.joinpath("reply").write_text(str(replies and replies[0]))

@app.query("check")
def check(message, context):
    HERE.joinpath("ran").touch()
    return Message(message.content, reply_to=message)
'''


def test_a_file_without_a_certificate_is_named(tmp_path) -> None:
    with pytest.raises(FedmtError, match=r"server\.key: this file has no certificate in PEM format"):
        make_keys(tmp_path, [], [])
        node.check_clock("127.0.0.1:1", tmp_path / "server.key")


def test_code_that_the_coordinator_sends_does_not_run(running, nodes) -> None:
    """Flower would run it, because the app that a coordinator sends names its own ClientApp."""
    folder = running.folder
    app = write_app(folder / "evil-app", "evil-app", "evil:server", "evil:app")
    (app / "evil.py").write_text(EVIL.format(folder=folder))
    started = running.start_run(app, folder / "none.toml", folder / "none", "run-evil")
    deadline = time.monotonic() + 120
    while started.running and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (folder / "reply").exists(), started.output()
    assert "see its own log" in (folder / "reply").read_text()  # fedmt's answer
    assert not (folder / "ran").exists()


def test_a_node_runs_no_other_task(tmp_path) -> None:
    programs = node.write_programs(tmp_path / "programs")
    assert {path.name for path in programs.iterdir()} == set(TASK_TYPE_TO_COMMAND.values())
    for name in set(node.PROGRAMS) - {node.OWN}:
        done = subprocess.run([programs / name], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "it was rejected" in done.stderr


@pytest.mark.parametrize(("seconds", "said"), [(60, "ahead of"), (-400, "behind"), (3, ""), (-290, "")])
def test_a_wrong_clock_is_named_before_flower_refuses_it(running, monkeypatch, seconds, said) -> None:
    right = time.time
    monkeypatch.setattr(node.time, "time", lambda: right() + seconds)
    words = ["--superlink", f"127.0.0.1:{running.port}", "--root-certificates", str(running.keys / "ca.crt")]
    started: list[list[str]] = []
    monkeypatch.setenv("FLWR_HOME", str(running.folder / "home"))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # to be restored
    monkeypatch.setattr(node.os, "execv", lambda program, words: started.append(words))
    if said:
        with pytest.raises(FedmtError, match=rf"clock is about \d+ s {said} the coordinator's"):
            node.check_clock(f"127.0.0.1:{running.port}", running.keys / "ca.crt")
        with pytest.raises(SystemExit):
            node.main(words)
        assert started == []
    else:
        node.main(words)
        assert started == [[sys.executable, "-m", "fedmt.engines.flower.supernode", *words]]


@needs_faketime
@pytest.mark.parametrize(("shift", "said"), [("+60s", "60 s ahead of"), ("-400s", "400 s behind")])
def test_a_node_on_a_machine_with_a_wrong_clock_says_so(running, monkeypatch, shift, said) -> None:
    """Tests the real process of a center with a shifted system clock. At -400 s, the
    certificate of this test is not yet valid."""
    monkeypatch.setitem(running.environment, "FAKETIME", shift)
    monkeypatch.setitem(running.environment, "LD_PRELOAD", FAKETIME)
    started = running.start_supernode(
        f"wrong-clock{shift}", running.folder / "none.toml", running.keys / "known"
    )
    printed = output(started, "the coordinator's")
    number, words = said.split(" ", 1)
    found = re.search(rf"clock is about (\d+) {words} the coordinator's", printed)
    assert found and abs(int(found[1]) - int(number)) <= 3, printed
    assert started.process.wait(30) == 2 and "terminated gracefully" not in printed


class Line:
    """A network between a node and the SuperLink. It breaks in the way of a proxy that is reconfigured: it no
    longer speaks TLS."""

    def __init__(self, port: int) -> None:
        self.broken = False
        self._to = port
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self.broken = True
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            if self.broken:
                near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._to))
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)


def test_a_node_that_gives_up_its_connection_ends(running) -> None:
    """Flower's own process would stay, so no supervisor would start the node again. This is the last test of
    `running`, because the SuperLink takes this node for one that is online for a while."""
    line = Line(running.port)
    center = running.folder / "dropped.toml"
    center.write_text('name = "dropped"\nstate = "state"\nfederation = "none.toml"\n')
    started = running.start_supernode("dropped", center, port=line.port)
    assert "SuperNode ID" in output(started, "SuperNode ID")
    line.cut()
    assert started.process.wait(60) == 1
    assert "so that a supervisor starts it again" in started.output()


def test_the_tolerances_are_flowers() -> None:
    assert (node.AHEAD, node.BEHIND) == (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)


@pytest.mark.parametrize(
    ("unit", "program", "parser"),
    [
        ("fedmt-superlink", "/opt/fedmt/bin/flower-superlink", _parse_args_run_superlink),
        ("fedmt-center", "/opt/fedmt/bin/python -m fedmt.engines.flower.node", _parse_args_run_supernode),
    ],
)
def test_the_units_of_systemd(unit, program, parser) -> None:
    """The units contain commands that Flower understands."""
    text = (HOSPITALS.parent / "deployment" / f"{unit}.service").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert command.startswith(program)
    given = parser().parse_args(shlex.split(command.removeprefix(program)))
    assert given.host == "127.0.0.1" and not given.insecure
    if unit == "fedmt-center":
        assert parse_config_args([given.node_config]) == {"center": "/etc/fedmt/center.toml"}
    else:
        assert given.enable_supernode_auth
