"""The metrics that models are tested with, in the order in which they are shown.

To add one, write a `Metric` and enter it in `METRICS`. A config can also name the user's own. Metrics files,
summaries, progress lines, trackers, the report, sweep tables and the model card all use this table, so
nothing else needs to change.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedmt.core.errors import FedmtError
from fedmt.core.registry import Registry
from fedmt.metrics import accuracy, balanced_accuracy, calibration_error, counts, macro_f1, ranking
from fedmt.metrics import scoring_rules as scoring
from fedmt.metrics.base import Metric, formatted

HEADLINE = accuracy.METRIC.name
"""The metric that represents a run if there is room for only one."""

EVEN_HANDED = balanced_accuracy.METRIC.name
"""The metric shown next to the headline if some test classes are larger than others."""

METRICS: Registry[Metric] = Registry(
    "metric",
    {
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
    },
    lambda found: None if isinstance(found, Metric) else "is not a fedmt.metrics.Metric.",
    form="package.module:NAME",
)


def enter(names: Iterable[str], key: str) -> None:
    """Registers the user's own metrics, each named as "package.module:NAME". key: for error messages."""
    for name in names:
        metric = METRICS.find(name, key)
        if METRICS.setdefault(metric.name, metric) != metric:
            raise FedmtError(
                f"{key}: '{name}' has the name '{metric.name}', which another metric already has. Rename it."
            )


__all__ = ["EVEN_HANDED", "HEADLINE", "METRICS", "Metric", "enter", "formatted"]
