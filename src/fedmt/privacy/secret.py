"""Random numbers that nobody else can repeat, for centers whose noise must hide something.

In a simulation, all numbers depend on the seed, which makes runs repeatable. Between machines, the
coordinator knows the seed. It could subtract the noise and see who is in which batch. There, the noise is
made from the operating system's random bytes, and a generator seeded with them draws batches and views.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SUMMED = 4
"""Number of normal numbers that are summed up to one. The low bits of a single floating-point number reveal
the uniform numbers it was made from, and so what it was added to (Mironov 2012). A sum of several hides them
(Holohan and Braghin 2021). Opacus does the same."""

AT_ONCE = 1 << 20


def secret_generator() -> np.random.Generator:
    """A generator seeded with 256 random bits of the operating system."""
    return np.random.default_rng(int.from_bytes(os.urandom(32), "little"))


def secret_normal(count: int) -> Tensor:
    """Standard normal numbers, float32 [count], from the operating system's random bytes."""
    parts = [_normal(min(AT_ONCE, count - first)) for first in range(0, count, AT_ONCE)]
    return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, np.float32))


def _normal(count: int) -> NDArray[np.float32]:
    """The Box-Muller method in float64. Each pair of uniform numbers gives two normal numbers, and both go
    into the sum."""
    total = np.zeros(count)
    for _ in range(SUMMED // 2):
        bits = np.frombuffer(os.urandom(16 * count), dtype=np.uint64).reshape(2, count)
        radius, angle = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log1p(-radius))
        angle = 2.0 * np.pi * angle
        total += radius * np.cos(angle) + radius * np.sin(angle)
    summed: NDArray[np.float32] = (total / np.sqrt(SUMMED)).astype(np.float32)
    return summed
