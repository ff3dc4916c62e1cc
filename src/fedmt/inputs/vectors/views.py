"""Weak and strong views of vectors: noise, and features that are masked.

Randomness is data: two uniform numbers per sample and view are the seed of as many numbers as the sample has
features. They are computed from an integer hash of the seed and of the feature's position, so that every
device gets the same numbers, and a sample's numbers depend neither on its batch nor on the number of
features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError, at_least, share
from fedmt.inputs.base import Views

if TYPE_CHECKING:
    from fedmt.inputs.base import Input

SEED_NUMBERS = 2
"""Uniform numbers per sample and view: 24 random bits in each."""


@dataclass(frozen=True)
class VectorViews(Views):
    """The views of vectors and tables, and of a frozen backbone's features. The unit is each feature's
    standard deviation."""

    noise: float = 0.05
    """Standard deviation of the Gaussian noise in the weak view."""
    strong_noise: float = 0.2
    """Standard deviation of the noise that the strong view adds."""
    masked: float = 0.2
    """Probability that the strong view replaces a feature by its mean."""

    def __post_init__(self) -> None:
        at_least("augmentation.noise", self.noise, 0)
        at_least("augmentation.strong_noise", self.strong_noise, 0)
        share("augmentation.masked", self.masked)
        if not math.isfinite(self.noise + self.strong_noise):
            raise FedmtError("augmentation.noise: infinite; expected a number such as 0.05.")

    @property
    def weak_numbers(self) -> int:
        """The seed of a sample's noise."""
        return SEED_NUMBERS

    @property
    def strong_numbers(self) -> int:
        """The seed of a sample's noise and mask."""
        return SEED_NUMBERS

    def on(self, input: Input) -> Views:
        from fedmt.inputs.vectors import Vectors

        if not isinstance(input, Vectors) or not input.mean:
            return self
        return Scaled(self.noise, self.strong_noise, self.masked, input.mean, input.deviation)

    def weak(self, samples: Tensor, uniforms: Tensor) -> Tensor:
        return self.plain(samples) + self.noise * gaussian(uniforms, samples.shape[1], 0)

    def strong(self, views: Tensor, samples: Tensor, uniforms: Tensor) -> Tensor:
        noisy = views + self.strong_noise * gaussian(uniforms, views.shape[1], 1)
        return torch.where(numbers(uniforms, views.shape[1], 2) < self.masked, 0.0, noisy)

    def plain(self, samples: Tensor) -> Tensor:
        """Stored samples in standard deviations around the mean, which is 0."""
        return samples.to(torch.float32)


@dataclass(frozen=True)
class Scaled(VectorViews):
    """The same for vectors that are stored unchanged: mean and deviation are those of their input."""

    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def plain(self, samples: Tensor) -> Tensor:
        return standardized(samples, self.mean, self.deviation)


def standardized(samples: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Stored vectors [B, D] in units of their columns' deviations. Unchanged if `mean` is empty."""
    plain = samples.to(torch.float32)
    if not mean:
        return plain
    return (plain - _row(mean, samples.device)) / _row(deviation, samples.device)


@cache  # kept permanently, because a captured step reads it and could not copy it from the host
def _row(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)


def gaussian(seeds: Tensor, count: int, stream: int) -> Tensor:
    """Standard normal numbers [B, count] from the uniform numbers [B, 2]: Phi^-1 of `numbers`."""
    return math.sqrt(2) * torch.erfinv(2 * numbers(seeds, count, stream) - 1)


def numbers(seeds: Tensor, count: int, stream: int) -> Tensor:
    """Uniform numbers float32 [B, count], strictly between 0 and 1, from seeds [B, 2] in [0, 1).

    stream: different streams give different numbers from the same seeds.
    """
    bits = (seeds.double() * 2**24).to(torch.int64)
    place = torch.arange(count, device=seeds.device) * 0x9E3779B9 + stream * 0x85EBCA6B
    found = mixed(mixed((bits[:, :1] + place) & 0xFFFFFFFF) ^ (bits[:, 1:] << 8))
    # 23 bits and a half: exact in float32, and neither 0 nor 1.
    return ((found >> 9).to(torch.float32) + 0.5) * 2**-23


def mixed(x: Tensor) -> Tensor:
    """The 32-bit hash "lowbias32" of Chris Wellons, in int64; torch has no unsigned arithmetic for all
    devices."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)
