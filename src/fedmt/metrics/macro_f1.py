"""Macro F1: the mean over classes of the harmonic mean of precision and sensitivity."""

from __future__ import annotations

from torch import Tensor

from fedmt.metrics.base import Metric
from fedmt.metrics.counts import weighted_counts
from fedmt.metrics.intervals import Statistic


def macro_f1(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Over the classes that occur among the labels or the predictions.

    >>> import torch
    >>> round(macro_f1(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1])).item(), 4)
    0.6667
    """
    from torchmetrics.functional.classification import multiclass_f1_score

    guesses, classes = probabilities.argmax(1), probabilities.shape[1]
    return multiclass_f1_score(guesses, labels, classes, average="macro", validate_args=False)


def _resampled(probabilities: Tensor, labels: Tensor) -> Statistic:
    def statistic(weights: Tensor) -> Tensor:
        of = weighted_counts(probabilities, labels, weights)
        return (2 * of.tp / (2 * of.tp + of.fp + of.fn)).nanmean(1)

    return statistic


METRIC = Metric("macro_f1", "Macro F1", macro_f1, resampled=_resampled)
