"""`fedmt watch`: the live report of a run, from a small server that only this machine can reach."""

from __future__ import annotations

import contextvars
import hashlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

from fedmt.core.errors import FedmtError
from fedmt.reports.content import content, render
from fedmt.reports.report import Source, distinct
from fedmt.runs.evaluation import Evaluation

HOST = "127.0.0.1"
"""The only address to listen on, because the page is for the user of this machine."""

EVERY = 1.0
"""Seconds between two checks of the folder."""

SHARE = 10
"""Predicting the test data may take at most this fraction (one part in N) of the watcher's time, because the
run needs the rest."""


@dataclass(frozen=True)
class Snapshot:
    """The content of a run's page at one moment, the same as JSON, and the ETag of that JSON.

    The three are replaced together. If they were set one after the other, a request in between would get an
    old body with the new tag, and the browser would keep that body until the next change.
    """

    data: dict[str, Any]
    body: bytes
    tag: str

    @classmethod
    def of(cls, data: dict[str, Any]) -> Snapshot:
        body = json.dumps(data, allow_nan=False).encode()
        return cls(data, body, f'"{hashlib.blake2b(body, digest_size=8).hexdigest()}"')


class Follower:
    """The newest content of a run's page. `look` reads the folder again if it has changed."""

    def __init__(self, path: Path) -> None:
        self.source = Source(path)
        self.label = distinct([path])[0]
        self.evaluation: Evaluation | None = None
        self._notes: list[str] = []
        self._seen: object = None
        self._due = 0.0
        self.snapshot = Snapshot.of({})
        self.look(compute=False)

    def look(self, compute: bool = True) -> None:
        """Reads what is new. compute: also predict the test data again, if it is due."""
        seen = self._stamp()
        metrics = self.source.folder.metrics() if seen != self._seen else None
        [shown] = self.snapshot.data.get("runs", [{"round": -1}])
        last = metrics[-1]["round"] if metrics else shown["round"]
        stale = self.evaluation is None or self.evaluation.round != last
        due = compute and last >= 0 and stale and time.monotonic() >= self._due
        if metrics is None and not due:
            return
        metrics = self.source.folder.metrics() if metrics is None else metrics
        written = self.source.written(metrics)
        if written is not None:
            self.evaluation, self._notes = written, []
        elif due and metrics:
            begin = time.monotonic()
            self._notes = []
            self.evaluation = self.source.computed(self._notes) or self.evaluation
            now = time.monotonic()
            # If the data cannot be read, trying again every second would not help.
            self._due = now + (60 if self._notes else SHARE * (now - begin))
        run = self.source.assembled(self.label, metrics, self.evaluation, list(self._notes))
        self.snapshot = Snapshot.of(content(self.label, "", [run]))
        self._seen = seen

    def follow(self, stop: threading.Event) -> None:
        """Checks again and again. A file that is being replaced is read the next time."""
        while not stop.wait(EVERY):
            try:
                self.look()
            except (FedmtError, OSError):
                continue

    def _stamp(self) -> object:
        folder = self.source.folder
        found = []
        for path in (folder.metrics_file, folder.summary_file, folder.evaluation_file):
            try:
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0))
        return found


class Server(ThreadingHTTPServer):
    """Serves a follower's page at `/` and its data at `/data.json`, and nothing else."""

    daemon_threads = True

    def __init__(self, follower: Follower, port: int) -> None:
        self.follower = follower
        super().__init__((HOST, port), Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    """Handles one request. Only GET is accepted, and a host name other than this machine's own is rejected
    (DNS rebinding)."""

    server: Server

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._answer(403, "text/plain", b"Only for this machine.\n")
            return
        snapshot = self.server.follower.snapshot  # read once, because a check may replace it at any moment
        if self.path == "/":
            page = render(snapshot.data, live="data.json")
            self._answer(200, "text/html; charset=utf-8", page.encode())
        elif self.path == "/data.json":
            if self.headers.get("If-None-Match") == snapshot.tag:
                self._answer(304, "application/json", b"", snapshot.tag)
            else:
                self._answer(200, "application/json", snapshot.body, snapshot.tag)
        else:
            self._answer(404, "text/plain", b"Not here.\n")

    def _answer(self, status: int, kind: str, body: bytes, tag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if tag:
            self.send_header("ETag", tag)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because the terminal belongs to the user."""


def watch(path: Path, port: int, console: Console) -> None:
    """Serves until Ctrl-C."""
    follower = Follower(path)
    try:
        server = Server(follower, port)
    except OSError as error:
        raise FedmtError(
            f"--port {port}: cannot listen on this port ({error.strerror}). Choose another port, or 0 for a "
            "free one."
        ) from None
    stop = threading.Event()
    # In this thread's context, which determines what a run folder may import.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(follower.follow, stop), daemon=True)
    with server:
        # Set explicitly, because a process started in the background by a script inherits the setting to
        # ignore Ctrl-C; and before the line that promises it.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            # This comes first: a Ctrl-C during its start would leave a thread that nobody waits for, and that
            # aborts.
            thread.start()
            console.print(
                f"Watching {path}: {server.address}\nCtrl-C ends it; the run continues.", soft_wrap=True
            )
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("No longer watching.")
        finally:
            signal.signal(signal.SIGINT, previous)
            stop.set()
            if thread.ident is not None:  # Ctrl-C may come before it starts
                thread.join(timeout=1)
    if thread.is_alive():
        # It is computing metrics. Python would end by tearing down torch under it, which aborts the process.
        sys.stdout.flush()
        os._exit(0)
