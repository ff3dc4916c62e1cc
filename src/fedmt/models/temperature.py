"""Temperature scaling (Guo et al. 2017): one number that calibrates the confidences, and how the result is
evaluated."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmt.metrics.calibration_error import expected_calibration_error

LOWEST, HIGHEST = 0.05, 20.0
"""The range in which the temperature is searched. A result at either end means that the data did not
determine it."""


def fit_temperature(logits: Tensor, labels: Tensor, log_shift: Tensor | None = None) -> float:
    """The T that minimizes the cross-entropy of softmax(logits / T + log_shift), [N, K], [N] and [K].

    log_shift: the shift for the prior of the place that the labels come from, if the logits are for another
    prior.

    The cross-entropy is convex in 1/T, so it has a single minimum in log T, which golden-section search
    finds.

    >>> import torch
    >>> sure = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> round(fit_temperature(sure, torch.tensor([0, 0, 0, 1])), 3)  # right 3 times in 4: 4 / log 3
    3.641
    """
    logits, labels = logits.double(), labels.to(logits.device)
    shift = _shift(log_shift, logits)

    def loss(log_temperature: float) -> float:
        return F.cross_entropy(logits / math.exp(log_temperature) + shift, labels).item()

    low, high = math.log(LOWEST), math.log(HIGHEST)
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-5:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def judged(
    logits: Tensor, labels: Tensor, temperature: float, log_shift: Tensor | None = None
) -> dict[str, float]:
    """Calibration error and cross-entropy at temperature 1 and at `temperature`; log_shift: as above."""
    logits = logits.double()
    labels, shift = labels.to(logits.device), _shift(log_shift, logits)
    found: dict[str, float] = {"samples": len(labels)}
    for when, scaled in (("before", logits + shift), ("after", logits / temperature + shift)):
        found[f"ece_{when}"] = expected_calibration_error(scaled.softmax(1), labels).item()
        found[f"nll_{when}"] = F.cross_entropy(scaled, labels).item()
    return found


def _shift(log_shift: Tensor | None, logits: Tensor) -> Tensor:
    return torch.zeros_like(logits[0]) if log_shift is None else log_shift.to(logits)
