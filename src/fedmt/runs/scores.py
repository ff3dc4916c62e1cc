"""What predictions on test data say: intervals, confusion, precision and recall, calibration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]

BINS = 15
"""Of the reliability diagram, all equally wide; the number that Guo et al. (2017) use."""


def wilson(share: float, samples: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval of a share of `samples`, 95% by default. It stays inside [0, 1].

    >>> [round(x, 3) for x in wilson(0.9, 100)]
    [0.826, 0.945]
    """
    if samples <= 0:
        return 0.0, 1.0
    scale = 1 + z * z / samples
    middle = (share + z * z / (2 * samples)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / samples + z * z / (4 * samples * samples))
    # At the very ends the interval does too; rounding would leave it a hair away.
    return (middle - half if share > 0 else 0.0), (middle + half if share < 1 else 1.0)


def confusion(labels: Numbers, predicted: Numbers, classes: int) -> Numbers:
    """Counts [true class, predicted class].

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    flat = labels.astype(np.int64) * classes + predicted.astype(np.int64)
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def precision_recall(counts: Numbers) -> tuple[list[float | None], list[float | None]]:
    """By class; None where a class was never predicted (precision) or has no test sample (recall).

    >>> precision_recall(np.array([[3, 1], [0, 0]]))
    ([1.0, 0.0], [0.75, None])
    """
    right = counts.diagonal()

    def shares(totals: Numbers) -> list[float | None]:
        return [float(r / n) if n else None for r, n in zip(right, totals, strict=True)]

    return shares(counts.sum(0)), shares(counts.sum(1))


class Bin(NamedTuple):
    """Predictions of similar confidence: how many, how confident on average, how often right."""

    samples: int
    confidence: float
    accuracy: float


def reliability(confidence: Numbers, right: Numbers, bins: int = BINS) -> list[Bin | None]:
    """Bins of equal width over confidence; None where a bin is empty."""
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    found: list[Bin | None] = []
    for number in range(bins):
        inside = place == number
        samples = int(inside.sum())
        found.append(
            Bin(samples, float(confidence[inside].mean()), float(right[inside].mean())) if samples else None
        )
    return found


def calibration_error(bins: list[Bin | None]) -> float:
    """The expected calibration error: |accuracy - confidence|, averaged over samples.

    >>> calibration_error([Bin(3, 0.5, 0.5), None, Bin(1, 1.0, 0.6)])
    0.1
    """
    filled = [b for b in bins if b is not None]
    total = sum(b.samples for b in filled)
    return sum(b.samples * abs(b.accuracy - b.confidence) for b in filled) / max(total, 1)
