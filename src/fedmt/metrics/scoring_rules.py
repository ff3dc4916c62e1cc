"""Brier score and log loss: proper scoring rules, which judge the probabilities and not only the order.

Each is the mean of one value per sample, and its interval is that of such a mean.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmt.metrics.base import Metric
from fedmt.metrics.intervals import of_the_mean, of_weighted_mean

LEAST = torch.finfo(torch.float32).eps
"""A smaller probability counts as this, because a single true class with probability 0 would make the mean
infinite."""


def squared_distances(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[N]: squared distances between the probabilities and the truth (1 for the true class, 0 for the
    others), from 0 to 2.

    >>> squared_distances(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1])).tolist()
    [0.5, 0.0]
    """
    return (probabilities - F.one_hot(labels, probabilities.shape[1])).square().sum(1)


def surprises(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[N]: minus the natural logarithm of the true class's probability.

    >>> surprises(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1])).tolist()
    [0.6931471824645996, -0.0]
    """
    return F.nll_loss(probabilities.clamp_min(LEAST).log(), labels, reduction="none")


BRIER = Metric(
    "brier_score",
    "Brier score",
    lambda probabilities, labels: squared_distances(probabilities, labels).mean(),
    lambda probabilities, labels: of_the_mean(squared_distances(probabilities, labels)),
    resampled=lambda probabilities, labels: of_weighted_mean(squared_distances(probabilities, labels)),
    better="lower",
    by_sample=lambda probabilities, labels: squared_distances(probabilities, labels) / len(labels),
)
LOG_LOSS = Metric(
    "log_loss",
    "Log loss",
    lambda probabilities, labels: surprises(probabilities, labels).mean(),
    lambda probabilities, labels: of_the_mean(surprises(probabilities, labels)),
    resampled=lambda probabilities, labels: of_weighted_mean(surprises(probabilities, labels)),
    unit="nats",
    better="lower",
    by_sample=lambda probabilities, labels: surprises(probabilities, labels) / len(labels),
)
