"""The program that a center's SuperNode starts for each message: a relay to the center's resident process.

Importing torch and Flower takes seconds, and a GPU needs more setup. So this program imports almost nothing.
It passes the message's arguments to a process that keeps running (`resident`), and waits for it. It starts
that process if there is none, or if it belongs to another center or another version of the code.

    <state>/resident/socket-1     where the resident listens; only its user can access the folder
    <state>/resident/lock-1       held by the relay whose message is being answered

A node hands out one message at a time. But if a run ends while one of its messages is in transit, Flower lets
its process wait for the rest for an hour or more. A second resident then takes the following messages. If
both are busy, or none can be started, the message is answered in this process itself (`conversation`). This
file is run with `python -IS`, so only Python's standard library is imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from typing import Any, NoReturn

CENTER = "FEDMT_CENTER"
"""The environment variable in which `node` passes the path of center.toml."""

IDLE = 300
"""Seconds that a resident waits for the next message, unless center.toml sets it."""

OTHER = b"other"
"""The resident's answer to a relay that needs another resident. It then ends."""


class Residence:
    """The folder of a center's resident. file: its center.toml as text. node: the process with which
    it ends."""

    def __init__(self, center: str, file: str, node: int) -> None:
        self.center, self.file, self.node = center, file, node
        raw = tomllib.loads(file)
        self.idle, self.private = float(raw.get("resident", IDLE)), "privacy" in raw
        state = os.path.join(os.path.dirname(center), os.path.expanduser(raw["state"]))
        folder = os.path.join(state, "resident")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(self.folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{folder} is open to others")
        self.number = 1

    @property
    def path(self) -> str:
        # A socket's path has at most 107 bytes, and the path of a state folder may be longer.
        return f"/proc/self/fd/{self.folder}/socket-{self.number}"

    def take(self) -> bool:
        """Whether a resident is free. It is then reserved for this process until the process ends."""
        for self.number in (1, 2):
            lock = os.open(f"lock-{self.number}", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self.folder)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False

    def connect(self) -> socket.socket | None:
        """Connects to the resident. None if none is listening."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(self.path)
        except (ConnectionError, FileNotFoundError):
            connection.close()
            return None
        if owner(connection) != os.geteuid():
            raise PermissionError(f"{self.path} is another user's")
        return connection

    def start(self) -> socket.socket | None:
        """Starts a new resident. Anything sent before it listens waits for it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.path)
            listening.listen()
            number = listening.fileno()
            command = [sys.executable, "-m", "fedmt.engines.flower.resident", self.center]
            command += [str(number), str(self.node), str(self.idle)]
            subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL, start_new_session=True)
            return self.connect()

    def ask(self, connection: socket.socket, arguments: Sequence[str], copy: int) -> bytes:
        """The resident's answer. Empty if it ended without one."""
        request = {"center": self.center, "file": self.file, "node": self.node, "arguments": list(arguments)}
        try:
            with connection:
                socket.send_fds(connection, [json.dumps(request).encode()], [copy])
                return connection.recv(16)
        except ConnectionError:
            return b""


def owner(connection: socket.socket) -> int:
    """The user at the other end."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


def relay(arguments: Sequence[str]) -> int | None:
    """The status of the resident's conversation. None if this process has to handle the message."""
    if CENTER not in os.environ or not hasattr(socket, "SO_PEERCRED"):
        return None
    center = os.path.expanduser(os.environ[CENTER])
    node = int(arguments[arguments.index("--parent-pid") + 1])
    with open(center, encoding="utf-8") as file:
        home = Residence(center, file.read(), node)
    if not home.idle or not home.take():
        return None
    copy = os.memfd_create("message")
    killed = 0
    for reach in (home.connect, home.start, home.start):
        connection = reach()
        if connection is None:
            continue
        said = home.ask(connection, arguments, copy)
        if said and said != OTHER:
            return int(said)
        if not os.path.exists(f"/proc/{node}"):
            return 1  # it ended with its node, which no longer waits for an answer
        killed += not said
        # A private center pays for a round when it begins, so only the coordinator may repeat it.
        if killed == 2 or (home.private and os.fstat(copy).st_size):
            break
    return 1 if os.fstat(copy).st_size else None  # a node hands out each message only once


def main() -> NoReturn:
    arguments: list[str] = sys.argv[1:]
    status: Any = None
    try:
        status = relay(arguments)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"fedmt: answering without a resident process ({error})", file=sys.stderr)
    if status is None:
        alone = [sys.executable, "-m", "fedmt.engines.flower.conversation", *arguments]
        os.execv(sys.executable, alone)
    sys.exit(status)


if __name__ == "__main__":
    main()
