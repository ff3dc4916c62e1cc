"""Several seeds of one configuration as one: the mean of each metric, its spread, and the mean curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedmt.reports.results import short


def pooled(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several runs as `content` shows them, of one configuration.

    metrics, mean_matrix: `{metric: {space: {"value", "spread", "least", "most", "seeds"}}}`: the mean, the
    standard deviation between seeds, the lowest and the highest seed. curves: means over the seeds that have
    the round.
    """
    means = {kind: _metrics([run[kind] for run in runs]) for kind in ("metrics", "mean_matrix")}
    return {**means, "curves": _curves([run["curves"] for run in runs])}


def _metrics(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for metrics in each for name in metrics):
        for space in dict.fromkeys(space for metrics in each for space in metrics.get(name, {})):
            known = [m[name][space]["value"] for m in each if m.get(name, {}).get(space)]
            numbers = [v for v in known if v is not None]
            if numbers:
                found.setdefault(name, {})[space] = {
                    "value": short(fmean(numbers)),
                    "spread": short(stdev(numbers)) if len(numbers) > 1 else None,
                    "least": min(numbers),
                    "most": max(numbers),
                    "seeds": len(numbers),
                }
    return found


def _curves(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rounds = sorted({r for curves in each for r in curves["round"]})

    def mean(parts: Sequence[Any]) -> Any:
        """parts: the same place of each run's curves: values, a table of such places, or nothing."""
        tables = [p for p in parts if isinstance(p, Mapping)]
        if tables:
            names = dict.fromkeys(name for table in tables for name in table)
            return {n: mean([p.get(n) if isinstance(p, Mapping) else None for p in parts]) for n in names}
        by_round: dict[int, list[float]] = {}
        for curves, values in zip(each, parts, strict=True):
            for r, value in zip(curves["round"], values or (), strict=False):
                if value is not None:
                    by_round.setdefault(r, []).append(value)
        return [short(fmean(by_round[r])) if r in by_round else None for r in rounds]

    whole = mean([{k: v for k, v in curves.items() if k != "round"} for curves in each])
    return {"round": rounds, **whole}
