"""Reads and writes files: text or an error when reading, the whole file or nothing when writing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedmt.core.errors import FedmtError


def read_utf8(path: Path) -> str:
    """The text of a file of the run. An error names a file that is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FedmtError(
            f"{path}: this is not UTF-8 text, so it is not what the run wrote. Restore the file, or choose "
            "another --out."
        ) from None


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a whole file. A reader, or a kill, sees the old or the new file, never a part of it."""
    with writing(path):
        if is_stream(path):
            path.write_bytes(data)
            return
        path = replaceable(path)
        temporary = path.with_name(path.name + ".tmp")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                flush(file)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def is_stream(path: Path) -> bool:
    """Whether this is a pipe or a device, such as /dev/stdout. Replacing it would destroy it."""
    return path.exists() and not path.is_file() and not path.is_dir()


def replaceable(path: Path) -> Path:
    """The file itself if `path` is a link to one, so that the link stays. A folder is an error."""
    path = path.resolve()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failure to write into an error that says what is safe and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise FedmtError(
                f"{path}: the disk is full. Nothing that was finished is lost. Free some space and try "
                "again. Continue a run with --resume."
            ) from None
        if error.errno == errno.EISDIR:
            raise FedmtError(f"{path} is a folder. Name a file in it.") from None
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            taken = next((p for p in (path, *path.parents) if p.is_file()), path)
            raise FedmtError(
                f"{path}: it cannot be written, because {taken} is a file. Choose another place."
            ) from None
        raise FedmtError(f"{path}: it cannot be written ({error.strerror or error}).") from None


def flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
