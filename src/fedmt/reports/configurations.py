"""The configurations of a report: a run, or several runs that differ in their seed alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedmt.methods import called
from fedmt.metrics import EVEN_HANDED, METRICS
from fedmt.models.correspondences import in_short, plan
from fedmt.reports.centers import origins
from fedmt.reports.reported import ReportedRun
from fedmt.runs.comparison import probabilities


@dataclass(frozen=True)
class Configuration:
    """One configuration: a run, or several that differ in their seed alone. places: among the report's runs.

    values: balanced accuracy in the wanted space, of each run.
    """

    name: str
    places: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for a single one."""
        return torch.tensor(self.values, dtype=torch.float64).std().item() if len(self.values) > 1 else None


def configurations(runs: Sequence[ReportedRun], places: Sequence[int]) -> list[Configuration]:
    """The runs, with those that differ in nothing but their seed put together."""
    by_config: dict[str, list[int]] = {}
    for place in places:
        settings = {k: v for k, v in runs[place].settings.items() if k not in ("seed", "device")}
        by_config.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(place)
    parts: list[tuple[int, ...]] = []
    for members in by_config.values():
        seeds = {str(runs[i].settings.get("seed")) for i in members}
        # Runs with the same config and the same seed are repetitions, not other seeds.
        parts += [tuple(members)] if len(seeds) == len(members) else [(i,) for i in members]
    names = _names([[runs[i] for i in part] for part in parts])
    return [
        Configuration(name, part, tuple(_value(runs[i]) for i in part))
        for name, part in zip(names, parts, strict=True)
    ]


def _names(groups: Sequence[Sequence[ReportedRun]]) -> list[str]:
    """What each group is called. Where several begin alike, where their M came from tells them apart; where
    that is the same too, the first run of each stands for it.
    """
    several = [group for group in groups if len(group) > 1]
    chosen = [_common([run.label for run in group]) for group in several]
    by_origin = [f"{name}, M {_origin(group[0])}" for name, group in zip(chosen, several, strict=True)]
    by_first = [f"{group[0].label} and others" for group in several]
    for longer in (by_origin, by_first):
        chosen = [new if chosen.count(old) > 1 else old for old, new in zip(chosen, longer, strict=True)]
    called = iter(chosen)
    return [title(g[0]) if len(g) == 1 else f"{next(called)} ({len(g)} seeds)" for g in groups]


def _origin(run: ReportedRun) -> str:
    method = run.settings.get("method", {})
    return in_short(origins(run, method)) or plan(method) or "not used"


def listed(runs: Sequence[ReportedRun], judged: Sequence[int]) -> list[dict[str, Any]]:
    """Every configuration in the order of the runs; a run that was not tested is one by itself."""
    groups = [(g.places, g.name) for g in configurations(runs, judged)]
    groups += [((i,), "") for i in range(len(runs)) if i not in judged]
    return [
        {"name": runs[places[0]].label if len(places) == 1 else name, "places": list(places)}
        for places, name in sorted(groups)
    ]


def _common(labels: Sequence[str]) -> str:
    """What the names of several seeds have in common, without the word seed.

    >>> _common(["thyroid-fedmt-seed0-c3d4", "thyroid-fedmt-seed1-a1b2"])
    'thyroid-fedmt'
    """
    found = re.sub(r"[\s/_.(,-]*(seed)?[\s/_.(,=-]*$", "", _beginning(labels), flags=re.I)
    return found or " and ".join(labels)


def _beginning(labels: Sequence[str]) -> str:
    low, high = min(labels), max(labels)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]


def title(run: ReportedRun) -> str:
    """The run's label, with its method where the label does not say it: `federation (FedMT)`."""
    method = called(str(run.settings.get("method", {}).get("name", "")))
    said = not method or method.lower() in run.label.lower()
    return run.label if said else f"{run.label} ({method})"


def _value(run: ReportedRun) -> float:
    assert run.evaluation is not None
    test = next(t for t in run.evaluation.tests if t.space == run.evaluation.wanted)
    function = METRICS[EVEN_HANDED].function
    assert function is not None
    return float(function(probabilities(test), torch.from_numpy(test.labels.astype("int64"))))
