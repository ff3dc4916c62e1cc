"""Lengths and angles of updates, in float64, so that the square of 1e38 does not overflow.

Everything is read in the order of the names and in plain memory layout, so that all engines measure
bit-identical values. What SCAFFOLD sends in addition to the weights (`control:`) is a gradient, not a change
of weights. It has another scale and is measured separately.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedmt.aggregation.base import Weights

CHUNK = 1 << 20
"""Number of weights of each update that are compared with each other at a time."""

Group = tuple[tuple[int, ...], Tensor]
"""Which updates contain certain names, and their pairwise products over these names, [n, n]."""


def is_control(key: str) -> bool:
    return key.startswith("control:")


def weight_names(update: Mapping[str, Tensor]) -> list[str]:
    """The names of the changes of weights, sorted."""
    return sorted(key for key in update if not is_control(key))


def control_names(update: Mapping[str, Tensor]) -> list[str]:
    return sorted(key for key in update if is_control(key))


def norm(update: Mapping[str, Tensor], names: Collection[str]) -> float:
    """The Euclidean norm over some names."""
    values = [update[k] for k in names]
    if values and values[0].is_cuda:  # all at once, because one by one the launches take longer than the sums
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values, 2, torch.float64))))
    parts = [torch.linalg.vector_norm(v.contiguous(), dtype=torch.float64) for v in values]
    return float(torch.linalg.vector_norm(torch.stack(parts))) if parts else 0.0


def dot(one: Mapping[str, Tensor], two: Mapping[str, Tensor], names: Collection[str]) -> float:
    """The product over names that both contain."""
    pairs = [(one[k], two[k]) for k in names]
    if pairs and pairs[0][0].is_cuda:  # as one vector each, for the same reason
        first, second = zip(*(_alike(a, b) for a, b in pairs), strict=True)
        return float(torch.dot(torch.cat(first).double(), torch.cat(second).double()))
    parts = [torch.dot(_flat(a), _flat(b)) for a, b in pairs]
    return float(torch.stack(parts).sum()) if parts else 0.0


def cosine(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float | None:
    """The cosine over the weights that both contain. None if one of them does not change any."""
    names = [key for key in weight_names(one) if key in two]
    size = norm(one, names) * norm(two, names)
    return max(-1.0, min(1.0, dot(one, two, names) / size)) if size > 0 else None


def plain_mean(updates: Sequence[Mapping[str, Tensor]]) -> Weights:
    """The mean in float64. Each name is averaged over the updates that contain it, and every center counts
    once."""
    sums: Weights = {}
    counts: dict[str, int] = {}
    for update in updates:
        for key in weight_names(update):
            counts[key] = counts.get(key, 0) + 1
            if counts[key] == 1:
                sums[key] = update[key].to(torch.float64, copy=True)
        again = [key for key in weight_names(update) if counts[key] > 1]
        if again:
            torch._foreach_add_([sums[key] for key in again], [update[key] for key in again])
    return {key: total / counts[key] for key, total in sums.items()}


def products(updates: Sequence[Mapping[str, Tensor]]) -> list[Group]:
    """The pairwise products of updates, separately for names that other centers have, because a head belongs
    to one space."""
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
    """Pairwise distances of the updates, [count, count], over the names that both contain."""
    squares = torch.zeros(count, count, dtype=torch.float64)
    for places, gram in groups:
        own = gram.diagonal()
        between = own[:, None] + own[None, :] - 2 * gram
        at = torch.tensor(places)
        squares[at[:, None], at[None, :]] += between
    return squares.clamp(min=0).sqrt()


def scaled(update: Mapping[str, Tensor], names: Collection[str], factor: float) -> Weights:
    """The update with some of its tensors multiplied."""
    return {key: value * factor if key in names else value for key, value in update.items()}


def _alike(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape as vectors in the same order. They are not copied if their memory layouts
    agree."""
    alike = one.dim() == 4 and one.stride() == two.stride()
    if alike and one.is_contiguous(memory_format=torch.channels_last):
        one, two = one.permute(0, 2, 3, 1), two.permute(0, 2, 3, 1)
    return one.flatten(), two.flatten()


def _flat(value: Tensor) -> Tensor:
    return value.contiguous().flatten().double()
