"""Operating points, against brute force and against the registry's AUROC."""

import base64

import numpy as np
import pytest
import torch

from fedmt.metrics.ranking import auroc
from fedmt.reports.results import predictions
from fedmt.reports.thresholds import FEWER, POINTS, curves, operating_points
from fedmt.runs.evaluation import Predicted


def test_each_point_is_what_its_threshold_takes():
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(20, size=80) / 20, rng.random(80) < 0.3
    found = operating_points(scores, positive, 100)
    for threshold, sensitivity, fall_out in found[1:]:
        taken = scores >= threshold
        assert sensitivity == pytest.approx((taken & positive).sum() / positive.sum())
        assert fall_out == pytest.approx((taken & ~positive).sum() / (~positive).sum())
    assert found[0].tolist() == [1, 0, 0] and found[-1].tolist()[1:] == [1, 1]
    area = np.trapezoid(found[:, 1], found[:, 2])
    both = torch.from_numpy(np.stack([1 - scores, scores], 1))
    assert area == pytest.approx(auroc(both, torch.from_numpy(positive.astype(np.int64)))[1].item(), abs=1e-6)


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_few_points_keep_the_area(share):
    rng = np.random.default_rng(1)
    positive = rng.random(5000) < share
    scores = rng.random(5000) * 0.7 + 0.3 * positive * rng.random(5000)
    few, every = (operating_points(scores, positive, n) for n in (POINTS, 6000))
    assert len(few) == POINTS and (np.diff(few[:, 1:], axis=0) >= 0).all()
    areas = [np.trapezoid(p[:, 1], p[:, 2]) for p in (few, every)]
    assert areas[0] == pytest.approx(areas[1], abs=0.01)


def test_curves_are_small_and_a_class_without_samples_is_no_error():
    rng = np.random.default_rng(2)
    probabilities = rng.dirichlet(np.ones(40), 60).astype(np.float16)
    found = curves(rng.integers(39, size=60), probabilities, 40)
    assert found["points"] == FEWER and len(base64.b64decode(found["values"])) == 40 * FEWER * 3 * 2


def test_temperature_scaling_is_shown_next_to_the_answers():
    """By hand: at T = 1/2, 0.6 against 0.4 becomes 0.36 / 0.52."""
    test = Predicted("s", np.array([0, 1]), np.array([0, 0]), np.array([[0.6, 0.4], [0.6, 0.4]]))
    found = predictions(test, 2, temperature=0.5)
    (before,), (after,) = ([b for b in f["bins"] if b] for f in (found, found["scaled"]))
    assert before == [2, 0.6, 0.5] and after == [2, pytest.approx(0.36 / 0.52, abs=1e-4), 0.5]
    assert found["scaled"]["calibration"]["ece"]["value"] == pytest.approx(0.36 / 0.52 - 0.5, abs=1e-4)
    assert "scaled" not in predictions(test, 2)
