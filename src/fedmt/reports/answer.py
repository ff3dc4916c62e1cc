"""The first line of a report: is the best run better than the baseline?

Runs that were tested on the same samples are compared in pairs of answers to each sample. Two intervals are
never compared to see whether they overlap, because that is not a test of the difference.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedmt.config.schema import find_input
from fedmt.core.errors import FedmtError
from fedmt.inputs import DEFAULT_INPUT
from fedmt.methods import METHODS
from fedmt.metrics import EVEN_HANDED, HEADLINE, METRICS
from fedmt.metrics.comparing import Difference
from fedmt.reports.reported import ReportedRun
from fedmt.reports.rounding import percent, points
from fedmt.runs.comparison import Comparison, compare, probabilities

SAID = (EVEN_HANDED, HEADLINE)
"""The metrics of the answer. The verdict is based on the first."""


@dataclass(frozen=True)
class Configuration:
    """One configuration: a run, or several that differ only in their seed. places: their positions among the
    report's runs.

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
        """The standard deviation over seeds. None for a single seed."""
        return torch.tensor(self.values, dtype=torch.float64).std().item() if len(self.values) > 1 else None


def answer(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """What the page says first, in a form that JSON can hold.

    headline, details: sentences. verdict: one word, "" if nothing is compared. best, baseline: positions of
    runs. The page opens on the best. differences: by the position of a run, its configuration compared with
    the baseline. seeds: configurations with several seeds, their mean and spread. configurations: all, by the
    places of their runs.
    """
    found: dict[str, Any] = {"verdict": "", "best": 0, "baseline": None, "differences": {}, "seeds": []}
    judged = [i for i, run in enumerate(runs) if _tested(run)]
    found["configurations"] = _listed(runs, judged)
    if not judged:
        return {**found, "headline": "", "details": []}
    known = [_stored(run) for run in runs]
    if len(judged) < 2:
        [place] = judged
        alone = _alone(runs[place])
        stored = known[place]
        if stored is not None:
            headline, details = sentences(stored)
            return {
                **found,
                "best": place,
                "headline": headline,
                "details": [*details, alone],
                "verdict": stored.verdict.word,
            }
        return {**found, "best": place, "headline": alone, "details": []}
    groups = configurations(runs, judged)
    found["seeds"] = [
        {"name": g.name, "places": g.places, "mean": g.mean, "spread": g.spread}
        for g in groups
        if len(g.places) > 1
    ]
    if len(groups) == 1:
        return {**found, "best": judged[0], "headline": _seeds_alone(groups[0]), "details": []}
    baseline = next((g for g in groups if _is_single(runs[g.places[0]])), groups[0])
    others = [g for g in groups if g is not baseline]
    try:
        against = {g.name: _compared(runs, g, baseline) for g in others}
    except FedmtError as error:
        best = max(groups, key=lambda g: g.mean)
        said = "No verdict: these runs were not tested on the same samples."
        return {**found, "best": best.places[0], "headline": said, "details": [str(error)]}
    best = max(others, key=lambda g: g.mean)
    compared = against[best.name]
    headline, details = sentences(compared)
    if len(others) > 1:
        details.append(
            f"{best.name} is the best of {len(others)} on these {compared.noun}s. Because it was chosen on "
            "them, its result is slightly too optimistic. The table has the difference of each run."
        )
    details += [_spread(g) for g in (best, baseline) if g.spread is not None]
    for group in others:
        both = against[group.name].differences[compared.wanted]
        for place in group.places:
            found["differences"][place] = {name: _short(both[name]) for name in SAID if name in both}
    return {
        **found,
        "headline": headline,
        "details": details,
        "verdict": compared.verdict.word,
        "best": baseline.places[0] if compared.verdict.word == "worse" else best.places[0],
        "baseline": baseline.places[0],
    }


def noun(settings: Mapping[str, Any]) -> str:
    """What one test sample of a run is called: `test image`."""
    return f"test {find_input(settings.get('input', DEFAULT_INPUT.name)).word}"


def sentences(compared: Comparison) -> tuple[str, list[str]]:
    """The verdict with the paired difference, and the values of both sides."""
    found, samples = compared.differences[compared.wanted], compared.samples[compared.wanted]
    even, first, second = found[EVEN_HANDED], compared.first, compared.second
    count = f"{samples:,} {compared.noun}{'' if samples == 1 else 's'}"
    begin = {
        "better": f"{first} is better than {second}:",
        "no difference": f"{first} and {second}: no difference that {count} can show.",
        "worse": f"{first} is worse than {second}: do not use it.",
    }[compared.verdict.word]
    what = "balanced accuracy" if begin.endswith(":") else "Balanced accuracy"
    headline = f"{begin} {what} is {_size(even)} ({_interval(even)}, paired over the same {count})."
    details = []
    for name in (n for n in SAID if n in found):
        one = found[name]
        said = f"{METRICS[name].title}: {percent(one.first)} against {percent(one.second)}"
        # The difference in balanced accuracy is in the headline.
        details.append(f"{said}." if one is even else f"{said}, {_size(one)} ({_interval(one)}).")
    return headline, details


def _size(one: Difference) -> str:
    return f"{points(abs(one.value))} points {'higher' if one.value >= 0 else 'lower'}"


def _interval(one: Difference) -> str:
    if not math.isfinite(one.low + one.high):
        return "too few samples for an interval"
    return f"95% interval {points(one.low, True)} to {points(one.high, True)}"


def configurations(runs: Sequence[ReportedRun], places: Sequence[int]) -> list[Configuration]:
    """The runs, with those that differ only in their seed combined."""
    by_config: dict[str, list[int]] = {}
    for place in places:
        settings = {k: v for k, v in runs[place].settings.items() if k not in ("seed", "device")}
        by_config.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(place)
    found: list[Configuration] = []
    for members in by_config.values():
        seeds = {str(runs[i].settings.get("seed")) for i in members}
        # Runs with the same config and the same seed are repetitions, not other seeds.
        parts = [tuple(members)] if len(seeds) == len(members) else [(i,) for i in members]
        for part in parts:
            labels = [runs[i].label for i in part]
            name = title(runs[part[0]]) if len(part) == 1 else f"{_common(labels)} ({len(part)} seeds)"
            values = tuple(_value(runs[i]) for i in part)
            found.append(Configuration(name, part, values))
    names = [g.name for g in found]
    if len(set(names)) == len(names):
        return found
    return [Configuration(", ".join(runs[i].label for i in g.places), g.places, g.values) for g in found]


def _listed(runs: Sequence[ReportedRun], judged: Sequence[int]) -> list[dict[str, Any]]:
    """Every configuration in the order of the runs. A run that was not tested is a configuration by
    itself."""
    groups = [(g.places, g.name) for g in configurations(runs, judged)]
    groups += [((i,), "") for i in range(len(runs)) if i not in judged]
    return [
        {"name": runs[places[0]].label if len(places) == 1 else name, "places": list(places)}
        for places, name in sorted(groups)
    ]


def _common(labels: Sequence[str]) -> str:
    """The common part of the names of several seeds, without the word seed.

    >>> _common(["thyroid-fedmt-seed0-c3d4", "thyroid-fedmt-seed1-a1b2"])
    'thyroid-fedmt'
    """
    found = re.sub(r"[\s/_.(,-]*(seed)?[\s/_.(,=-]*$", "", _beginning(labels), flags=re.I)
    return found or " and ".join(labels)


def _beginning(labels: Sequence[str]) -> str:
    low, high = min(labels), max(labels)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]


