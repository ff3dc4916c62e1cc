"""Balanced accuracy: the mean sensitivity of the classes. A rare class counts as much as a common one."""

from __future__ import annotations

from torch import Tensor

from fedmt.metrics.base import Metric
from fedmt.metrics.counts import sensitivity, weighted_counts
from fedmt.metrics.intervals import Statistic


def balanced_accuracy(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Over the classes that have test samples.

    >>> import torch
    >>> balanced_accuracy(torch.eye(3)[[0, 0, 0, 0]], torch.tensor([0, 0, 0, 1])).item()
    0.5
    """
    return sensitivity(probabilities, labels).nanmean()


def _resampled(probabilities: Tensor, labels: Tensor) -> Statistic:
    def statistic(weights: Tensor) -> Tensor:
        of = weighted_counts(probabilities, labels, weights)
        return (of.tp / (of.tp + of.fn)).nanmean(1)

    return statistic


def _by_sample(probabilities: Tensor, labels: Tensor) -> Tensor:
    samples = labels.bincount()
    return (probabilities.argmax(1) == labels).double() / samples[labels] / (samples > 0).sum()


METRIC = Metric(
    "balanced_accuracy",
    "Balanced accuracy",
    balanced_accuracy,
    resampled=_resampled,
    unit="share",
    by_sample=_by_sample,
)
