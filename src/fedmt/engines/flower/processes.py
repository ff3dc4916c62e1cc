"""A whole deployment on one machine: the processes that run on many (docs/guides/deployment.md).

For the demo, the tests and the benchmark. Every process is one of Flower's commands, with telemetry, update
checks and the installation of packages at run time off; all listen only on 127.0.0.1. On exit, every process
that was started here is ended, and no other.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import tomli_w

HOST = "127.0.0.1"

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""The environment of every Flower process: nothing calls out, and nothing is installed."""

APP = """\
[project]
name = "{name}"
version = "1.0.0"
description = "fedmt over Flower: no code of its own, all of it is installed."
license = "Apache-2.0"
dependencies = ["fedmt[flower]"]

[tool.flwr.app]
publisher = "fedmt"

[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "{center}"

[tool.flwr.app.config]
federation = ""
out = ""
"""


def write_app(
    folder: Path,
    name: str = "fedmt-app",
    server: str = "fedmt.engines.flower.server:app",
    center: str = "fedmt.engines.flower.center:app",
) -> Path:
    """The folder that `flwr run` takes. It names fedmt's apps and contains no code."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(APP.format(name=name, server=server, center=center))
    return folder


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        port: int = listening.getsockname()[1]
        return port


class Started:
    """One process with its log file, and whatever it starts."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path
    ) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def family(self) -> list[int]:
        """This process, its children, theirs, and so on."""
        return family(self.process.pid)

    def kill(self) -> None:
        """Sends SIGKILL to the process and everything it started, like a power cut."""
        end(self.family(), signal.SIGKILL)
        self.process.wait()

    def stop(self, patience: float = 10.0) -> None:
        """Sends SIGTERM and, after a while, SIGKILL to whatever is left."""
        started = self.family()
        if self.running:
            self.process.terminate()
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and (self.running or any(map(alive, started[1:]))):
            time.sleep(0.1)
        end([pid for pid in started if alive(pid)], signal.SIGKILL)
        self.process.wait()


