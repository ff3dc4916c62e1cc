"""Splits in which every center has its own class frequencies: the paper's non-IID split, and long tails.

As in splits.py, which has the other splits, no sample is at two places, and everything depends on the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from torch import Tensor

from fedmt.core.errors import FedmtError
from fedmt.data.splits import (
    CENTERS,
    PRIORS,
    Indices,
    Split,
    at_least,
    deal,
    for_each,
    pools,
    quoted,
    take_reference,
)

MINOR_PRIOR = (0.35, 0.55)
MAJORITY_CLASSES = 2
MAJORITY_PRIOR = 4.0
"""The paper's prior: U[.35, .55] for every class, 4 / (1 - gamma) for two classes of each center."""


def non_iid_split(
    truth: Tensor,
    classes: int,
    per_class: int | Sequence[int],
    centers: int,
    samples: int,
    gamma: float,
    seed: int,
    names: Sequence[str] | None = None,
) -> Split:
    """Like `iid_split`, but a center's `samples` are drawn from its own prior over classes
    (`non_iid_priors`).

    Its majority classes may need more samples than exist. In the paper's setting (CIFAR-100, 10 centers of
    4000), this concerns 7, 47 and 71 % of the samples at gamma .1, .9 and .99 (see `_uneven_split`).
    """

    def drawn(rng: Generator) -> Indices:
        priors = non_iid_priors(classes, centers, gamma, seed).numpy()
        return np.stack([rng.multinomial(samples, prior) for prior in priors])

    what = f"Non-IID split, gamma {gamma:g}"
    return _uneven_split(truth, classes, per_class, centers, samples, drawn, seed, names, what)


def long_tailed_split(
    truth: Tensor,
    classes: int,
    per_class: int | Sequence[int],
    centers: int,
    samples: int,
    imbalance: float,
    seed: int,
    names: Sequence[str] | None = None,
) -> Split:
    """Like `iid_split`, but each center has a few frequent classes and many rare ones, in its own order.

    imbalance: how many times more frequent its most frequent class is than its rarest. Between them the
    frequencies fall geometrically, as in the long-tailed benchmarks of the literature (Cui et al. 2019).
    """

    def ranked(rng: Generator) -> Indices:
        shares = long_tailed_prior(classes, imbalance)
        ranks = np.stack([rng.permutation(classes) for _ in range(centers)])
        exact = np.round(shares * 2**40).astype(
            np.int64
        )  # whole numbers that can be divided by largest remainder
        return np.stack([proportional(exact[rank], samples) for rank in ranks])

    what = f"Long-tailed split, imbalance {imbalance:g}"
    return _uneven_split(truth, classes, per_class, centers, samples, ranked, seed, names, what)


def long_tailed_prior(classes: int, imbalance: float) -> NDArray[np.float64]:
    """Class shares that fall geometrically from the first to the last by a factor `imbalance`, [classes]."""
    if not imbalance >= 1:
        raise FedmtError(
            f"imbalance is {imbalance}, expected 1 or more: how many times larger the most frequent class is "
            "than the rarest."
        )
    falling = imbalance ** (-np.arange(classes) / max(classes - 1, 1))
    return np.asarray(falling / falling.sum())


def _uneven_split(
    truth: Tensor,
    classes: int,
    per_class: int | Sequence[int],
    centers: int,
    samples: int,
    draw: Callable[[Generator], Indices],
    seed: int,
    names: Sequence[str] | None,
    what: str,
) -> Split:
    """Every center gets the number of samples of each class that `draw` states, [centers, classes].

    If the centers want more samples of a class than exist, each gets a share in proportion to what it wants,
    and repeats samples of its share. Two centers never hold the same sample, and the class frequencies remain
    those that were drawn.
    """
    at_least("samples", samples, 1)
    taken = for_each(per_class, classes)
    found = pools(truth, classes, taken, centers, seed)
    reference, rest = take_reference(found, taken, names, seed)
    rng = default_rng([seed, CENTERS])
    wanted = draw(rng)
    distinct = wanted.copy()
    for k, pool in enumerate(rest):
        demand = wanted[:, k]
        takers = int((demand > 0).sum())
        if len(pool) < takers:
            raise FedmtError(
                f"Class {quoted(k, names)} has {len(found[k])} samples: after {taken[k]} for the reference "
                f"center, {len(pool)} are left for {takers} centers that each drew it at least once. "
                "Lower per_class, samples or the number of centers."
            )
        if len(pool) < demand.sum():
            # One for each center that wants the class, then the rest in proportion.
            one = np.minimum(demand, 1)
            distinct[:, k] = one + proportional(demand - one, len(pool) - takers)
    repeats = wanted - distinct
    notes: tuple[str, ...] = ()
    if repeats.any():
        scarce, filled = np.count_nonzero(repeats.sum(0)), np.count_nonzero(repeats.sum(1))
        notes = (
            f"{what}: {scarce} of {classes} classes have fewer samples than the centers drew, so {filled} "
            f"of {centers} centers were filled up with repeats of their own samples: {repeats.sum()} of all "
            f"{centers * samples} samples.",
        )
    return Split(reference, deal(rest, distinct, wanted, rng), notes)


def non_iid_priors(classes: int, centers: int, gamma: float, seed: int) -> Tensor:
    """The class priors of the centers, float64 [centers, classes], rows sum to 1.

    Center c's majority classes are the next two in a random order of the classes, which starts again when it
    is used up. Every class is a majority class once before any class is one twice.
    """
    at_least("classes", classes, MAJORITY_CLASSES)
    at_least("centers", centers, 1)
    at_least("seed", seed, 0)
    if not 0 <= gamma < 1:
        raise FedmtError(f"gamma is {gamma}, expected 0 <= gamma < 1. Values near 1 are more heterogeneous.")
    rng = default_rng([seed, PRIORS])
    order = rng.permutation(classes)
    priors = rng.uniform(*MINOR_PRIOR, size=(centers, classes))
    turns = np.arange(centers * MAJORITY_CLASSES).reshape(centers, MAJORITY_CLASSES)
    np.put_along_axis(priors, order[turns % classes], MAJORITY_PRIOR / (1 - gamma), axis=1)
    return torch.from_numpy(priors / priors.sum(1, keepdims=True))


def proportional(demand: Indices, supply: int) -> Indices:
    """Whole shares of `supply` in proportion to `demand`, by largest remainder.

    They sum to `supply`. None exceeds its demand unless the supply exceeds the total demand.
    """
    shares, remainders = np.divmod(demand * supply, demand.sum())
    largest = np.argsort(-remainders, kind="stable")
    shares[largest[: supply - int(shares.sum())]] += 1
    return shares
