"""Whether few samples decide a difference between two models, so that it may well be chance.

Each resample of an interval draws from the test samples that there are. Where the models answer only a few of
them differently, or a class has only a few, resampling does not show how much these few could vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmt.metrics.base import Metric
from fedmt.metrics.intervals import SEED


class Compared(NamedTuple):
    """What is compared on one test set: the probabilities [N, J] of each run of the first side and of the
    second, the labels [N], and which samples belong together (`intervals`)."""

    first: Sequence[Tensor]
    second: Sequence[Tensor]
    labels: Tensor
    groups: Tensor | None = None


BY_CHANCE = 0.05
"""A difference is evident if equally good sides differ as much in at most this share of comparisons."""

FEWEST_APART = 6
"""The smallest number of samples that the sides must answer differently. If the sides are equally good, all
of five such samples favor the same side in 6% of comparisons (2 x 0.5^5), and all of six in 3%."""

FLIPS = 4096
"""Number of sign patterns in a sign-flip test: all patterns of up to 12 samples, random ones of more."""

DRAWN = 2000
"""Number of samples, those that count most, whose signs are drawn. The many small rest adds up to nearly a
normal number, and is drawn as one. Otherwise, a test set of a million samples would take half a minute per
metric."""

AT_ONCE = 64
"""Number of random sign patterns in memory at a time."""


def evident(metric: Metric, tests: Sequence[Compared]) -> bool:
    """Whether the samples that the sides answer differently are too many, and too one-sided, for chance.

    If the sides were equally good, each of these samples could as well have favored the other one. A metric
    that is a sum over samples is therefore tested exactly, with what each sample adds to the difference. In a
    rare class, that is much of the balanced accuracy. Runs with several seeds are averaged first, so that a
    sample counts once. For other metrics there is no such test, and only the number of samples counts.
    Samples that belong together, such as the images of a patient, count as one: their differences are added.
    """
    if metric.by_sample is None:
        return sum(_apart(metric, *test) for test in tests) >= FEWEST_APART
    added = []
    for *sides, labels, groups in tests:
        means = [torch.stack([metric.by_sample(p, labels).cpu().double() for p in s]).mean(0) for s in sides]
        found = means[0] - means[1]
        if groups is not None:
            found = found.new_zeros(int(groups.max()) + 1).index_add_(0, groups.cpu(), found)
        added.append(found)
    return sign_flip_test(torch.cat(added)) <= BY_CHANCE


def sign_flip_test(values: Tensor) -> float:
    """The two-sided p-value of the hypothesis that each of the values [N] could as well be its opposite.

    It is the share of sign patterns whose sum is at least as far from zero. For values of one size, this is
    McNemar's exact test.

    >>> sign_flip_test(torch.tensor([0.1, 0.1, 0.0, 0.1, 0.1, 0.1])), sign_flip_test(torch.ones(6))
    (0.0625, 0.03125)
    """
    values = values.double()
    # What rounding leaves of equal means counts as zero.
    values = values[values.abs() > 1e-9 * values.abs().sum()]
    total, count = values.sum(), min(len(values), DRAWN)
    generator = torch.Generator().manual_seed(SEED)
    rest = values.new_zeros(FLIPS)
    if len(values) > DRAWN:
        order = values.abs().argsort(descending=True)
        rest = torch.randn(FLIPS, dtype=values.dtype, generator=generator) * values[order[DRAWN:]].norm()
        values = values[order[:DRAWN]]
    whole = values.sum()

    def extreme(flipped: Tensor, rest: Tensor) -> int:
        sums = whole - 2 * (flipped.double() @ values) + rest
        return int((sums.abs() >= total.abs() * (1 - 1e-9)).sum())

    every = 1 << count
    if every <= FLIPS:
        return extreme(torch.arange(every)[:, None] >> torch.arange(count) & 1, rest[:every]) / every
    found = sum(
        extreme(torch.randint(2, (AT_ONCE, count), dtype=torch.int8, generator=generator), part)
        for part in rest.split(AT_ONCE)
    )
    return (1 + found) / (1 + FLIPS)  # the pattern that was observed is one of them


def _apart(
    metric: Metric,
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    labels: Tensor,
    groups: Tensor | None = None,
) -> int:
    """The number of samples, or groups, that the sides answer differently, as far as the metric can tell."""
    assert metric.function is not None
    runs = [*first, *second]
    chosen = [F.one_hot(p.argmax(1), p.shape[1]).to(p) for p in runs]
    # A metric of the predicted classes alone, like macro F1, sees no other difference in the probabilities.
    if all(
        metric.function(c, labels) == metric.function(p, labels) for c, p in zip(chosen, runs, strict=True)
    ):
        runs = chosen
    one, other = (torch.stack(side).mean(0) for side in (runs[: len(first)], runs[len(first) :]))
    differ = (one != other).any(1)
    return int(differ.sum()) if groups is None else len(groups.to(differ.device)[differ].unique())
