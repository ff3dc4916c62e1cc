"""What the report draws of predictions on test data: confusion and calibration."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmt.metrics.calibration_error import BINS

Numbers = NDArray[Any]


def confusion(labels: Numbers, predicted: Numbers, classes: int) -> Numbers:
    """Counts [true class, predicted class].

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    flat = labels.astype(np.int64) * classes + predicted.astype(np.int64)
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


class Bin(NamedTuple):
    """Predictions of similar confidence: how many, how confident on average, how often right."""

    samples: int
    confidence: float
    accuracy: float


def reliability(confidence: Numbers, right: Numbers, bins: int = BINS) -> list[Bin | None]:
    """Bins of equal width over confidence, as in the expected calibration error. None if a bin is empty."""
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    found: list[Bin | None] = []
    for number in range(bins):
        inside = place == number
        samples = int(inside.sum())
        found.append(
            Bin(samples, float(confidence[inside].mean()), float(right[inside].mean())) if samples else None
        )
    return found
