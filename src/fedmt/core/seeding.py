"""torch's own generators, from which every thread of a process draws, and the caller too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_ALONE = RLock()
CPU = torch.device("cpu")


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Within this context, the generators of the CPU and of `device` begin at `seed`. Afterwards, they are
    restored.

    Only one thread at a time is in such a context, because two would draw from one sequence, and their runs
    would depend on each other.
    """
    devices = [device] if device.type == "cuda" else []
    with _ALONE, torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for one in devices:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def restored(device: torch.device = CPU) -> Iterator[None]:
    """Restores the generators afterwards. Other threads need not wait for the end."""
    cuda = device.type == "cuda"
    with _ALONE:
        before = torch.get_rng_state(), torch.cuda.get_rng_state(device) if cuda else None
    try:
        yield
    finally:
        with _ALONE:
            torch.set_rng_state(before[0])
            if before[1] is not None:
                torch.cuda.set_rng_state(before[1], device)