def end_with_parent() -> None:
    """Called in a new process: makes it end when its parent ends, for whatever reason (Linux)."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def family(pid: int) -> list[int]:
    """A process and its descendants, read from /proc (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for known in found:
        found += children.get(known, [])
    return found


def residents(folder: Path) -> list[int]:
    """The resident processes of centers whose center.toml is in this folder or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_text().split("\0") if entry.name.isdigit() else []
            if "fedmt.engines.flower.resident" in words and folder in Path(words[3]).parents:
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Deployment:
    """A SuperLink, SuperNodes and runs, in their own folder.

    keys: a folder that `keys.make_keys` filled. Without it, everything is in plain text, for tests of other
    features.
    """

    def __init__(
        self, folder: Path, keys: Path | None = None, threads: int = 1, database: Path | None = None
    ) -> None:
        self.folder, self.keys = folder, keys
        self.database = database or folder / "superlink.db"
        self.port = free_port()
        self.home = folder / ".flwr"
        self.home.mkdir(parents=True, exist_ok=True)
        connection: dict[str, object] = {"address": f"{HOST}:{self.port}"}
        if keys is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str((keys / "ca.crt").resolve())
        (self.home / "config.toml").write_text(
            tomli_w.dumps({"superlink": {"default": "here", "here": connection}})
        )
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # Flower's default is 1; the environment may set it
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self.home),
            "OMP_NUM_THREADS": str(threads),
            "PATH": programs,
        }
        self._stack = ExitStack()
        self.started: list[Started] = []
        self.superlink: Started | None = None
        self.proxy: int | None = None
        """The port of the proxy if there is one, because nodes connect through it."""

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(self, name: str, command: Sequence[str]) -> Started:
        started = Started(command, self.folder / f"{name}.log", self.environment, self.folder)
        self._stack.callback(started.stop)
        self.started.append(started)
        return started

    def start_superlink(self, simulation: bool = False, patience: float = 90.0) -> Started:
        """Its state is in a file, so nodes stay registered when it is killed and started again.

        simulation: it runs the centers itself on Flower's simulation engine, without SuperNodes.
        """
        command = ["flower-superlink", "--host", HOST, "--port", str(self.port)]
        command += ["--database", str(self.database)]
        command += ["--disable-runtime-dependency-installation"]
        if simulation:
            command += ["--simulation"]
        if self.keys is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(self.keys / "ca.crt")]
            command += ["--ssl-certfile", str(self.keys / "server.pem")]
            command += ["--ssl-keyfile", str(self.keys / "server.key"), "--enable-supernode-auth"]
        self.superlink = self.start("superlink", command)
        self._until_open(self.superlink, self.port, "The SuperLink", patience)
        return self.superlink

    def start_proxy(self, server: Path, patience: float = 20.0) -> Started:
        """nginx in front of the SuperLink. server: its file for real machines
        (examples/deployment/nginx.conf), here with the ports and keys of this deployment."""
        assert self.keys is not None
        folder = self.folder / "nginx"
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        text = server.read_text().replace("/etc/fedmt", str(self.keys.resolve()))
        text = text.replace("127.0.0.1:8000", f"{HOST}:{self.port}").replace("8443", f"{HOST}:{port}")
        (folder / "server.conf").write_text(text)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
        # One process in the foreground, which writes only here and ends when it is told to.
        (folder / "nginx.conf").write_text(
            f"daemon off;\nmaster_process off;\npid {folder / 'pid'};\nerror_log stderr;\nevents {{}}\n"
            f"http {{\naccess_log {folder / 'access.log'};\n{places}include {folder / 'server.conf'};\n}}\n"
        )
        nginx = shutil.which("nginx", path=f"{self.environment['PATH']}{os.pathsep}/usr/sbin")
        if nginx is None:
            raise RuntimeError("nginx is not installed (Debian: apt-get install nginx).")
        started = self.start("nginx", [nginx, "-e", "stderr", "-c", str(folder / "nginx.conf")])
        self._until_open(started, port, "nginx", patience)
        self.proxy = port
        return started

    def _until_open(self, started: Started, port: int, what: str, patience: float) -> None:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and started.running:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{what} did not start:\n{started.output()}")

    def start_supernode(
        self,
        name: str,
        center: Path,
        key: Path | None = None,
        authority: Path | None = None,
        insecure: bool | None = None,
        config: str = "",
        port: int | None = None,
        own: bool = True,
    ) -> Started:
        """key, authority, insecure: values other than the deployment's own, to show that they are rejected.
        config: more for --node-config. port: the port of the SuperLink, if it is not reached directly. own:
        run only fedmt, unlike Flower's own node, which runs what the coordinator sends."""
        command = [sys.executable, "-m", "fedmt.engines.flower.node"] if own else ["flower-supernode"]
        command += ["--superlink", f"{HOST}:{port or self.proxy or self.port}"]
        command += ["--host", HOST, "--port", str(free_port())]
        command += ["--node-config", f'center="{center}" {config}'.strip()]
        if insecure if insecure is not None else self.keys is None:
            command += ["--insecure"]
        else:
            assert self.keys is not None
            command += ["--root-certificates", str(authority or self.keys / "ca.crt")]
            command += ["--auth-supernode-private-key", str(key or self.keys / name)]
        return self.start(f"supernode-{name}", command)

    def flwr(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """One call of the `flwr` command."""
        return subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def register(self, name: str) -> None:
        """Registers a center's public key."""
        assert self.keys is not None
        done = self.flwr("supernode", "register", str(self.keys / f"{name}.pub"), "here")
        if done.returncode:
            raise RuntimeError(f"'{name}' could not be registered:\n{done.stdout}{done.stderr}")

    def start_run(
        self, app: Path, federation: Path, out: Path, name: str = "run", more: Sequence[str] = ()
    ) -> Started:
        """`flwr run`, which follows the run's log and ends with it. more: further options."""
        settings = f'federation="{federation}" out="{out}"'
        command = ["flwr", "run", str(app), "here", "--stream", "--run-config", settings, *more]
        return self.start(name, command)
