"""Nearest-neighbor mixing (Allouah et al. 2023, NNM), before any guard.

Each update is replaced by the mean of the n - f nearest ones, itself included, where f bad centers are
expected. This makes the updates of centers with different data more alike, which is what a median needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedmt.aggregation.base import RunningMean
from fedmt.aggregation.guards.base import Update
from fedmt.aggregation.guards.geometry import distances, products


def mixed(updates: Sequence[Update], bad: int) -> list[Update]:
    """bad: the expected number of bad centers, at most a minority."""
    count = len(updates)
    keep = max(count - bad, count // 2 + 1)
    if keep >= count:
        return [_mean(updates, update) for update in updates]
    apart = distances(products([u.tensors for u in updates]), count)
    found = []
    for place, update in enumerate(updates):
        apart[place, place] = -1.0  # its own comes first, whatever was rounded
        nearest = apart[place].argsort(stable=True)[:keep].sort().values.tolist()
        found.append(_mean([updates[i] for i in nearest], update))
    return found


def _mean(neighbors: Sequence[Update], update: Update) -> Update:
    """The names of one update, each averaged over the neighbors that have it."""
    mean = RunningMean()
    for neighbor in neighbors:
        # Copies: a running mean changes what it is given, and every update is in several means.
        mean.add({k: v.clone() for k, v in neighbor.tensors.items() if k in update.tensors}, 1.0)
    return Update(update.center, mean.result(), update.weight)
