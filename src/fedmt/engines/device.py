"""Which devices a run uses, and which data of a federation are stored on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from fedmt.core.errors import FedmtError
from fedmt.core.seeding import restored
from fedmt.data.center import Center, Federation

DEVICE_SHARE = 0.6
"""Samples stay on the GPU while they take at most this share of its free memory."""


def pick_device(name: str) -> torch.device:
    """'auto', 'cpu', 'cuda' or 'cuda:1'. A missing device is an error, not a silent run on the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FedmtError(
            f"device: '{name}' is not a device; use 'auto', 'cpu', 'cuda' or 'cuda:1'."
        ) from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            found = f"{count} CUDA devices" if count else "no CUDA device"
            raise FedmtError(
                f"device: '{name}' was requested, but this machine has {found}; use device = 'cpu' or 'auto'."
            )
    elif device.type != "cpu":
        raise FedmtError(f"device: '{name}' is not supported; use 'auto', 'cpu' or 'cuda'.")
    return device


def every(device: torch.device) -> tuple[torch.device, ...]:
    """All devices that a name stands for: 'cuda' is every visible GPU, 'cuda:1' and 'cpu' are one."""
    if device.type != "cuda" or device.index is not None:
        return (device,)
    return (device, *(torch.device("cuda", i) for i in range(1, torch.cuda.device_count())))


@dataclass(frozen=True, eq=False)
class Placed:
    """federation: with its data placed. devices: the devices of the run, its own first. dealt: for each
    center, the index of the device that it trains on. prefetch: whether the samples stayed in host memory."""

    federation: Federation
    devices: Sequence[torch.device]
    dealt: Mapping[str, int]
    prefetch: bool


def place(
    federation: Federation,
    devices: Sequence[torch.device],
    together: bool = False,
    prefetch: bool | None = None,
) -> Placed:
    """Puts labels on the first device, and the samples of each center on the device that it is assigned to.

    On a GPU, or if requested (together), all samples of a device are in one tensor, and those of a center are
    a part of it. One captured step can then gather samples of any center. prefetch: leave the samples in host
    memory. None does so if they would take more than `DEVICE_SHARE` of a GPU's free memory.
    """
    devices = devices[: max(1, len(federation.centers))]
    dealt = deal(federation.centers, len(devices))
    own: list[list[Center]] = [[] for _ in devices]
    own[0] += [federation.reference, *federation.tests]
    for center in federation.centers:
        own[dealt[center.name]].append(center)
    if prefetch is None:
        prefetch = not all(
            _fit([c for mine, d in zip(own, devices, strict=True) if d == device for c in mine], device)
            for device in set(devices)
        )
    placed: dict[int, Center] = {}
    for mine, device in zip(own, devices, strict=True):
        found = place_centers(mine, device, together, prefetch, devices[0])
        placed |= {id(before): after for before, after in zip(mine, found, strict=True)}
    changed = replace(
        federation,
        reference=placed[id(federation.reference)],
        centers=tuple(placed[id(c)] for c in federation.centers),
        tests=tuple(placed[id(c)] for c in federation.tests),
    )
    return Placed(changed, devices, dealt, prefetch)


def deal(centers: Sequence[Center], count: int) -> dict[str, int]:
    """Assigns each center, in order, to the device out of `count` that has the fewest samples so far."""
    loads = [0] * count
    dealt = {}
    for center in centers:
        device = dealt[center.name] = loads.index(min(loads))
        loads[device] += len(center)
    return dealt


def place_centers(
    centers: Sequence[Center],
    device: torch.device,
    together: bool = False,
    prefetch: bool | None = None,
    labels_on: torch.device | None = None,
) -> tuple[Center, ...]:
    """The centers with their samples on a device, as in `place`, and their labels there or elsewhere."""
    if device.type == "cpu" and not together:
        return tuple(centers)
    moved = values = _values(centers)
    if not (not _fit(centers, device) if prefetch is None else prefetch):
        sizes = [len(v) for v in values.values()]
        input = centers[0].input
        whole = torch.empty((sum(sizes), *input.shape), dtype=input.dtype, device=device)
        parts = whole.split(sizes)
        for part, own in zip(parts, values.values(), strict=True):
            part.copy_(own)
        moved = dict(zip(values, parts, strict=True))
    elif together:
        moved = {key: own.contiguous() for key, own in values.items()}  # its rows are copied one by one

    def moved_center(center: Center) -> Center:
        there = labels_on or device
        labels = None if center.labels is None else center.labels.to(there)
        truth = None if center.truth is None else center.truth.to(there)
        return replace(center, values=moved[id(center.values)], labels=labels, truth=truth)

    return tuple(map(moved_center, centers))


def _values(centers: Sequence[Center]) -> dict[int, torch.Tensor]:
    """Their samples, each set once, because tests in several spaces share theirs."""
    return {id(c.values): c.values for c in centers}


def _fit(centers: Sequence[Center], device: torch.device) -> bool:
    """Whether their samples fit on the device."""
    if device.type != "cuda":
        return True
    size = sum(v.nbytes for v in _values(centers).values())
    return size <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]


@contextmanager
def apart(device: torch.device, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Restores torch's global generators after a network that draws from them.

    stream: the stream of the work within this context. It runs after the caller's earlier work and before its
    later work.
    """
    with restored(device):
        if stream is None:
            yield
            return
        callers = torch.cuda.current_stream(device)
        stream.wait_stream(callers)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            callers.wait_stream(stream)
