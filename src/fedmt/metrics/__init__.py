"""The metrics that models are tested with, in the order in which they are shown.

To add one, write a `Metric` and enter it in `METRICS`. Metrics files, summaries, progress lines, trackers,
the report, sweep tables and the model card go through this table, so nothing else needs to change.
"""

from __future__ import annotations

from fedmt.errors import FedmtError, listed, nearest
from fedmt.metrics import accuracy, balanced_accuracy, calibration_error, counts, macro_f1, ranking
from fedmt.metrics import scoring_rules as scoring
from fedmt.metrics.base import Metric, formatted

HEADLINE = accuracy.METRIC.name
"""The metric that stands for a run where there is room for one only."""

EVEN_HANDED = balanced_accuracy.METRIC.name
"""The metric that stands next to the headline where some test classes are larger than others."""

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        accuracy.METRIC,
        balanced_accuracy.METRIC,
        macro_f1.METRIC,
        counts.PRECISION,
        counts.SENSITIVITY,
        counts.SPECIFICITY,
        ranking.AUROC,
        ranking.AVERAGE_PRECISION,
        scoring.BRIER,
        scoring.LOG_LOSS,
        calibration_error.METRIC,
    )
}


def find_metric(name: str) -> Metric:
    """The metric of that name; the error for an unknown one names the nearest."""
    if name not in METRICS:
        raise FedmtError(
            f"No metric is called '{name}'.{nearest(name, METRICS)} Known: {listed(METRICS, 30)}."
        )
    return METRICS[name]


__all__ = ["EVEN_HANDED", "HEADLINE", "METRICS", "Metric", "find_metric", "formatted"]
