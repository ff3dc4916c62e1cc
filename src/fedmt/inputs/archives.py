"""How large the arrays of an .npz archive are, read before anything is unpacked.

An archive of a few megabytes can unpack to gigabytes. Its directory states the size, and `zipfile` never
unpacks more of a member than that. NumPy, however, allocates what the header of the array states, so the two
must agree.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from fedmt.core.errors import FedmtError

LIMIT = 2 * 2**30
RATIO = 100
"""Without a limit set by the user, an archive that unpacks to more than `LIMIT` bytes and to `RATIO` times
its size is not considered data."""


def check_unpacked(
    path: Path, limit: int | None = None, hint: str = "", names: Collection[str] | None = None
) -> None:
    """Rejects an archive whose arrays (`names`, or else all) need more than `limit` bytes.

    hint: what to do about it. A file that is not an archive is left to other checks.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        members = [
            member
            for member in archive.infolist()
            if names is None or member.filename.removesuffix(".npy") in names
        ]
        size = sum(member.file_size for member in members)
        most = max(LIMIT, RATIO * path.stat().st_size) if limit is None else limit
        if size > most:
            raise FedmtError(
                f"{path}: its arrays unpack to {size / 2**30:.3g} GiB, more than the memory limit of "
                f"{most / 2**30:.3g} GiB.{hint}"
            )
        for member in members:
            if member.filename.endswith(".npy"):
                _check_header(archive, member, path)


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    """Checks that the array's own header does not state more than the archive holds."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            return  # only for names in Unicode; NumPy reads it, or says what is wrong
        shape, _, dtype = read(file)
        size = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and size != member.file_size - file.tell():
            raise FedmtError(
                f"{path}: array '{member.filename.removesuffix('.npy')}' should have shape {shape} and dtype "
                f"{dtype}, but the archive holds only {member.file_size - file.tell():,} bytes of it. Write "
                "it again with numpy.savez."
            )
