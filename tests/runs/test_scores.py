"""Figures on the page, against ones worked out by hand or by brute force."""

import numpy as np
import pytest

from fedmt.runs.scores import calibration_error, confusion, precision_recall, reliability, wilson


def test_wilson_against_its_definition():
    """The ends of the interval are the shares p at which the observed one is just 1.96 deviations away."""
    for right, n in ((0, 10), (3, 10), (10, 10), (754, 2000)):
        share = right / n
        for end in wilson(share, n):
            if 0 < end < 1:
                assert abs(share - end) / np.sqrt(end * (1 - end) / n) == pytest.approx(1.959964, abs=1e-5)
    assert wilson(0, 10)[0] == 0 and wilson(1, 10)[1] == 1 and wilson(0.5, 0) == (0, 1)


def test_confusion_and_what_follows_from_it():
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(5, size=200), rng.integers(4, size=200)
    counts = confusion(labels, predicted, 5)
    assert counts[2, 3] == sum((labels == 2) & (predicted == 3)) and counts.sum() == 200
    precision, recall = precision_recall(counts)
    assert precision[4] is None and recall[1] == np.mean(predicted[labels == 1] == 1)
    assert precision[2] == np.mean(labels[predicted == 2] == 2)


def test_calibration():
    confidence = np.array([0.55, 0.58, 0.95, 0.96, 1.0])
    right = np.array([True, False, True, True, False])
    bins = reliability(confidence, right, 10)
    assert [b.samples if b else 0 for b in bins] == [0, 0, 0, 0, 0, 2, 0, 0, 0, 3]
    assert calibration_error(bins) == pytest.approx((2 * abs(0.5 - 0.565) + 3 * abs(2 / 3 - 2.91 / 3)) / 5)
    assert calibration_error(reliability(np.ones(4), np.ones(4, bool))) == 0
