"""Lengths and angles of updates, in float64: an update of 1e38 has a norm, and its square no overflow.

Everything is read in the order of the names and in plain memory layout, so that the engines measure the same
bit for bit. What SCAFFOLD sends next to the weights (`control:`) is a gradient, not a change of weights. It
is of another size, and is measured by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedmt.aggregation.base import Weights

CHUNK = 1 << 20
"""Weights of each update that are compared with each other at a time."""

Group = tuple[tuple[int, ...], Tensor]
"""Which updates have some names, and the products of each two of them over these names, [n, n]."""


def is_control(key: str) -> bool:
    return key.startswith("control:")


def weight_names(update: Mapping[str, Tensor]) -> list[str]:
    """The names of the changes of weights, sorted."""
    return sorted(key for key in update if not is_control(key))


def control_names(update: Mapping[str, Tensor]) -> list[str]:
    return sorted(key for key in update if is_control(key))


def norm(update: Mapping[str, Tensor], names: Collection[str]) -> float:
    """The Euclidean norm over some names."""
    parts = [torch.linalg.vector_norm(update[k].contiguous(), dtype=torch.float64) for k in names]
    return float(torch.linalg.vector_norm(torch.stack(parts))) if parts else 0.0


def dot(one: Mapping[str, Tensor], two: Mapping[str, Tensor], names: Collection[str]) -> float:
    """The product over some names, which both have."""
    parts = [torch.dot(_flat(one[k]), _flat(two[k])) for k in names]
    return float(torch.stack(parts).sum()) if parts else 0.0


def cosine(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float | None:
    """Over the weights that both have; None where one of them does not change any."""
    names = [key for key in weight_names(one) if key in two]
    size = norm(one, names) * norm(two, names)
    return max(-1.0, min(1.0, dot(one, two, names) / size)) if size > 0 else None


def plain_mean(updates: Sequence[Mapping[str, Tensor]]) -> Weights:
    """In float64, each name over the updates that have it, every center counting once."""
    sums: Weights = {}
    counts: dict[str, int] = {}
    for update in updates:
        for key in weight_names(update):
            value = update[key].to(torch.float64)
            sums[key] = sums[key] + value if key in sums else value
            counts[key] = counts.get(key, 0) + 1
    return {key: total / counts[key] for key, total in sums.items()}


def products(updates: Sequence[Mapping[str, Tensor]]) -> list[Group]:
    """The products of each two updates, apart for names that other centers have: a head is one space's."""
    holders: dict[str, list[int]] = {}
    for place, update in enumerate(updates):
        for key in weight_names(update):
            holders.setdefault(key, []).append(place)
    found: dict[tuple[int, ...], Tensor] = {}
    for key in sorted(holders):
        places = tuple(holders[key])
        gram = found.setdefault(places, torch.zeros(len(places), len(places), dtype=torch.float64))
        rows = [updates[i][key].contiguous().flatten() for i in places]
        for start in range(0, len(rows[0]), CHUNK):
            part = torch.stack([row[start : start + CHUNK] for row in rows]).double()
            gram += (part @ part.T).cpu()
    return list(found.items())


def distances(groups: Sequence[Group], count: int) -> Tensor:
    """Between each two updates, [count, count], over the names that both have."""
    squares = torch.zeros(count, count, dtype=torch.float64)
    for places, gram in groups:
        own = gram.diagonal()
        between = own[:, None] + own[None, :] - 2 * gram
        at = torch.tensor(places)
        squares[at[:, None], at[None, :]] += between
    return squares.clamp(min=0).sqrt()


def scaled(update: Weights, names: Collection[str], factor: float) -> Weights:
    """The update with some of its tensors multiplied."""
    return {key: value * factor if key in names else value for key, value in update.items()}


def _flat(value: Tensor) -> Tensor:
    return value.contiguous().flatten().double()
