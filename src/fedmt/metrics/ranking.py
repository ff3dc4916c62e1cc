"""AUROC and average precision: how well a class's probability ranks its samples before the others.

Each class is judged against all others together (one-vs-rest); the value for the whole test set is the mean
over the classes that have test samples and are not the only one (macro). Both are computed after the last
round only, since they sort all samples once for each class.

torchmetrics has both, and a test compares the values. It is not used here, because it ranks one set at a
time, so resampling would repeat it hundreds of times, and because importing it takes two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedmt.metrics.base import Metric, Resampled
from fedmt.metrics.intervals import Statistic


def auroc(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[J]: the probability that a sample of the class is ranked before a sample of another class; ties count
    half.

    >>> auroc(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4]]), torch.tensor([0, 0, 1])).tolist()
    [0.5, 0.5]
    """
    return _once(area, probabilities, labels)


def average_precision(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[J]: the mean precision over the class's samples, each at the threshold that just includes it."""
    return _once(mean_precision, probabilities, labels)


def _once(summed_up: Callable[[Ranked], Tensor], probabilities: Tensor, labels: Tensor) -> Tensor:
    """The values [J] of the test set itself, which is a resample with every sample once."""
    weights = torch.ones(1, len(labels), dtype=torch.float64, device=labels.device)
    return _statistic(summed_up, probabilities, labels)(weights)[0]


def _judged(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[J]: whether there are samples of the class and of others."""
    positives = torch.nn.functional.one_hot(labels, probabilities.shape[1]).sum(0)
    return (positives > 0) & (positives < len(labels))


def _mean(by_class: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda probabilities, labels: by_class(probabilities, labels).nanmean()


# -- intervals -----------------------------------------------------------------------------------------


class Ranked(NamedTuple):
    """The P samples of a class in every resample, [P, B] each: how often each occurs, and what ranks before
    it.

    Samples of equal score form one group. up_to: all samples to the end of its group; before: to the end of
    the group before. tp_up_to, tp_before: of these, the samples of the class. everyone: [B], all samples.
    """

    weights: Tensor
    up_to: Tensor
    before: Tensor
    tp_up_to: Tensor
    tp_before: Tensor
    everyone: Tensor


def ranked(scores: Tensor, positive: Tensor, weights: Tensor) -> Ranked:
    """scores, positive: [N], of one class. weights: [N, B], one column per resample.

    This sorts once for all resamples, and sums weights only between the requested positions. All sums are of
    integers, so they are exact.
    """
    order = scores.argsort(descending=True)
    ascending, positive = -scores[order], positive[order]
    places = positive.nonzero().flatten()
    wanted, own = ascending[places], weights[order[places]]
    # The group of each sample of the class, as the places before and after it in descending order.
    first, last = (torch.searchsorted(ascending, wanted, right=end) for end in (False, True))
    tp_first, tp_last = (torch.searchsorted(wanted, wanted, right=end) for end in (False, True))
    bounds = torch.cat([first.new_zeros(1), first, last]).unique()
    # Gathers the rows of weights and sums them from each bound to the next, in one pass over memory.
    parts = torch.nn.functional.embedding_bag(order, weights, bounds, mode="sum")
    zero = torch.zeros_like(weights[:1])
    total, tp = torch.cat([zero, parts.cumsum(0)]), torch.cat([zero, own.cumsum(0)])
    before, up_to = (total[torch.searchsorted(bounds, ends)] for ends in (first, last))
    return Ranked(own, up_to, before, tp[tp_last], tp[tp_first], total[-1])


def area(found: Ranked) -> Tensor:
    """The AUROC [B]: the share of pairs in which the sample of the class ranks before the other. Ties count
    half."""
    own = found.weights.sum(0)
    after = (found.everyone - found.up_to) - (own - found.tp_up_to)
    tied = (found.up_to - found.before) - (found.tp_up_to - found.tp_before)
    return (found.weights * (after + tied / 2)).sum(0) / (own * (found.everyone - own))


def mean_precision(found: Ranked) -> Tensor:
    """The average precision [B]."""
    precision = found.tp_up_to / found.up_to.clamp_min(1)
    return (found.weights * precision).sum(0) / found.weights.sum(0)


def _statistic(summed_up: Callable[[Ranked], Tensor], probabilities: Tensor, labels: Tensor) -> Statistic:
    """weights [B, N] to values [B, J]."""
    judged = _judged(probabilities, labels).tolist()
    # A product with a correspondence may round a probability to just above 1, where equal scores differ.
    probabilities = probabilities.float().clamp(0, 1)

    def statistic(weights: Tensor) -> Tensor:
        columns = weights.T.contiguous()
        found = weights.new_full((len(weights), len(judged)), torch.nan)
        for k in (k for k, is_judged in enumerate(judged) if is_judged):
            found[:, k] = summed_up(ranked(probabilities[:, k].contiguous(), labels == k, columns))
        return found

    return statistic


def _resampled(summed_up: Callable[[Ranked], Tensor]) -> Resampled:
    def resampled(probabilities: Tensor, labels: Tensor) -> Statistic:
        statistic = _statistic(summed_up, probabilities, labels)
        return lambda weights: statistic(weights).nanmean(1)

    return resampled


AUROC = Metric(
    "auroc",
    "AUROC",
    _mean(auroc),
    by_class=auroc,
    resampled_by_class=partial(_statistic, area),
    resampled=_resampled(area),
    every_round=False,
)
AVERAGE_PRECISION = Metric(
    "average_precision",
    "Average precision",
    _mean(average_precision),
    by_class=average_precision,
    resampled_by_class=partial(_statistic, mean_precision),
    resampled=_resampled(mean_precision),
    every_round=False,
)
