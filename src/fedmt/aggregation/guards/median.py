"""Coordinate-wise median and trimmed mean (Yin et al. 2018), instead of the strategy's mean.

Both apply to every single weight, so the result is between changes that other centers made. As guards, they
work with any strategy, including its momentum or adaptive steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedmt.aggregation.base import Accumulator, Weights
from fedmt.aggregation.guards.base import Guard, Guarded, Update, averaged
from fedmt.aggregation.trimmed_mean import Trimming, check_trim

MOST = 0.4999
"""Trims until one or two are left."""


@dataclass(frozen=True)
class CoordinateMedian(Guard):
    """The middle value of every weight. For an even number of centers, the mean of the two middle values."""

    name: ClassVar[str] = "median"

    def combine(self, updates: Sequence[Update], mean: Accumulator, root: Weights | None) -> Guarded:
        equal = [Update(u.center, u.tensors) for u in updates]
        return Guarded(averaged(equal, Trimming(MOST)))


@dataclass(frozen=True)
class TrimmedMeanGuard(Guard):
    """For every weight, the mean without the extreme centers (`TrimmedMean`)."""

    name: ClassVar[str] = "trimmed_mean"

    trim: float = 0.2
    """Share of the centers that is cut off at each end, for every weight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trim("aggregation.guard.trim", self.trim)

    def combine(self, updates: Sequence[Update], mean: Accumulator, root: Weights | None) -> Guarded:
        return Guarded(averaged(updates, Trimming(self.trim)))
