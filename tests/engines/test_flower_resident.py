"""A center's resident process and the relay to it. `test_flower_processes.py` tests them in a federation."""

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmt.engines.flower import clientapp, node, resident
from fedmt.engines.flower.clientapp import OTHER, Residence, relay

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each message has its own process")

CENTER = 'name = "Berlin"\nstate = "{state}"\n'


@pytest.fixture
def center(tmp_path) -> Path:
    """A center whose state folder has too long a path for a socket."""
    path = tmp_path / "center.toml"
    path.write_text(CENTER.format(state=f"state-{'x' * 100}"))
    return path


@dataclass
class Serving:
    """A resident in a thread of this process. node: close it to end the node. answered: past requests."""

    home: Residence
    node: int
    answered: list[Sequence[str]]
    ended: list[str]
    thread: threading.Thread

    def ask(self, *arguments: str) -> bytes:
        connection = self.home.connect()
        assert connection is not None
        return self.home.ask(connection, arguments, os.memfd_create("message"))


@pytest.fixture
def serving(center, monkeypatch) -> Iterator[Callable[..., Serving]]:
    """Starts a resident. idle: in seconds. code: the code that it is loaded from."""
    started: list[Serving] = []

    def start(idle: float = 60.0, code: resident.Code | None = None) -> Serving:
        home = Residence(str(center), center.read_text(), os.getpid())
        reading, writing = os.pipe()
        answered: list[Sequence[str]] = []
        ended: list[str] = []

        def talk(arguments: Sequence[str], copy: Path) -> int:
            answered.append(arguments)
            copy.write_text("the message")
            return int(arguments[0])

        def begin(command: list[str], **_: object) -> None:
            listening = resident.socket.socket(fileno=os.dup(int(command[4])))
            who = {"center": command[3], "file": center.read_text(), "node": int(command[5])}

            def run() -> None:
                with listening:
                    ended.append(resident.serve(listening, who, reading, idle, talk, code or resident.Code()))

            serving.thread = threading.Thread(target=run, daemon=True)
            serving.thread.start()

        serving = Serving(home, writing, answered, ended, threading.Thread())
        monkeypatch.setattr(clientapp.subprocess, "Popen", begin)
        connection = home.start()
        assert connection is not None
        connection.close()  # a relay that was killed before it asked
        started.append(serving)
        return serving

    yield start
    for one in started:
        os.close(one.node)
        one.thread.join(10)
        assert not one.thread.is_alive()


def test_one_process_answers_message_after_message(serving) -> None:
    one = serving()
    assert [one.ask("0", "first"), one.ask("1", "second")] == [b"0", b"1"]
    assert one.answered == [["0", "first"], ["1", "second"]]


def test_it_ends_when_it_is_idle(serving) -> None:
    one = serving(idle=0.05)
    one.thread.join(10)
    assert one.ended == ["no message came for 0.05 s"] and one.home.connect() is None


def test_it_ends_with_its_node(serving) -> None:
    one = serving()
    os.close(one.node)
    one.thread.join(10)
    assert one.ended == ["its node ended"]
    one.node = os.open(os.devnull, os.O_RDONLY)


@pytest.mark.parametrize("of", ["center", "file", "node"])
def test_one_of_another_center_or_node_is_replaced(serving, of) -> None:
    one = serving()
    before = getattr(one.home, of)
    setattr(one.home, of, 1 if of == "node" else "other")
    assert one.ask("0") == OTHER and one.answered == []
    one.thread.join(10)
    setattr(one.home, of, before)
    assert one.home.connect() is None  # the next relay starts another


def test_one_whose_code_has_changed_is_replaced(serving, tmp_path, monkeypatch) -> None:
    """A change of the center's own module counts too, even if a message was the first to import it."""
    source = tmp_path / "own_network.py"
    source.write_text("width = 1\n")
    spec = importlib.util.spec_from_file_location("own_network", source)
    assert spec is not None
    code = resident.Code()
    one = serving(code=code)
    monkeypatch.setitem(sys.modules, "own_network", importlib.util.module_from_spec(spec))
    assert [one.ask("0"), one.ask("0")] == [b"0", b"0"]
    source.write_text("width = 22\n")
    assert one.ask("0") == OTHER


def test_strangers(serving, monkeypatch) -> None:
    """Neither side communicates with another user."""
    one = serving()
    monkeypatch.setattr(resident, "owner", lambda connection: os.geteuid() + 1)
    assert one.ask("0") == b"" and one.answered == []
    monkeypatch.setattr(clientapp, "owner", lambda connection: os.geteuid() + 1)
    with pytest.raises(PermissionError, match="another user's"):
        one.home.connect()


