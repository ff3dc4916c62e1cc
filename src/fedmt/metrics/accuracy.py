"""Accuracy: the share of samples whose most probable class is the true one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmt.metrics.base import Metric
from fedmt.metrics.intervals import Statistic, of_weighted_mean, wilson


def accuracy(probabilities: Tensor, labels: Tensor) -> Tensor:
    """A tensor without dimensions.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0])).item()
    0.5
    """
    return (probabilities.argmax(1) == labels).float().mean()


def _interval(probabilities: Tensor, labels: Tensor) -> Tensor:
    return wilson(accuracy(probabilities, labels), torch.tensor(len(labels)))


def _resampled(probabilities: Tensor, labels: Tensor) -> Statistic:
    return of_weighted_mean(probabilities.argmax(1) == labels)


METRIC = Metric(
    "accuracy",
    "Accuracy",
    accuracy,
    _interval,
    resampled=_resampled,
    unit="share",
    by_sample=lambda probabilities, labels: (probabilities.argmax(1) == labels).double() / len(labels),
)
