"""A run's test results as the report shows them: metrics with intervals, and what the diagrams need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedmt.metrics.calibration_error import expected_calibration_error
from fedmt.metrics.measuring import recorded
from fedmt.reports.scores import confusion, reliability
from fedmt.runs.evaluation import Evaluation, Predicted, measured_again


def measured_results(last: Mapping[str, Any], evaluation: Evaluation | None) -> dict[str, Any]:
    """Every metric of the last round by label space, with intervals, and by class.

    The values are those that the round recorded. Of a round that recorded fewer metrics, the others and all
    intervals are those of the evaluation, if it is one of that round.
    """
    known: Mapping[str, Any] = {}
    if evaluation is not None:
        known = evaluation.measured or measured_again(evaluation)
    current = evaluation is not None and evaluation.round == last["round"]
    own = evaluation is not None and evaluation.measured is not None
    samples = {t.space: len(t.labels) for t in evaluation.tests} if evaluation is not None else {}
    found: dict[str, Any] = {}
    for kind, values in (("metrics", last), ("mean_matrix", last.get("mean_matrix", {}))):
        found[kind] = {n: {s: {"value": short(v)} for s, v in m.items()} for n, m in recorded(values).items()}
        for name, spaces in known.get(kind, {}).items() if current else ():
            for space, result in spaces.items():
                shown = found[kind].setdefault(name, {}).setdefault(space, shortened(result))
                # An evaluation by an earlier version knows only the mean of the answers. Where there are
                # several, its interval may be that of another value.
                if "low" in result and (own or result["low"] <= shown["value"] <= result["high"]):
                    shown |= {k: short(result[k]) for k in ("low", "high")} | {"n": samples.get(space)}
    found["by_class"] = {
        name: {s: {k: [short(x) for x in v] for k, v in r.items()} for s, r in spaces.items()}
        for name, spaces in known.get("by_class", {}).items()
    }
    return found


def predictions(test: Predicted, classes: int) -> dict[str, Any]:
    """The predictions in one label space, as the diagrams need them; `by_class` has the metrics."""
    counts = confusion(test.labels, test.predicted, classes)
    right = test.predicted == test.labels
    rows = np.arange(len(test.labels))
    bins = reliability(test.probabilities[rows, test.predicted].astype(np.float64), right)
    probabilities, labels = (
        torch.from_numpy(x.astype(t)) for x, t in ((test.probabilities, np.float64), (test.labels, np.int64))
    )
    return {
        "space": test.space,
        "n": len(test.labels),
        "accuracy": short(float(right.mean())),
        "confusion": counts.ravel().tolist(),
        "support": counts.sum(1).tolist(),
        "bins": [[b.samples, short(b.confidence), short(b.accuracy)] if b else None for b in bins],
        "calibration_error": short(expected_calibration_error(probabilities, labels).item()),
    }


def short(value: float | None) -> float | None:
    """Five digits are more than a screen shows; what is not a number becomes a gap."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def shortened(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: short(value) for key, value in values.items()}
