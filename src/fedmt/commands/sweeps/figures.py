"""Figures of one round by dotted name, such as `accuracy.fine`, and how a table shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmt.config import Config
from fedmt.metrics import METRICS

SHARES = ("confident_share", "pseudo_label_accuracy", "attack_success")
"""Training measures that are shares. They are shown in percent, like the metrics with that unit."""

MEASURES = (
    *SHARES,
    "attack_success",
    "correspondence_error",
    "prior_error",
    "reference_loss",
    "clipped_entries",
)
"""What a round's record contains besides metrics and losses, as one number."""

NESTED = ("mean_matrix", "tests")
"""The shapes of a record: `{metric: {space: value}}` and `{test: {metric: value}}`."""


def metric_of(record: Mapping[str, Any], metric: str) -> float | None:
    """A metric of one round's record by its dotted name; None if the method does not have it.

    >>> record = {"accuracy": {"fine": 0.5}, "mean_matrix": {"ece": {"v1.0": 0.25}}}
    >>> metric_of(record, "accuracy.fine"), metric_of(record, "mean_matrix.ece.v1.0")
    (50.0, 0.25)
    """
    found: Any = record
    for part in _parts(metric):
        found = found.get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, int | float):
        return None
    return 100 * float(found) if is_share(metric) else float(found)


def spelled_out(metric: str, config: Config) -> str:
    """`balanced_accuracy` is short for this metric in the run's wanted label space."""
    wanted = config.benchmark.wanted if config.benchmark is not None else config.wanted
    return f"{metric}.{wanted}" if metric in METRICS else metric


def is_share(metric: str) -> bool:
    """Whether it is shown in percent."""
    first, *rest = _parts(metric)
    name = first if first not in NESTED else (rest or [""])[0 if first == "mean_matrix" else -1]
    return name in SHARES or (name in METRICS and METRICS[name].unit == "share")


def _parts(metric: str) -> list[str]:
    """The sequence of keys in a dotted name. Names of label spaces and tests may contain dots themselves."""
    first, _, rest = metric.partition(".")
    if first == "mean_matrix":
        return [first, *rest.split(".", 1)]
    return [first, *rest.rsplit(".", 1)] if first == "tests" else metric.split(".", 1)


def metrics_of(record: Mapping[str, Any]) -> list[str]:
    """The dotted names of a round's metrics, without the centers' own."""
    found = []
    for key, value in record.items():
        if key == "centers":
            continue
        for name, inner in value.items() if isinstance(value, Mapping) else ((None, None),):
            here = key if name is None else f"{key}.{name}"
            found += [f"{here}.{last}" for last in inner] if isinstance(inner, Mapping) else [here]
    return found


def number(metric: str, value: float) -> str:
    """A share in percent with one decimal, any other metric with three."""
    return f"{value:.1f}" if is_share(metric) else f"{value:.3f}"


def curve_name(stem: str, metric: str) -> str:
    """The file name of a curve, without its ending."""
    return f"{stem}-{metric.replace('.', '-').replace(' ', '-')}"
