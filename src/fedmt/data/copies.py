"""Small classes filled up with augmented copies, each at the place of its original.

The paper augments first and distributes afterwards, which puts copies of one sample at several centers
and at the reference center. Here the originals are split first; every place then copies samples
of its own, in proportion, so that each class has the rule's number over all places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import default_rng
from torch import Tensor

from fedmt.data.splits import Indices
from fedmt.data.uneven import proportional

# Random streams after those of the splits and the preparation.
_CHOICE, _VIEWS = range(6, 8)


def copy_numbers(seed: int, place: int) -> np.random.Generator:
    """Where the copies of one place take their random numbers from; each place has its own."""
    return default_rng([seed, _VIEWS, place])


def rule_targets(counts: Indices, rules: Sequence[tuple[int, int]], spared: Sequence[bool]) -> Indices:
    """How many samples each class shall have: by the first rule (below, to) that fits, else what it has.

    counts: [classes]. spared: [classes], whether a class is left as it is.
    """
    targets = counts.copy()
    for k, (count, left_alone) in enumerate(zip(counts.tolist(), spared, strict=True)):
        if not left_alone and count:
            targets[k] = next((to for below, to in rules if count < below), count)
    return targets


def choose_copies(places: Sequence[Tensor], truth: Tensor, targets: Indices, seed: int) -> list[Tensor]:
    """For each place the samples to be copied, int64 [m], out of its own.

    places: positions of the samples at each place; truth: int64 [N], wanted labels; targets: [classes], over
    all places. A sample is copied again only when all of its class and place have been.
    """
    rng = default_rng([seed, _CHOICE])
    chosen: list[list[Indices]] = [[np.empty(0, dtype=np.int64)] for _ in places]
    for k, target in enumerate(targets):
        own = [place[truth[place] == k].numpy() for place in places]
        held = np.array([len(samples) for samples in own])
        missing = int(target - held.sum())
        if missing <= 0 or not held.any():
            continue
        # In random order, or the first place would get what does not divide of every class.
        order = rng.permutation(len(places))
        shares = np.empty_like(held)
        shares[order] = proportional(held[order], missing)
        for p in np.flatnonzero(shares):
            chosen[p].append(np.resize(rng.permutation(own[p]), shares[p]))
    return [torch.from_numpy(np.concatenate(parts)) for parts in chosen]
