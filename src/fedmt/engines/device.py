"""Which device a run uses, and what of a federation lies on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from fedmt.core.errors import FedmtError
from fedmt.data.center import Center, Federation

DEVICE_SHARE = 0.6
"""Samples stay on the GPU while they take at most this share of its free memory."""


def pick_device(name: str) -> torch.device:
    """'auto', 'cpu', 'cuda' or 'cuda:1'; a device that is not there is an error, not a silent CPU run."""
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
                f"device: '{name}' was asked for, but this machine has {found}; use device = 'cpu' or 'auto'."
            )
    elif device.type != "cpu":
        raise FedmtError(f"device: '{name}' is not supported; use 'auto', 'cpu' or 'cuda'.")
    return device


def place(federation: Federation, device: torch.device, together: bool = False) -> Federation:
    """The federation with all its data placed, see `place_centers`."""
    everyone = (federation.reference, *federation.centers, *federation.tests)
    reference, *others = place_centers(everyone, device, together)
    count = len(federation.centers)
    return replace(
        federation, reference=reference, centers=tuple(others[:count]), tests=tuple(others[count:])
    )


def place_centers(
    centers: Sequence[Center], device: torch.device, together: bool = False
) -> tuple[Center, ...]:
    """Labels on the device, and samples too while they fit; else a batch travels at a time.

    On a GPU, or where asked for, all samples lie in one tensor, and a center's are a part of it: so one
    captured step can gather from any center's.
    """
    if device.type == "cpu" and not together:
        return tuple(centers)
    values = {id(c.values): c.values for c in centers}  # tests in several spaces share theirs
    moved = values
    size = sum(v.nbytes for v in values.values())
    if device.type != "cuda" or size <= DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
        sizes = [len(v) for v in values.values()]
        input = centers[0].input
        every = torch.empty((sum(sizes), *input.shape), dtype=input.dtype, device=device)
        parts = every.split(sizes)
        for part, own in zip(parts, values.values(), strict=True):
            part.copy_(own)
        moved = dict(zip(values, parts, strict=True))

    def moved_center(center: Center) -> Center:
        labels = None if center.labels is None else center.labels.to(device)
        truth = None if center.truth is None else center.truth.to(device)
        return replace(center, values=moved[id(center.values)], labels=labels, truth=truth)

    return tuple(map(moved_center, centers))


@contextmanager
def apart(device: torch.device, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Inside, torch's global generators may be seeded; outside, they are as the caller left them.

    stream: where the work inside is done, after what the caller began and before what it begins next.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
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
