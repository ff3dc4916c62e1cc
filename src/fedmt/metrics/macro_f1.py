"""Macro F1: the mean over classes of the harmonic mean of precision and sensitivity."""

from __future__ import annotations

from torch import Tensor

from fedmt.metrics.base import Metric
from fedmt.metrics.counts import counts, weighted_counts
from fedmt.metrics.intervals import Statistic


def macro_f1(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Over the classes that occur among the labels or the predictions.

    >>> import torch
    >>> round(macro_f1(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1])).item(), 4)
    0.6667
    """
    of = counts(probabilities, labels)
    return (2 * of.tp / (2 * of.tp + of.fp + of.fn)).nanmean()


def _resampled(probabilities: Tensor, labels: Tensor) -> Statistic:
    def statistic(weights: Tensor) -> Tensor:
        of = weighted_counts(probabilities, labels, weights)
        return (2 * of.tp / (2 * of.tp + of.fp + of.fn)).nanmean(1)

    return statistic


METRIC = Metric("macro_f1", "Macro F1", macro_f1, resampled=_resampled)