def _tested(run: ReportedRun) -> bool:
    made = run.evaluation
    return made is not None and any(t.space == made.wanted for t in made.tests)


def _is_single(run: ReportedRun) -> bool:
    return str(run.settings.get("method", {}).get("name", "")) == "single"


def _value(run: ReportedRun) -> float:
    assert run.evaluation is not None
    test = next(t for t in run.evaluation.tests if t.space == run.evaluation.wanted)
    function = METRICS[EVEN_HANDED].function
    assert function is not None
    return float(function(probabilities(test), torch.from_numpy(test.labels.astype("int64"))))


def _compared(runs: Sequence[ReportedRun], first: Configuration, second: Configuration) -> Comparison:
    sides = [
        {runs[i].label: made for i in group.places if (made := runs[i].evaluation) is not None}
        for group in (first, second)
    ]
    what = noun(runs[first.places[0]].settings)
    return compare(sides[0], sides[1], (first.name, second.name), what, SAID, wanted_only=True)


def _stored(run: ReportedRun) -> Comparison | None:
    """What `fedmt run --baseline` found, for a run whose baseline is not in the report."""
    kept = (run.summary or {}).get("comparison")
    if not isinstance(kept, dict) or not {"first", "second", "wanted", "samples", "differences"} <= set(kept):
        return None
    wanted = str(kept["wanted"])
    found = {}
    for name in SAID:
        one = kept["differences"].get(name, {}).get(wanted)
        if one is not None:
            numbers = {k: math.nan if v is None else float(v) for k, v in one.items()}
            found[name] = Difference(name, **numbers)
    if EVEN_HANDED not in found:
        return None
    names = str(kept["first"]), str(kept["second"])
    return Comparison(*names, wanted, kept["samples"], {wanted: found}, noun(run.settings))


def _alone(run: ReportedRun) -> str:
    """The results of one run, with intervals."""
    assert run.evaluation is not None
    wanted = run.evaluation.wanted
    test = next(t for t in run.evaluation.tests if t.space == wanted)
    measured = (run.evaluation.measured or {}).get("metrics", {})
    parts = []
    for name in SAID:
        one = measured.get(name, {}).get(wanted)
        if one is None:
            function = METRICS[name].function
            assert function is not None
            labels = torch.from_numpy(test.labels.astype("int64"))
            one = {"value": float(function(probabilities(test), labels))}
        interval = f" (95% interval {percent(one['low'])} to {percent(one['high'])})" if "low" in one else ""
        parts.append(f"{METRICS[name].title.lower()} is {percent(one['value'])}{interval}")
    count = f"{len(test.labels):,} {noun(run.settings)}{'' if len(test.labels) == 1 else 's'}"
    return f"{title(run)}: {' and '.join(parts)} in '{wanted}', on {count}."


def title(run: ReportedRun) -> str:
    """The run's label, with its method if the label does not contain it: `federation (FedMT)`."""
    name = str(run.settings.get("method", {}).get("name", ""))
    method = METHODS[name].__name__ if name in METHODS else name
    said = not method or method.lower() in run.label.lower()
    return run.label if said else f"{run.label} ({method})"


def _seeds_alone(group: Configuration) -> str:
    return f"{group.name}: balanced accuracy is {_mean(group)}."


def _spread(group: Configuration) -> str:
    return f"{group.name}: balanced accuracy {_mean(group)}."


def _mean(group: Configuration) -> str:
    low, high = percent(min(group.values)), percent(max(group.values))
    return (
        f"{percent(group.mean)} on average over {len(group.places)} seeds (standard deviation "
        f"{points(group.spread or 0.0)} points, from {low} to {high})"
    )


def _short(one: Difference) -> dict[str, float | None]:
    return {
        k: None if not math.isfinite(v) else float(f"{v:.5g}")
        for k, v in (("value", one.value), ("low", one.low), ("high", one.high))
    }
