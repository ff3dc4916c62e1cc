"""The metrics that models are tested with, in the order in which they are shown.

To add one, write a `Metric` and enter it in `METRICS`; a config can name one of the user's own. Metrics
files, summaries, progress lines, trackers, the report, sweep tables and the model card go through this table,
so nothing else needs to change.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedmt.core.errors import FedmtError
from fedmt.core.registry import Registry
from fedmt.metrics import accuracy, balanced_accuracy, calibration_error, counts, macro_f1, ranking
from fedmt.metrics import scoring_rules as scoring
from fedmt.metrics.base import Metric, formatted

HEADLINE = accuracy.METRIC.name
"""The metric that stands for a run where there is room for one only."""

EVEN_HANDED = balanced_accuracy.METRIC.name
"""The metric that stands next to the headline where some test classes are larger than others."""

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
    """Enters metrics of the user's own, each named as "package.module:NAME". key: for errors."""
    for name in names:
        metric = METRICS.find(name, key)
        if METRICS.setdefault(metric.name, metric) != metric:
            raise FedmtError(
                f"{key}: '{name}' calls itself '{metric.name}', as another metric does; rename it."
            )


__all__ = ["EVEN_HANDED", "HEADLINE", "METRICS", "Metric", "enter", "formatted"]
