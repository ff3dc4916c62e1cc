"""Every metric of a set of predictions: only the values after each round, or with intervals at the end.

If several answers are tested (each center with its own matrix or head), a value and the ends of its interval
are the means over the answers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedmt.metrics import METRICS

Key = TypeVar("Key", bound=Hashable)


class Answers(NamedTuple):
    """The answers to the same samples. each: probabilities [N, J] of every answer; labels: [N]. groups: which
    samples belong together (`intervals`); None if no two do."""

    each: Sequence[Tensor]
    labels: Tensor
    groups: Tensor | None = None


def values(tested: Mapping[Key, Answers], last: bool) -> dict[Key, dict[str, float]]:
    """The values by key and metric. Undefined values are left out. All results leave the device together.

    last: include the metrics that are computed only after the last round.
    """
    chosen = [m for m in METRICS.values() if m.function is not None and (last or m.every_round)]
    found: list[Tensor] = []
    for answers in tested.values():
        for metric in chosen:
            assert metric.function is not None
            found += [metric.function(p, answers.labels).float() for p in answers.each]
    numbers = iter(torch.stack(found).tolist() if found else ())
    result: dict[Key, dict[str, float]] = {}
    for key, answers in tested.items():
        means = {m.name: _mean([next(numbers) for _ in answers.each]) for m in chosen}
        result[key] = {name: value for name, value in means.items() if math.isfinite(value)}
    return result


def with_intervals(answers: Answers) -> dict[str, dict[str, float]]:
    """By metric: `value` and, if there is an interval, `low` and `high`."""
    found = {}
    for name, value in values({"": answers}, last=True)[""].items():
        ends = [METRICS[name].ends(p, answers.labels, answers.groups).tolist() for p in answers.each]
        low, high = (_mean(part) for part in zip(*ends, strict=True))
        known = {"low": low, "high": high} if math.isfinite(low + high) else {}
        found[name] = {"value": value, **known}
    return found


def by_class(
    probabilities: Tensor, labels: Tensor, groups: Tensor | None = None
) -> dict[str, dict[str, list[float | None]]]:
    """By metric: `value`, `low` and `high`, each with one number per class; None if it is not defined."""
    found = {}
    for metric in METRICS.values():
        if metric.by_class is not None:
            ends = metric.ends_by_class(probabilities, labels, groups)
            parts = {"value": metric.by_class(probabilities, labels), "low": ends[:, 0], "high": ends[:, 1]}
            found[metric.name] = {k: [_number(x) for x in v.tolist()] for k, v in parts.items()}
    return found


def recorded(record: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """The metrics of a round's record by name, each by label space."""
    return {name: record[name] for name in METRICS if name in record}


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
