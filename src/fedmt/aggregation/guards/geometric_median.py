"""The geometric median (Pillutla et al. 2022, RFA): the point with the least sum of distances to the updates.

Weiszfeld's iteration gives each update a weight of one over its distance to the last point, so that an update
far from all others hardly counts, whatever its direction:

    z <- sum_c a_c u_c / sum_c a_c,      a_c = w_c / max(|u_c - z|, nu)

Every z is a weighted mean of the updates, so the iteration needs only their pairwise products, and the
weights of the updates are its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmt.aggregation.base import Accumulator, Weights
from fedmt.aggregation.guards.base import Guard, Guarded, Update, averaged
from fedmt.aggregation.guards.geometry import Group, products
from fedmt.core.errors import at_least

NU = 1e-6
"""Distances are at least this share of the largest distance, so that no update has unlimited weight."""


@dataclass(frozen=True)
class GeometricMedian(Guard):
    """The point with the least sum of distances to all updates."""

    name: ClassVar[str] = "geometric_median"

    iterations: int = 100
    """Largest number of Weiszfeld iterations; fewer are used if nothing changes any more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("aggregation.guard.iterations", self.iterations, 1)

    def combine(self, updates: Sequence[Update], mean: Accumulator, root: Weights | None) -> Guarded:
        shares = weiszfeld(
            products([u.tensors for u in updates]), [u.weight for u in updates], self.iterations
        )
        weighted = [Update(u.center, u.tensors, s) for u, s in zip(updates, shares, strict=True)]
        facts = {u.center: {"share": u.weight} for u in weighted}
        return Guarded(averaged(weighted, mean), facts)


def weiszfeld(groups: Sequence[Group], weights: Sequence[float], iterations: int) -> list[float]:
    """The weight of each update at the geometric median. The weights sum to 1."""
    if not weights:
        return []
    own = torch.tensor(weights, dtype=torch.float64)
    shares = own / own.sum()
    for _ in range(iterations):
        distance = _to_mean(groups, shares)
        least = NU * float(distance.max())
        if least == 0:
            break  # all are equal
        closer = own / distance.clamp(min=least)
        closer /= closer.sum()
        done = bool((closer - shares).abs().max() < 1e-9)
        shares = closer
        if done:
            break
    found: list[float] = shares.tolist()
    return found


def _to_mean(groups: Sequence[Group], shares: Tensor) -> Tensor:
    """The distance of each update to the weighted mean, over the names that it has."""
    squares = torch.zeros_like(shares)
    for places, gram in groups:
        at = torch.tensor(places)
        part = shares[at] / shares[at].sum()
        along = gram @ part
        squares[at] += (gram.diagonal() - 2 * along + part @ along).clamp(min=0)
    return squares.sqrt()
