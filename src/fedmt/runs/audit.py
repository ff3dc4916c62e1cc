"""The audit log: who connected, what was asked, sent and refused. Append-only, without data.

One JSON object per line. Every entry has its number, the hash of the entry before it (`before`) and its own
(`hash`, SHA-256 of the rest of the entry). `verify` therefore finds and names an entry that was changed,
removed or moved. A chain cannot show two things: that its end was cut off, and that someone rewrote all of
it. To detect both, keep the last hash elsewhere (`fedmt audit FILE --expect HASH`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fedmt.core.errors import FedmtError
from fedmt.core.escaping import escaped
from fedmt.runs.files import writing

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

FIRST = "0" * 64
"""What the first entry has instead of the hash of the entry before it."""

Entry = dict[str, Any]


class Audit:
    """The log of one site. Several processes may write to it: a center has one for each message."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: str, **about: Any) -> None:
        """Appends an entry, and returns when it is on the disk."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file, _locked(file):
                last, torn = _last(file)
                if torn:
                    # A process was killed while it was writing. What it left is not an entry.
                    file.truncate(file.seek(0, os.SEEK_END) - torn)
                    last = _append(file, last, {"event": "cut short", "bytes": torn})
                _append(file, last, {"event": event, **about})
                file.flush()
                os.fsync(file.fileno())


def _append(file: IO[bytes], last: Entry | None, about: Mapping[str, Any]) -> Entry:
    entry: Entry = {
        "number": 1 if last is None else int(last["number"]) + 1,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **about,
        "before": FIRST if last is None else str(last["hash"]),
    }
    entry["hash"] = hash_of(entry)
    file.write(json.dumps(entry).encode() + b"\n")
    return entry


def hash_of(entry: Mapping[str, Any]) -> str:
    """The hash of an entry without its own hash."""
    rest = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _last(file: IO[bytes]) -> tuple[Entry | None, int]:
    """The last entry, and how many bytes of an unfinished line follow it."""
    size = file.seek(0, os.SEEK_END)
    length = 1 << 14
    while True:
        file.seek(max(0, size - length))
        whole, newline, rest = file.read().rpartition(b"\n")
        line = whole.rpartition(b"\n")[2]
        if length >= size or b"\n" in whole:
            break
        length *= 4
    if not newline:
        return None, len(rest)
    try:
        entry = json.loads(line)
        if not isinstance(entry, dict) or "hash" not in entry or not isinstance(entry["number"], int):
            raise ValueError
    except (ValueError, KeyError):
        raise FedmtError(
            f"{file.name}: its last line is not an entry of an audit log. Keep the file as evidence under "
            "another name. A new one is started automatically."
        ) from None
    return entry, len(rest)


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """One writer at a time. The system releases the lock when the file is closed."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)
    yield


# -- reading ------------------------------------------------------------------------------------------


def verify(path: Path) -> tuple[list[Entry], list[str]]:
    """The entries that can be read, and every break of the chain, with its line. Without breaks, it is
    intact."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FedmtError(f"{path}: cannot be read ({error.strerror or error}).") from None
    unfinished = lines.pop()
    entries: list[Entry] = []
    problems: list[str] = []
    before, number = FIRST, 0
    for place, line in enumerate(lines, 1):
        entry = _parsed(line)
        if entry is None:
            problems.append(f"line {place}: this is not an entry of an audit log, so it was changed.")
            before, number = "", number + 1  # the next line tells what it should have been
            continue
        entries.append(entry)
        if entry["hash"] != hash_of(entry):
            problems.append(f"line {place}: entry {entry['number']} was changed after it was written.")
        elif before and entry["before"] != before:
            problems.append(f"line {place}: {_break(entry['number'], number)}")
        before, number = str(entry["hash"]), int(entry["number"])
    if unfinished:
        problems.append(
            f"line {len(lines) + 1}: this line is not finished, as after a kill. The next entry replaces it."
        )
    return entries, problems


def _parsed(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kinds = {"number": int, "time": str, "event": str, "before": str, "hash": str}
    fits = isinstance(entry, dict) and all(isinstance(entry.get(k), kind) for k, kind in kinds.items())
    return entry if fits else None


def _break(number: int, last: int) -> str:
    """Why an entry does not follow the one in the line before it, whose number is `last`."""
    if number == last + 1:
        return f"entry {number} does not continue entry {last}, which was replaced."
    if number > last + 1:
        gone = f"entry {last + 1} is" if number == last + 2 else f"entries {last + 1} to {number - 1} are"
        return f"entry {number} follows entry {last}: {gone} missing here, removed or moved."
    return f"entry {number} comes after entry {last}: the lines were reordered, or copied."


def words(entry: Mapping[str, Any]) -> str:
    """What an entry contains besides its event, for one cell of a table."""
    frame = ("number", "time", "event", "before", "hash", "center")
    return "; ".join(f"{key} {_short(value)}" for key, value in entry.items() if key not in frame)


def _short(value: Any) -> str:
    if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
        # Parts of a message: their sizes, not the shape of every tensor.
        return ", ".join(
            f"{escaped(k)} ({v.get('bytes', '?')} bytes, {str(v.get('sha256', ''))[:12]})"
            for k, v in value.items()
        )
    if isinstance(value, dict):
        return ", ".join(f"{escaped(k)} = {escaped(v, 80)}" for k, v in value.items())
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32,}", value):
        return f"{value[:12]}…"  # a digest, or an id
    return escaped(value, 200)
