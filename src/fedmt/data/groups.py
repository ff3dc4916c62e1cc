"""Samples that belong together, such as the images of a patient: no split ever separates them.

Pure functions of groups, labels and a random generator. A group is one number per sample, equal for samples
of one group (`group_numbers`). A number of single samples, such as 50 of each class, is met as closely as
whole groups allow.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]
Chosen = NDArray[np.bool_]

_KEY = secrets.token_bytes(16)
"""New in each process, so that the number of a patient reveals nothing outside of it, not even by trial and
error."""


def group_numbers(values: Sequence[str]) -> Tensor:
    """Converts the groups' original values to numbers, int64 [N]. Numbers are equal exactly if the values
    are, in every source.

    They can be compared between the centers of a simulation, which is one process. They mean nothing in
    another process, and only their equality may be used.
    """
    known: dict[str, int] = {}
    for value in values:
        if value not in known:
            digest = hashlib.blake2b(value.encode(), digest_size=8, key=_KEY).digest()
            known[value] = int.from_bytes(digest, "big", signed=True)
    return torch.tensor([known[value] for value in values], dtype=torch.int64)


def in_order(groups: Tensor) -> Indices:
    """The same groups, numbered 0, 1, … in the order in which they first occur, [N]."""
    _, first, places = np.unique(groups.cpu().numpy(), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[places], dtype=np.int64)


def together(parts: Sequence[tuple[int, Tensor | None]]) -> Tensor | None:
    """The groups of several sets of samples, int64 [N], numbered from 0 on; None if no two samples belong
    together. parts: the size of each set, and its groups, if it has any. A group may be in several sets.

    >>> together([(3, torch.tensor([7, 7, 5])), (2, None), (1, torch.tensor([5]))]).tolist()
    [0, 0, 1, 2, 3, 1]
    """
    given = [groups.cpu() for _, groups in parts if groups is not None]
    if not given:
        return None
    known = in_order(torch.cat(given))
    count, found = int(known.max()) + 1, []
    for size, groups in parts:
        if groups is None:
            found.append(np.arange(count, count + size))
            count += size
        else:
            found.append(known[:size])
            known = known[size:]
    numbers = torch.from_numpy(np.concatenate(found))
    return numbers if count < len(numbers) else None


def class_counts(groups: Indices, truth: Indices, classes: int) -> Indices:
    """The number of samples of each class in every group, [groups, classes]. groups: as from `in_order`."""
    count = int(groups.max()) + 1 if len(groups) else 0
    flat = np.bincount(groups * classes + truth, minlength=count * classes)
    return flat.reshape(count, classes).astype(np.int64)


def pick(
    counts: Indices, targets: Indices, rng: Generator, at_least_one: bool = True, spared: int = 0
) -> Chosen:
    """Picks whole groups with about `targets` [classes] samples of each class: bool [groups].

    counts: [groups, classes], see `class_counts`. The number of samples of a class is the largest that does
        not exceed its target. This is exact over the groups that have a single class. Groups with several
        classes are added as long as they fit. If no group of a class fits, `at_least_one` takes its smallest
        group anyway.
    spared: the number of largest groups of each class that are left for others, if the class has more.
    """
    order = rng.permutation(len(counts))
    open_ = np.ones(len(counts), dtype=bool)
    for k in np.flatnonzero(counts.sum(0)):
        own = order[counts[order, k] > 0]
        if 0 < spared < len(own):
            open_[own[np.argsort(-counts[own, k], kind="stable")[:spared]]] = False
    chosen = np.zeros(len(counts), dtype=bool)
    several = (counts > 0).sum(1) > 1

    def add(limits: Indices) -> None:
        """Adds the groups with several classes, as long as they fit into `limits`."""
        held = counts[chosen].sum(0)
        for g in order[(several & open_ & ~chosen)[order]]:
            if (held + counts[g] <= limits).all():
                chosen[g] = True
                held += counts[g]

    # First add as many of them as their share of the samples, so that they are not preferred.
    add(targets * counts[several].sum(0) // np.maximum(counts.sum(0), 1))
    for k in np.flatnonzero(counts.sum(0)):
        own = order[(open_ & ~several & (counts[:, k] > 0))[order]]
        chosen[own[_nearest(counts[own, k], int(targets[k] - counts[chosen, k].sum()))]] = True
    add(targets)
    for k in np.flatnonzero(counts.sum(0)):
        if at_least_one and targets[k] > 0 and not counts[chosen, k].any():
            own = order[(counts[:, k] > 0)[order]]
            own = own[open_[own]] if open_[own].any() else own
            chosen[own[counts[own].sum(1).argmin()]] = True
    return chosen


def _nearest(sizes: Indices, target: int) -> list[int]:
    """Which of `sizes` have the largest sum that does not exceed `target`. Among equal choices, the first."""
    if target <= 0:
        return []
    if sizes.sum() <= target:
        return list(range(len(sizes)))
    last = np.full(target + 1, -1, dtype=np.int64)  # by sum: the size with which it was first reached
    last[0] = len(sizes)
    for i, size in enumerate(sizes.tolist()):
        if last[target] >= 0:
            break
        if size <= target:
            new = np.flatnonzero((last[: target + 1 - size] >= 0) & (last[size:] < 0)) + size
            last[new] = i
    total = int(np.flatnonzero(last >= 0).max())
    found = []
    while total:
        found.append(int(last[total]))
        total -= int(sizes[found[-1]])
    return found


def deal(counts: Indices, limits: Indices | None, places: int, rng: Generator) -> Indices:
    """The index of the place that each group goes to, [groups]; -1 if it goes to none.

    counts: [groups, classes]. limits: [places, classes], which no place exceeds. None means that every group
    goes somewhere. The largest groups go first, each to the place that lacks its classes most. Without
    limits, and if each group has one class, no two places therefore differ by more than the largest group of
    a class.
    """
    order = rng.permutation(len(counts))
    order = order[np.argsort(-counts[order].sum(1), kind="stable")]
    turns = rng.permutation(places)
    lacking = np.zeros((places, counts.shape[1]), dtype=np.int64) if limits is None else limits.copy()
    total = np.zeros(places, dtype=np.int64)
    goes = np.full(len(counts), -1, dtype=np.int64)
    for g in order:
        fitting = turns
        if limits is not None:
            fitting = turns[(lacking[turns] >= counts[g]).all(1)]
            if not len(fitting):
                continue
        # Among places that lack them equally, take the one with the fewest samples in total.
        place = fitting[np.lexsort((total[fitting], -(lacking[fitting] @ counts[g])))[0]]
        goes[g] = place
        lacking[place] -= counts[g]
        total[place] += counts[g].sum()
    return goes
