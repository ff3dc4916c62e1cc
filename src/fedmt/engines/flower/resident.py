"""A center's process that keeps running: it answers one message after another, with everything already
imported.

    python -m fedmt.engines.flower.resident CENTER LISTENING NODE IDLE     started by `clientapp`, the relay

It listens on a socket that the relay opened, serves one relay at a time, and handles Flower's conversation
for it. It ends if no relay connects for IDLE seconds, if its node ends, if the relay that it works for ends,
or if a relay needs a new resident because center.toml or a loaded file of the code has changed. What a
message may cause is defined in `center`, as for a separate process.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmt.engines.flower.clientapp import OTHER, owner

log = logging.getLogger("flwr")

Talk = Callable[[Sequence[str], Path], int]


class Code:
    """The files that the modules of this process were loaded from, with their state at that time."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int] | None] = {}
        self.note()

    def note(self) -> None:
        """Notes the modules loaded since the last call."""
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path is not None and path not in self._seen:
                self._seen[path] = _stamp(path)

    def changed(self) -> bool:
        return any(_stamp(path) != before for path, before in self._seen.items())


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def watch(node: int, relay: socket.socket | None, end: Callable[[], None]) -> Callable[[], None]:
    """Calls `end` from a separate thread when one of them has ended. Returns a function that stops
    watching."""
    reading, writing = os.pipe()
    ends: list[Any] = [reading, node, *([] if relay is None else [relay])]

    def wait() -> None:
        ready, _, _ = select.select(ends, [], [])
        os.close(reading)
        if reading not in ready:
            end()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()

    def stop() -> None:
        os.close(writing)  # makes the other end readable
        thread.join()

    return stop


def serve(
    listening: socket.socket, who: Mapping[str, Any], node: int, idle: float, talk: Talk, code: Code
) -> str:
    """Answers relays until there is a reason to end, which it returns.

    who: whose relays it answers, as they identify themselves. node: becomes readable when the node has ended.
    """
    ends: list[Any] = [listening, node]
    while True:
        ready, _, _ = select.select(ends, [], [], idle)
        if node in ready:
            return "its node ended"
        if not ready:
            return f"no message came for {idle:g} s"
        relay, _ = listening.accept()
        with relay:
            if owner(relay) != os.geteuid():
                continue
            message, files, _, _ = socket.recv_fds(relay, 1 << 20, 1)
            if not message:
                continue
            request = json.loads(message)
            if any(request[key] != value for key, value in who.items()) or code.changed():
                listening.close()
                relay.send(OTHER)
                return "its center.toml or the code has changed"
            # Killed with its relay or its node, as the relay's own process would be.
            stop = watch(node, relay, lambda: os._exit(1))
            try:
                status = talk(request["arguments"], Path(f"/proc/self/fd/{files[0]}"))
            finally:
                stop()
                os.close(files[0])
            with suppress(ConnectionError):
                relay.send(str(status).encode())
        code.note()
        gc.collect()  # while nobody waits


def main() -> None:
    center, number, node, idle = sys.argv[1:]
    try:
        watched = os.pidfd_open(int(node))
    except ProcessLookupError:
        return  # it has ended
    who = {"center": center, "file": Path(center).read_text(encoding="utf-8"), "node": int(node)}
    stop = watch(watched, None, lambda: os._exit(1))
    from fedmt.engines.flower.conversation import talk  # this takes seconds, in which the node may end

    stop()
    with socket.socket(fileno=int(number)) as listening:
        os.set_inheritable(listening.fileno(), False)
        reason = serve(listening, who, watched, float(idle), talk, Code())
    log.info("The resident process of this center ends: %s.", reason)


if __name__ == "__main__":
    main()
