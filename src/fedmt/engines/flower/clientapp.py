"""The program that a center's SuperNode starts for each message: a relay to the center's resident process.

Importing torch and Flower takes seconds, and on a GPU there is more to set up. So this program imports next
to nothing. It hands the message's arguments to a process that stays (`resident`), and waits for it. It starts
that process where there is none, or where it is of another center or another state of the code.

    <state>/resident/socket-1     where the resident listens; the folder is its user's alone
    <state>/resident/lock-1       held by the relay whose message is being answered

A node gives out one message at a time. But if a run is ended while a message of it is on its way, Flower lets
its process wait for the rest for an hour or more. A second resident then takes the messages that follow.
Where both are busy, or none can be had, the message is answered in this process itself (`conversation`).
It is run as a file, by `python -IS`: nothing but Python's own library is imported.
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
"""The variable in which `node` leaves the path of center.toml."""

IDLE = 300
"""Seconds that a resident waits for the next message, where center.toml does not say."""

OTHER = b"other"
"""The resident's answer to a relay that needs another one. It ends then."""


class Residence:
    """The folder of a center's resident. file: its center.toml as text. node: the process to end with."""

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
        # A socket's path has at most 107 bytes, which that of a state folder may exceed.
        return f"/proc/self/fd/{self.folder}/socket-{self.number}"

    def take(self) -> bool:
        """Whether a resident is free. It is then this process's, until it ends."""
        for self.number in (1, 2):
            lock = os.open(f"lock-{self.number}", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self.folder)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False

    def connect(self) -> socket.socket | None:
        """To the resident; None where none listens."""
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
        """A new resident. What is sent before it listens waits for it."""
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
        """The resident's answer; empty where it ended without one."""
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
    """The status of the resident's conversation; None where this process has to hold it."""
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
            return 1  # it ended with its node, which waits for no answer
        killed += not said
        # A round of a private center is paid for when it begins: nobody but the coordinator repeats it.
        if killed == 2 or (home.private and os.fstat(copy).st_size):
            break
    return 1 if os.fstat(copy).st_size else None  # a node hands out a message only once


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
