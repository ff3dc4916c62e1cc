"""What diagrams show, compared with figures calculated by hand or by brute force."""

import numpy as np
import pytest
import torch

from fedmt.metrics.calibration_error import expected_calibration_error
from fedmt.reports.scores import confusion, reliability


def test_confusion():
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(5, size=200), rng.integers(4, size=200)
    counts = confusion(labels, predicted, 5)
    assert counts[2, 3] == sum((labels == 2) & (predicted == 3)) and counts.sum() == 200


def test_the_diagram_has_the_bins_of_the_calibration_error():
    confidence = np.array([0.55, 0.58, 0.95, 0.96, 1.0])
    right = np.array([True, False, True, True, False])
    bins = reliability(confidence, right, 10)
    assert [b.samples if b else 0 for b in bins] == [0, 0, 0, 0, 0, 2, 0, 0, 0, 3]
    expected = (2 * abs(0.5 - 0.565) + 3 * abs(2 / 3 - 2.91 / 3)) / 5
    drawn = sum(b.samples * abs(b.accuracy - b.confidence) for b in bins if b) / 5
    probabilities = torch.from_numpy(np.stack([confidence, 1 - confidence], 1))
    labels = torch.from_numpy(1 - right.astype(np.int64))
    assert drawn == pytest.approx(expected)
    assert expected_calibration_error(probabilities, labels, 10).item() == pytest.approx(expected)
