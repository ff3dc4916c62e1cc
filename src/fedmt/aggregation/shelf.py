"""Stores the updates of a round until all have arrived: 1,000 updates of a ResNet18 take 45 GB.

They stay in place while they take less than a share of the free memory. Further updates go to host memory, if
they come from a GPU, and then to a temporary file. A stored update is read with the same numbers in the same
memory layout, one tensor at a time. The result is therefore the same, and memory is bounded for guards that
read one update after the other: all except those that sort, and nearest-neighbor mixing.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor

from fedmt.aggregation.base import Weights
from fedmt.core.errors import FedmtError

DEVICE_SHARE = 0.5
"""Share of a GPU's free memory that the updates of a round may take."""

HOST_SHARE = 0.5
"""Share of the host's available memory."""

Read = Callable[[int, int], Tensor]
"""Reads a range of bytes of a stored update, uint8."""


class Place(NamedTuple):
    """The place of a tensor in a stored update, in bytes."""

    begin: int
    end: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


class Stored(Mapping[str, Tensor]):
    """An update by name. Each tensor is read when it is needed, on the device that it came from."""

    def __init__(self, places: dict[str, Place], read: Read, device: torch.device) -> None:
        self._places, self._read, self._device = places, read, device

    def __getitem__(self, name: str) -> Tensor:
        place = self._places[name]
        flat = self._read(place.begin, place.end).view(place.dtype).to(self._device, copy=True)
        return flat.as_strided(place.shape, place.stride)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Shelf:
    """A shelf for the updates of one round."""

    def __init__(self) -> None:
        self._room: dict[str, int] = {}
        self._file: IO[bytes] | None = None

    def has_room(self, update: Weights) -> bool:
        """Whether the update may stay in place. If so, its room is reserved."""
        device = _device(update)
        return self._take("device" if device.type == "cuda" else "host", _size(update), device)

    def put(self, update: Weights) -> Mapping[str, Tensor]:
        """The update, stored elsewhere."""
        device, places, parts, begin = _device(update), {}, [], 0
        # The widest types come first, so that each begins at a multiple of its own size.
        for name in sorted(update, key=lambda key: -update[key].element_size()):
            flat, stride = _flat(update[name])
            end = begin + flat.nbytes
            places[name] = Place(begin, end, flat.dtype, update[name].shape, stride)
            parts.append(flat.view(torch.uint8))
            begin = end
        # Packed on the device and sent as one tensor, because each copy waits for the device.
        whole = (torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)).cpu()
        if device.type == "cuda" and self._take("host", len(whole), device):
            read: Read = lambda first, last: whole[first:last]  # noqa: E731
        else:
            read = self._written(whole)
        return Stored({name: places[name] for name in update}, read, device)

    def _take(self, where: str, size: int, device: torch.device) -> bool:
        if where not in self._room:
            self._room[where] = int(
                DEVICE_SHARE * _free(device) if where == "device" else HOST_SHARE * _available()
            )
        fits = size <= self._room[where]
        self._room[where] -= size if fits else 0
        return fits

    def _written(self, whole: Tensor) -> Read:
        """Appends the bytes to the file. The file has no name and is closed when the shelf is gone."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            file = self._file
            at = file.seek(0, os.SEEK_END)
            left = whole.numpy().data
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            raise FedmtError(
                f"{tempfile.gettempdir()}: the updates of a round do not fit in memory and cannot be written "
                f"({error.strerror or error}). Free some space there, or set TMPDIR to a folder with more "
                "space."
            ) from None

        def read(first: int, last: int) -> Tensor:
            found = torch.empty(last - first, dtype=torch.uint8)
            file.seek(at + first)
            left = found.numpy().data
            while left:
                count = file.readinto(left)  # type: ignore[attr-defined]
                if not count:
                    raise FedmtError("The temporary file with a round's updates has become shorter.")
                left = left[count:]
            return found

        return read


def _device(update: Weights) -> torch.device:
    return next((v.device for v in update.values()), torch.device("cpu"))


def _size(update: Weights) -> int:
    return sum(v.nbytes for v in update.values())


def _flat(value: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """A tensor's numbers in memory order, and its strides."""
    stride = value.stride()
    order = sorted(range(value.dim()), key=lambda dim: -stride[dim])
    lying = value.permute(order)
    if lying.is_contiguous():
        return lying.flatten(), stride
    value = value.contiguous()
    return value.flatten(), value.stride()


def _free(device: torch.device) -> int:
    """Free memory of a GPU, including what torch holds and does not use."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + idle)


def _available() -> int:
    """Available memory of the host in bytes, or all of it if the system does not report usage."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
