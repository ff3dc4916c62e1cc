"""Coordinate-wise trimmed mean (Yin et al. 2018): a few centers cannot pull the model where they want it.

For every single weight, the largest and the smallest changes among the centers are left out, and the others
are averaged. The result is therefore between changes that other centers made, whatever one center sends.

All updates of a round are held in memory until it ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmt.aggregation.base import Accumulator, Strategy, Weights
from fedmt.core.errors import FedmtError


@dataclass(frozen=True)
class TrimmedMean(Strategy):
    """f <- f + rate * trimmed_mean_c (f_c - f)

    The centers that remain count by their weight (`training.weights`).
    """

    name: ClassVar[str] = "trimmed_mean"
    needs_single_updates: ClassVar[bool] = True

    trim: float = 0.2
    """Share of the centers that is cut off at each end, for every weight. It is rounded up, so at least one
    center is cut off at each end, as long as one remains."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trim("aggregation.trim", self.trim)

    def accumulator(self) -> Accumulator:
        return Trimming(self.trim)


def check_trim(name: str, trim: float) -> None:
    if not 0 <= trim < 0.5:
        raise FedmtError(
            f"{name}: {trim} given, expected 0 <= trim < 0.5, because it is cut off at each end and at least "
            "one center must remain."
        )


class Trimming(Accumulator):
    """Holds all updates, because the extreme ones are known only when all have arrived."""

    def __init__(self, trim: float) -> None:
        super().__init__()
        self.trim = trim
        self._updates: dict[str, list[tuple[Tensor, float]]] = {}

    def _add(self, update: Weights, weight: float) -> None:
        for key, value in update.items():
            self._updates.setdefault(key, []).append((value, weight))

    @torch.no_grad()
    def result(self) -> Weights:
        return {key: self._trimmed(updates) for key, updates in self._updates.items()}

    def _trimmed(self, updates: list[tuple[Tensor, float]]) -> Tensor:
        values = torch.stack([value.flatten() for value, _ in updates])
        weights = values.new_tensor([weight for _, weight in updates])
        count = len(updates)
        # A share such as 0.07 of 100 is a little more than 7 in floating point.
        cut = min(math.ceil(self.trim * count - 1e-9), (count - 1) // 2)
        ordered, order = values.sort(dim=0, stable=True)
        middle, share = ordered[cut : count - cut], weights[order[cut : count - cut]]
        return ((middle * share).sum(0) / share.sum(0)).view(updates[0][0].shape)