def test_a_folder_that_others_can_enter_is_not_used(center) -> None:
    home = Residence(str(center), center.read_text(), 1)
    assert os.fstat(home.folder).st_mode & 0o777 == 0o700
    os.fchmod(home.folder, 0o755)
    with pytest.raises(PermissionError, match="open to others"):
        Residence(str(center), center.read_text(), 1)


def test_the_end_of_a_relay_is_noticed_while_its_message_is_answered() -> None:
    ends = threading.Event()
    mine, theirs = resident.socket.socketpair()
    alive, _ = os.pipe()
    stop = resident.watch(alive, mine, ends.set)
    theirs.close()
    assert ends.wait(10)
    stop()
    mine.close()


RESIDENT = """#!{python} -IS
import os, signal, socket, sys
print("started", file=open("{log}", "a"))
relay, _ = socket.socket(fileno=int(sys.argv[4])).accept()
_, files, _, _ = socket.recv_fds(relay, 1 << 20, 1)
seen = os.fstat(files[0]).st_size
{does}
"""


@pytest.mark.parametrize(
    ("does", "more", "status", "starts"),
    [
        ("relay.send(b'0')", "", 0, 1),
        # It fails before it has the message, which can then be answered elsewhere.
        ("os.kill(os.getpid(), signal.SIGKILL)", "", None, 2),
        # It fails with the message, so the next one gets it. That one fails too, and the message is given up.
        ("os.write(files[0], b'message'); os.kill(os.getpid(), signal.SIGKILL)", "", 1, 2),
        ("relay.send(b'0') if seen else os.write(files[0], b'message')", "", 0, 2),
        # A private center has paid for the round.
        ("relay.send(b'0') if seen else os.write(files[0], b'message')", "[privacy]", 1, 1),
        ("", "resident = 0", None, 0),
    ],
)
def test_a_killed_resident(center, tmp_path, monkeypatch, does, more, status, starts) -> None:
    log, program = tmp_path / "log", tmp_path / "resident"
    program.write_text(RESIDENT.format(python=sys.executable, log=log, does=does))
    program.chmod(0o700)
    center.write_text(center.read_text() + more)
    monkeypatch.setenv(clientapp.CENTER, str(center))
    monkeypatch.setattr(sys, "executable", str(program))
    assert relay(["--parent-pid", str(os.getpid())]) == status
    assert (log.read_text().count("started") if log.exists() else 0) == starts


def test_a_busy_resident_is_not_waited_for(center, monkeypatch) -> None:
    first, second = (Residence(str(center), center.read_text(), 1) for _ in range(2))
    assert first.take() and second.take() and first.path[-1] + second.path[-1] == "12"
    monkeypatch.setenv(clientapp.CENTER, str(center))
    assert relay(["--parent-pid", "1"]) is None
    monkeypatch.delenv(clientapp.CENTER)
    assert relay([]) is None  # not started by fedmt's node


def test_a_resident_that_cannot_be_had_is_done_without(center, monkeypatch, capsys) -> None:
    """The same holds for a broken center.toml, which the center's own process reports to the coordinator."""
    run: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["clientapp", "--parent-pid", "1"])
    monkeypatch.setattr(clientapp.os, "execv", lambda program, words: run.append(words))
    monkeypatch.setenv(clientapp.CENTER, str(center))
    center.write_text("name = ")
    with pytest.raises(SystemExit):
        clientapp.main()
    assert run == [[sys.executable, "-m", "fedmt.engines.flower.conversation", "--parent-pid", "1"]]
    assert "answering without a resident process (Invalid value" in capsys.readouterr().err


def test_the_relay_imports_nothing_but_pythons_own() -> None:
    code = f"import runpy, sys; runpy.run_path({clientapp.__file__!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert imported - {"__main__"} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("config", "center"),
    [
        ('center="/data/my center.toml" x=1', "/data/my center.toml"),
        ("x=1 center='~/center.toml'", "~/center.toml"),
        ('my-center="/data/other.toml"', None),
    ],
)
def test_a_node_tells_its_programs_of_its_own_center(tmp_path, monkeypatch, config, center) -> None:
    monkeypatch.setattr(os, "execvp", lambda *_: None)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # to be restored
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv(clientapp.CENTER, "of another node")
    node.main(["--superlink", "127.0.0.1:1", "--insecure", "--node-config", config])
    assert os.environ.get(clientapp.CENTER) == center
    assert os.environ["PATH"].endswith(f"{os.pathsep}{Path(sys.executable).parent}")
    program = (tmp_path / "fedmt-programs" / node.OWN).read_text()
    assert f"-IS {clientapp.__file__}" in program
