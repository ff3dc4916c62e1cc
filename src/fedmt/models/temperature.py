"""Temperature scaling (Guo et al. 2017): one number that makes confidences honest, and how that is judged."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from fedmt.metrics.calibration_error import expected_calibration_error

LOWEST, HIGHEST = 0.05, 20.0
"""Where the temperature is looked for. One at either end says that the data did not determine it."""


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T that minimises the cross-entropy of softmax(logits / T), [N, K] and [N].

    In 1/T the cross-entropy is convex, so it has one valley in log T, which golden-section search finds.

    >>> import torch
    >>> sure = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> round(fit_temperature(sure, torch.tensor([0, 0, 0, 1])), 3)  # right 3 times in 4: 4 / log 3
    3.641
    """
    logits, labels = logits.double(), labels.to(logits.device)

    def loss(log_temperature: float) -> float:
        return F.cross_entropy(logits / math.exp(log_temperature), labels).item()

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


def judged(logits: Tensor, labels: Tensor, temperature: float) -> dict[str, float]:
    """Calibration error and cross-entropy at temperature 1 and at `temperature`."""
    logits = logits.double()
    labels = labels.to(logits.device)
    found: dict[str, float] = {"samples": len(labels)}
    for when, scaled in (("before", logits), ("after", logits / temperature)):
        found[f"ece_{when}"] = expected_calibration_error(scaled.softmax(1), labels).item()
        found[f"nll_{when}"] = F.cross_entropy(scaled, labels).item()
    return found
