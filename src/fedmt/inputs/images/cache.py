"""Decoded images on disk, memory-mapped, for sets that are larger than their memory limit."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmt.core.errors import FedmtError

Pixels = NDArray[np.uint8]
"""uint8 [n, C, H, W]."""


def write_cached(path: Path, chunks: Iterable[Pixels], shape: tuple[int, ...]) -> None:
    """Writes `chunks` as an .npy of `shape`: the whole file or nothing, whatever happens in the meantime."""
    size = math.prod(shape)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise FedmtError(
                f"{path.parent}: the decoded images need {gib(size)} and only {gib(free)} are free; "
                "set another cache folder or a smaller images.size."
            )
        # Plain writes, not a memory map: on a full disk, a write raises an error, while a mapped page kills
        # the process.
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
            temporary = Path(file.name)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for chunk in chunks:
                file.write(chunk.tobytes())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FedmtError(
            f"{path.parent}: the decoded images cannot be written ({error.strerror or error}). They need "
            f"{gib(size)}. Free some space or set another cache folder."
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def map_cached(path: Path) -> Tensor | None:
    """The cached images of `path`, memory-mapped. None if there are none, or if they cannot be read."""
    try:
        if not path.is_file():
            return None
        try:
            pixels = np.load(path, mmap_mode="c", allow_pickle=False)
        except OSError:
            # Copy-on-write memory is reserved as if all of it were written, so a set larger than the
            # machine's memory would be rejected. Read-only pages are not.
            pixels = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(pixels)


def gib(size: int) -> str:
    """A number of bytes in readable form: `1.5 GiB`."""
    return f"{size / 2**30:.3g} GiB"
