"""Where the updates of a round wait for each other: 1,000 of ResNet18 take 45 GB.

They stay where they are while they take less than a share of the free memory. The next ones go to host
memory, if they come from a GPU, and the last to a temporary file. Whoever reads a stored update gets the same
numbers in the same memory layout, one tensor at a time. So the result is the same, and memory is bounded for
guards that look at one update after the other: all but those that sort, and nearest-neighbor mixing.
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
"""Of a GPU's free memory, taken by the updates of a round."""

HOST_SHARE = 0.5
"""Of the host's available memory."""

Read = Callable[[int, int], Tensor]
"""From one byte to another of a stored update, uint8."""


class Place(NamedTuple):
    """Of a tensor in a stored update, in bytes."""

    begin: int
    end: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


class Stored(Mapping[str, Tensor]):
    """An update by name, each tensor read when it is asked for, on the device that it came from."""

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
    """For the updates of one round."""

    def __init__(self) -> None:
        self._room: dict[str, int] = {}
        self._file: IO[bytes] | None = None

    def has_room(self, update: Weights) -> bool:
        """Whether the update may stay where it is; if so, its room is taken."""
        device = _device(update)
        return self._take("device" if device.type == "cuda" else "host", _size(update), device)

    def put(self, update: Weights) -> Mapping[str, Tensor]:
        """The update, stored elsewhere."""
        device, places, parts, begin = _device(update), {}, [], 0
        # The widest types first: each begins at a multiple of its own size.
        for name in sorted(update, key=lambda key: -update[key].element_size()):
            flat, stride = _flat(update[name])
            end = begin + flat.nbytes
            places[name] = Place(begin, end, flat.dtype, update[name].shape, stride)
            parts.append(flat.view(torch.uint8))
            begin = end
        # On the device, then sent as one: each copy waits for the device.
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
        """The bytes at the end of the file. It has no name, and is closed when the shelf is gone."""
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
                f"{tempfile.gettempdir()}: cannot write the updates of a round, which do not fit in memory "
                f"({error.strerror or error}). Make room there, or set TMPDIR to a folder with more."
            ) from None

        def read(first: int, last: int) -> Tensor:
            found = torch.empty(last - first, dtype=torch.uint8)
            file.seek(at + first)
            left = found.numpy().data
            while left:
                count = file.readinto(left)  # type: ignore[attr-defined]
                if not count:
                    raise FedmtError("The temporary file of a round's updates has become shorter.")
                left = left[count:]
            return found

        return read


def _device(update: Weights) -> torch.device:
    return next((v.device for v in update.values()), torch.device("cpu"))


def _size(update: Weights) -> int:
    return sum(v.nbytes for v in update.values())


def _flat(value: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """A tensor's numbers in the order in which they lie in memory, and its strides."""
    stride = value.stride()
    order = sorted(range(value.dim()), key=lambda dim: -stride[dim])
    lying = value.permute(order)
    if lying.is_contiguous():
        return lying.flatten(), stride
    value = value.contiguous()
    return value.flatten(), value.stride()


def _free(device: torch.device) -> int:
    """Of a GPU's memory, with what torch holds and does not use."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + idle)


def _available() -> int:
    """Of the host's memory, in bytes; all of it where the system does not say what is in use."""
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
