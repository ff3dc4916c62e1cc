"""Fills up small classes with augmented copies, each at the place of its original.

The paper augments first and distributes afterwards, which puts copies of one sample at several centers and at
the reference center. Here the originals are split first. Every place then copies its own samples in
proportion, so that each class reaches the rule's number over all places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import default_rng
from torch import Tensor

from fedmt.data.splits import Indices
from fedmt.data.uneven import proportional

# These random streams come after those of the splits and the preparation.
_CHOICE, _VIEWS = range(6, 8)


def copy_numbers(seed: int, place: int) -> np.random.Generator:
    """The source of random numbers for the copies of one place. Each place has its own."""
    return default_rng([seed, _VIEWS, place])


def rule_targets(counts: Indices, rules: Sequence[tuple[int, int]], spared: Sequence[bool]) -> Indices:
    """The number of samples that each class should have: by the first rule (below, to) that applies, else its
    current number.

    counts: [classes]. spared: [classes], whether a class is left unchanged.
    """
    targets = counts.copy()
    for k, (count, left_alone) in enumerate(zip(counts.tolist(), spared, strict=True)):
        if not left_alone and count:
            targets[k] = next((to for below, to in rules if count < below), count)
    return targets


def choose_copies(places: Sequence[Tensor], truth: Tensor, targets: Indices, seed: int) -> list[Tensor]:
    """For each place, the samples to be copied, int64 [m], from its own samples.

    places: positions of the samples at each place; truth: int64 [N], wanted labels; targets: [classes], over
    all places. A sample is copied again only after all samples of its class and place have been copied.
    """
    rng = default_rng([seed, _CHOICE])
    chosen: list[list[Indices]] = [[np.empty(0, dtype=np.int64)] for _ in places]
    for k, target in enumerate(targets):
        own = [place[truth[place] == k].numpy() for place in places]
        held = np.array([len(samples) for samples in own])
        missing = int(target - held.sum())
        if missing <= 0 or not held.any():
            continue
        # In random order. Otherwise the first place would get the remainder of every class.
        order = rng.permutation(len(places))
        shares = np.empty_like(held)
        shares[order] = proportional(held[order], missing)
        for p in np.flatnonzero(shares):
            chosen[p].append(np.resize(rng.permutation(own[p]), shares[p]))
    return [torch.from_numpy(np.concatenate(parts)) for parts in chosen]
