"""Several seeds shown as one: means and deviations against NumPy's in float64."""

from typing import Any

import numpy as np
import pytest

from fedmt.reports.seeds import pooled


def run(accuracy: float, rounds: list[int], curve: list[float | None]) -> dict[str, Any]:
    return {
        "metrics": {"accuracy": {"kind": {"value": accuracy, "low": 0.1, "high": 0.9}}},
        "mean_matrix": {},
        "curves": {"round": rounds, "metrics": {"accuracy": {"kind": curve}}, "losses": {"loss": curve}},
    }


def test_means_spread_and_range() -> None:
    values = [0.61, 0.655, 0.7]
    found = pooled([run(v, [1], [v]) for v in values])["metrics"]["accuracy"]["kind"]
    assert found["value"] == pytest.approx(np.mean(values)) and found["seeds"] == 3
    assert found["spread"] == pytest.approx(np.std(values, ddof=1), rel=1e-4)
    assert (found["least"], found["most"]) == (0.61, 0.7) and "low" not in found


def test_a_mean_curve_is_over_the_seeds_that_have_the_round() -> None:
    found = pooled([run(0.5, [1, 2], [0.2, None]), run(0.5, [1, 2, 3], [0.4, 0.5, 0.9])])["curves"]
    assert found["round"] == [1, 2, 3]
    assert found["metrics"]["accuracy"]["kind"] == pytest.approx([0.3, 0.5, 0.9])
    assert found["losses"]["loss"] == pytest.approx([0.3, 0.5, 0.9])
