"""The means over classes, with intervals, against a float64 reference."""

import numpy as np
import pytest
import torch

from fedmt.metrics import intervals
from fedmt.reports.macro import macro
from fedmt.reports.results import predictions
from fedmt.runs.evaluation import Predicted


def by_hand(labels: np.ndarray, guesses: np.ndarray, classes: int) -> list[float]:
    found = []
    for k in range(classes):
        true, taken = labels == k, guesses == k
        tp, tn = (true & taken).sum(), (~true & ~taken).sum()
        precision = tp / taken.sum() if taken.any() else np.nan
        found.append([precision, tp / true.sum() if true.any() else np.nan, tn / (~true).sum()])
    return np.nanmean(np.array(found, dtype=np.float64), 0).tolist()


def test_macro_means_and_their_bootstrap():
    """Class 3 is never predicted, so it has no precision and does not count in the mean."""
    rng = np.random.default_rng(0)
    labels, guesses = rng.integers(4, size=120), rng.integers(3, size=120)
    guesses[::2] = np.minimum(labels[::2], 2)
    found = macro(torch.eye(4)[guesses], torch.from_numpy(labels))
    assert list(found) == ["precision", "sensitivity", "specificity"]
    values = [one["value"] for one in found.values()]
    assert values == pytest.approx(by_hand(labels, guesses, 4), abs=1e-6)
    drawn = []
    for weights in intervals.drawn_weights(120, 4, torch.device("cpu")):
        for row in weights.long():
            at = np.repeat(np.arange(120), row.numpy())
            drawn.append(by_hand(labels[at], guesses[at], 4))
    ends = np.nanquantile(np.array(drawn), [0.025, 0.975], axis=0).T
    assert [[one["low"], one["high"]] for one in found.values()] == [
        pytest.approx(e, abs=1e-6) for e in ends.tolist()
    ]


def test_a_temperature_changes_the_calibration_in_pairs():
    """The answers are too confident. 0.5 makes them more so, 2 less so. The interval is for the paired
    change."""
    rng = np.random.default_rng(1)
    sure = rng.uniform(0.8, 0.99, 400)
    labels = (rng.random(400) < 0.3).astype(int)
    probabilities = np.stack([sure, 1 - sure], 1)
    test = Predicted("s", labels, probabilities.argmax(1), probabilities)
    found = predictions(test, 2, 2.0)
    before, after, change = found["calibration"], found["scaled"]["calibration"], found["scaled"]["change"]
    for name in ("ece", "log_loss", "brier_score"):
        assert before[name]["low"] < before[name]["value"] < before[name]["high"]
        difference = after[name]["value"] - before[name]["value"]
        assert change[name]["value"] == pytest.approx(difference, abs=2e-5)
        assert change[name]["low"] < difference < change[name]["high"] < 0
    # The paired change is known more precisely than either value.
    width = {k: v["brier_score"]["high"] - v["brier_score"]["low"] for k, v in (("b", before), ("c", change))}
    assert width["c"] < width["b"]
