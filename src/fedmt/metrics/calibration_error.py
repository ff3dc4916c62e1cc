"""Expected calibration error (Guo et al. 2017): the mean distance between confidence and accuracy.

Samples are put into equally wide bins (a, b] by the probability of their most probable class. The version in
torchmetrics puts confidences of exactly 1, which are common, into a separate bin, so its value differs if
such samples occur.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedmt.metrics.base import Metric
from fedmt.metrics.intervals import Statistic, percentiles, resampled

BINS = 15
"""The number that Guo et al. use."""


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Tensor:
    """A tensor without dimensions, from 0 to 1.

    >>> expected_calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1])).item()
    0.0
    """
    return _gaps(probabilities, labels, bins).sum(0).abs().sum() / len(labels)


def _gaps(probabilities: Tensor, labels: Tensor, bins: int) -> Tensor:
    """[N, bins]: correct (1 or 0) minus confidence, in the column of the sample's bin."""
    confidence, guess = probabilities.max(1)
    which = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    return torch.nn.functional.one_hot(which, bins) * ((guess == labels).to(confidence) - confidence)[:, None]


def _resampled(probabilities: Tensor, labels: Tensor) -> Statistic:
    gaps = _gaps(probabilities, labels, BINS)
    return lambda weights: (weights @ gaps.to(weights)).abs().sum(1) / weights.sum(1)


def _interval(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The percentile interval, corrected for the bias of resampling.

    Resampling adds noise to each bin, and noise of either sign adds to a sum of absolute values. Without the
    correction the interval of a well calibrated model would lie above its value.
    """
    found = resampled(_resampled(probabilities, labels), probabilities)
    bias = found.mean() - expected_calibration_error(probabilities, labels).cpu()
    return (percentiles(found) - bias).clamp(0, 1)


METRIC = Metric(
    "ece",
    "Expected calibration error",
    expected_calibration_error,
    _interval,
    resampled=_resampled,
    better="lower",
    inflated=True,
)
