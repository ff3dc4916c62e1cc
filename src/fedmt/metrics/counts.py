"""Precision, sensitivity and specificity of each class: shares of correctly classified samples.

A sample counts for its most probable class. Each class is judged against all others together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedmt.metrics.base import Metric
from fedmt.metrics.intervals import wilson


class Counts(NamedTuple):
    """Sample counts by class [J] (or [B, J], by resample): true and false positives, true and false
    negatives."""

    tp: Tensor
    fp: Tensor
    tn: Tensor
    fn: Tensor


def counts(probabilities: Tensor, labels: Tensor) -> Counts:
    """The counts of one test set, [J] each."""
    guesses, classes = probabilities.argmax(1), probabilities.shape[1]

    def tally(of: Tensor, each: Tensor) -> Tensor:
        return torch.zeros(classes, dtype=torch.int64, device=of.device).scatter_add_(0, of, each)

    one = torch.ones_like(labels)
    tp, positive, actual = tally(labels, (guesses == labels).long()), tally(guesses, one), tally(labels, one)
    fp, fn = positive - tp, actual - tp
    return Counts(tp, fp, len(labels) - tp - fp - fn, fn)


def weighted_counts(probabilities: Tensor, labels: Tensor, weights: Tensor) -> Counts:
    """The counts of every resample, [B, J] each. weights: [B, N]."""
    classes = probabilities.shape[1]
    guessed = torch.nn.functional.one_hot(probabilities.argmax(1), classes).to(weights)
    true = torch.nn.functional.one_hot(labels, classes).to(weights)
    tp, positive, actual = weights @ (guessed * true), weights @ guessed, weights @ true
    fp, fn = positive - tp, actual - tp
    return Counts(tp, fp, weights.sum(1, keepdim=True) - tp - fp - fn, fn)


def _share(part: Tensor, rest: Tensor) -> Tensor:
    """part / (part + rest), or NaN if both are 0."""
    return part / (part + rest)


def precision(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[J]: the share of the samples predicted as a class that belong to it; NaN if there are none.

    >>> precision(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1])).tolist()
    [0.5, 1.0, nan]
    """
    of = counts(probabilities, labels)
    return _share(of.tp, of.fp)


def sensitivity(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[J]: the share of the samples of a class that are predicted as it (recall); NaN if there are none.

    >>> sensitivity(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1])).tolist()
    [1.0, 0.5, nan]
    """
    of = counts(probabilities, labels)
    return _share(of.tp, of.fn)


def specificity(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[J]: the share of the samples of other classes that are not predicted as it; NaN if there are none.

    >>> specificity(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 1, 1])).tolist()
    [0.5, 1.0]
    """
    of = counts(probabilities, labels)
    return _share(of.tn, of.fp)


def _precision_interval(probabilities: Tensor, labels: Tensor) -> Tensor:
    of = counts(probabilities, labels)
    return wilson(_share(of.tp, of.fp), of.tp + of.fp)


def _sensitivity_interval(probabilities: Tensor, labels: Tensor) -> Tensor:
    of = counts(probabilities, labels)
    return wilson(_share(of.tp, of.fn), of.tp + of.fn)


def _specificity_interval(probabilities: Tensor, labels: Tensor) -> Tensor:
    of = counts(probabilities, labels)
    return wilson(_share(of.tn, of.fp), of.tn + of.fp)


PRECISION = Metric(
    "precision", "Precision", by_class=precision, interval_by_class=_precision_interval, unit="share"
)
SENSITIVITY = Metric(
    "sensitivity",
    "Sensitivity (recall)",
    by_class=sensitivity,
    interval_by_class=_sensitivity_interval,
    unit="share",
)
SPECIFICITY = Metric(
    "specificity", "Specificity", by_class=specificity, interval_by_class=_specificity_interval, unit="share"
)
