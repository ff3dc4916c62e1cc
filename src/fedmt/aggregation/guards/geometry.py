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
    values = [update[k] for k in names]
    if values and values[0].is_cuda:  # all at once: one by one, the launches take longer than the sums
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values, 2, torch.float64))))
    parts = [torch.linalg.vector_norm(v.contiguous(), dtype=torch.float64) for v in values]
    return float(torch.linalg.vector_norm(torch.stack(parts))) if parts else 0.0


def dot(one: Mapping[str, Tensor], two: Mapping[str, Tensor], names: Collection[str]) -> float:
    """The product over some names, which both have."""
    pairs = [(one[k], two[k]) for k in names]
    if pairs and pairs[0][0].is_cuda:  # as one vector each, for the same reason
        first, second = zip(*(_alike(a, b) for a, b in pairs), strict=True)
        return float(torch.dot(torch.cat(first).double(), torch.cat(second).double()))
    parts = [torch.dot(_flat(a), _flat(b)) for a, b in pairs]
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
            counts[key] = counts.get(key, 0) + 1
            if counts[key] == 1:
                sums[key] = update[key].to(torch.float64, copy=True)
        again = [key for key in weight_names(update) if counts[key] > 1]
        if again:
            torch._foreach_add_([sums[key] for key in again], [update[key] for key in again])
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


def scaled(update: Mapping[str, Tensor], names: Collection[str], factor: float) -> Weights:
    """The update with some of its tensors multiplied."""
    return {key: value * factor if key in names else value for key, value in update.items()}


def _alike(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape as vectors in the same order, not copied where they lie alike in memory."""
    alike = one.dim() == 4 and one.stride() == two.stride()
    if alike and one.is_contiguous(memory_format=torch.channels_last):
        one, two = one.permute(0, 2, 3, 1), two.permute(0, 2, 3, 1)
    return one.flatten(), two.flatten()


def _flat(value: Tensor) -> Tensor:
    return value.contiguous().flatten().double()
