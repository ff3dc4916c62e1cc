"""Splits one fully labeled set into a reference center and centers with equal class frequencies.

Pure functions from wanted labels to positions in the set ("Details of the data splitting" in the paper's
appendix). No sample is at two places. Everything depends only on the arguments and the seed. The reference
center is the same in all splits, for any number of centers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from torch import Tensor

from fedmt.core.errors import FedmtError

Indices = NDArray[np.int64]

# One random stream for each purpose, so that an additional draw in one of them does not change the others.
REFERENCE, PRIORS, CENTERS = range(3)


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in the set that was split, int64, in random order.

    reference: [classes * per_class], or what `per_class` sums to; each once.
    centers: [samples] for each center. Samples repeat only if `notes` reports it.
    notes: sentences for the user about anything that differs from the request.
    """

    reference: Tensor
    centers: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()


def iid_split(
    truth: Tensor,
    classes: int,
    per_class: int | Sequence[int],
    centers: int,
    samples: int | None,
    seed: int,
    names: Sequence[str] | None = None,
) -> Split:
    """The reference center gets `per_class` of each class, every center a balanced `samples` of the rest.

    truth: int64 [N], wanted labels, 0 to classes - 1.
    per_class: one number, or one for each class.
    samples: the number for each center; None for as many as possible. If it is not divisible by `classes`,
        the counts of two classes differ by at most 1 within a center.
    names: the names of the classes, for error messages.
    """
    taken = for_each(per_class, classes)
    found = pools(truth, classes, taken, centers, seed)
    reference, rest = take_reference(found, taken, names, seed)
    left = np.array([len(pool) for pool in rest])
    most = _most_samples(left, centers)
    scarcest = int(left.argmin())
    if samples is None:
        if most < classes:
            raise FedmtError(
                f"Class {quoted(scarcest, names)} has {len(found[scarcest])} samples: after "
                f"{taken[scarcest]} for the reference center, {left[scarcest]} are left for {centers} "
                "centers that need at least one each. Lower per_class or the number of centers."
            )
        samples = most
    at_least("samples", samples, 1)
    if samples > most:
        each = -(-samples // classes)
        raise FedmtError(
            f"Class {quoted(scarcest, names)} has {len(found[scarcest])} samples, but the split needs "
            f"{taken[scarcest] + centers * each}: {taken[scarcest]} for the reference center and {each} for "
            f"each of the {centers} centers (samples = {samples} over {classes} classes). Lower "
            + (f"samples to {most} or less, or lower " if most else "")
            + "per_class or the number of centers."
        )
    rng = default_rng([seed, CENTERS])
    counts = _balanced_counts(left, centers, samples, rng)
    return Split(reference, deal(rest, counts, counts, rng))


def share_split(
    truth: Tensor,
    classes: int,
    share: float,
    centers: int,
    seed: int,
    names: Sequence[str] | None = None,
) -> Split:
    """The reference center gets `share` of every class, and the centers share the rest evenly."""
    sizes = truth.bincount(minlength=classes).numpy() if len(truth) else np.zeros(classes, dtype=np.int64)
    return natural_split(truth, classes, reference_counts(sizes, share).tolist(), centers, seed, names)


def natural_split(
    truth: Tensor,
    classes: int,
    per_class: int | Sequence[int],
    centers: int,
    seed: int,
    names: Sequence[str] | None = None,
) -> Split:
    """The reference center gets `per_class` of each class, and the centers share the rest evenly.

    The centers therefore have the class frequencies of the set. Any two centers differ by at most one sample
    in each class, and by at most one in total.
    """
    taken = for_each(per_class, classes)
    found = pools(truth, classes, taken, centers, seed)
    reference, rest = take_reference(found, taken, names, seed)
    for k, pool in enumerate(rest):
        if len(pool) < centers:
            raise FedmtError(
                f"Class {quoted(k, names)} has {len(found[k])} samples: after {taken[k]} for the reference "
                f"center, {len(pool)} are left for {centers} centers that need at least one each. Lower the "
                "reference center's part (per_class or reference_share) or the number of centers, or raise "
                "at_most."
            )
    rng = default_rng([seed, CENTERS])
    left = np.array([len(pool) for pool in rest])
    counts = np.repeat(left[None] // centers, centers, axis=0)
    # The remainders go around the centers, so a class occurs fewer than `centers` times in a row.
    queue = np.repeat(np.arange(classes), left % centers)
    counts[rng.permutation(centers)[np.arange(len(queue)) % centers], queue] += 1
    return Split(reference, deal(rest, counts, counts, rng))


def reference_counts(sizes: Indices, share: float) -> Indices:
    """The number of samples that is `share` of each class, given `sizes` [classes]: rounded, at least 1."""
    if not 0 < share < 1:
        raise FedmtError(f"reference_share is {share}, expected a share between 0 and 1, as in 0.1.")
    counts: Indices = np.maximum(1, np.floor(sizes * share + 0.5).astype(np.int64))
    return counts


def for_each(per_class: int | Sequence[int], classes: int) -> Indices:
    """The reference center's number of each class, [classes]."""
    return np.broadcast_to(np.asarray(per_class, dtype=np.int64), (max(classes, 1),))


def pools(truth: Tensor, classes: int, taken: Indices, centers: int, seed: int) -> list[Indices]:
    """The positions of each class, after checking the arguments that all splits have in common."""
    for word, value, least in (
        ("classes", classes, 1),
        ("per_class", int(taken.min()), 1),
        ("centers", centers, 1),
        ("seed", seed, 0),
    ):
        at_least(word, value, least)
    if truth.dim() != 1 or truth.is_floating_point() or truth.dtype == torch.bool:
        raise FedmtError(f"Labels to split must be integers [N], got {truth.dtype} {tuple(truth.shape)}.")
    labels = truth.cpu().numpy()
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise FedmtError(
            f"Label {outside[0]} is outside the wanted space of {classes} classes (0 to {classes - 1})."
        )
    return [np.flatnonzero(labels == k).astype(np.int64) for k in range(classes)]


def take_reference(
    pools: Sequence[Indices], taken: Indices, names: Sequence[str] | None, seed: int
) -> tuple[Tensor, list[Indices]]:
    """The reference center's samples, `taken` [classes] of each class, and the others, shuffled."""
    for k, pool in enumerate(pools):
        if len(pool) < taken[k]:
            raise FedmtError(
                f"Class {quoted(k, names)} has {len(pool)} samples, but the reference center needs "
                f"{taken[k]} of every class; lower per_class to {len(pool)} or add samples."
                if len(pool)
                else f"Class {quoted(k, names)} has no samples; leave it out of the wanted space or add some."
            )
    rng = default_rng([seed, REFERENCE])
    shuffled = [rng.permutation(pool) for pool in pools]
    chosen = np.concatenate([pool[:n] for pool, n in zip(shuffled, taken, strict=True)])
    rest = [pool[n:] for pool, n in zip(shuffled, taken, strict=True)]
    return torch.from_numpy(rng.permutation(chosen)), rest


def _most_samples(left: Indices, centers: int) -> int:
    """The largest balanced number for each center, given the numbers of remaining samples [classes]."""
    base = int(left.min()) // centers
    # A class gives each center at most one sample more than `base`.
    extras = np.minimum(left - centers * base, centers)
    return base * len(left) + int(extras.sum()) // centers


def _balanced_counts(left: Indices, centers: int, samples: int, rng: Generator) -> Indices:
    """The number of samples of each class at every center, [centers, classes]. Rows sum to `samples`, and
    entries differ by at most 1."""
    classes = len(left)
    base, remainder = divmod(samples, classes)
    counts = np.full((centers, classes), base, dtype=np.int64)
    spare = np.minimum(left - centers * base, centers)
    extras = np.zeros(classes, dtype=np.int64)
    missing = centers * remainder
    order = rng.permutation(classes)
    # Around and around over the classes with samples to spare, so that none is favored.
    while missing:
        turn = order[extras[order] < spare[order]][:missing]
        extras[turn] += 1
        missing -= len(turn)
    # A class occurs at most `centers` times in a row, so dealing in turn gives no center a class twice and
    # every center exactly `remainder`.
    queue = np.repeat(order, extras[order])
    counts[rng.permutation(centers)[np.arange(len(queue)) % centers], queue] += 1
    return counts


def deal(rest: Sequence[Indices], distinct: Indices, wanted: Indices, rng: Generator) -> tuple[Tensor, ...]:
    """Distributes the samples of each class: `distinct` samples, repeated up to `wanted`.

    rest: the shuffled samples of each class; distinct, wanted: [centers, classes].
    """
    ends = distinct.cumsum(0)
    dealt = []
    for c in range(len(wanted)):
        parts = []
        for k, pool in enumerate(rest):
            own = pool[ends[c, k] - distinct[c, k] : ends[c, k]]
            parts.append(own)
            if wanted[c, k] > len(own):
                parts.append(rng.choice(own, wanted[c, k] - len(own)))
        dealt.append(torch.from_numpy(rng.permutation(np.concatenate(parts))))
    return tuple(dealt)


def at_least(word: str, value: int, least: int) -> None:
    if value < least:
        raise FedmtError(f"{word} is {value}, expected {least} or more.")


def quoted(k: int, names: Sequence[str] | None) -> str:
    return f"'{names[k]}'" if names is not None else str(k)
