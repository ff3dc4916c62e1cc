"""The first line of a report: is the best run better than the baseline?

Runs that were tested on the same samples are compared in pairs of answers to each sample. Two intervals are
never compared to see whether they overlap, because that is not a test of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedmt.config.schema import find_input
from fedmt.core.errors import FedmtError
from fedmt.core.rounding import percent, points
from fedmt.data.groups import together
from fedmt.inputs import DEFAULT_INPUT
from fedmt.metrics import EVEN_HANDED, HEADLINE, METRICS
from fedmt.metrics.comparing import BESIDE, Difference, differences
from fedmt.reports.configurations import Configuration, configurations, listed, title
from fedmt.reports.reported import ReportedRun
from fedmt.runs.comparison import Comparison, compare, probabilities
from fedmt.runs.evaluation import Place, Predicted

LISTED = (EVEN_HANDED, HEADLINE)
"""The metrics in which every run is compared with the baseline. The verdict is based on the first."""

SAID = (*LISTED, BESIDE)
"""The metrics that the answer's sentences state."""

SHOWN = (*SAID, "macro_f1", "ece")
"""The main figures of the best run, each with its difference from the baseline."""


def answer(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """What the page says first, in a form that JSON can hold.

    headline, details: sentences. verdict: one word, "" where nothing is compared. best, baseline: places of
    runs; the page opens on the best. differences: by the place of a run, its configuration against the
    baseline; of the best, in more metrics. seeds: configurations with several seeds, their mean and spread.
    configurations: all, by the places of their runs. sites: the differences at each site and in each test
    set of the wanted space.
    """
    found: dict[str, Any] = {"verdict": "", "best": 0, "baseline": None, "differences": {}, "seeds": []}
    found["sites"] = []
    judged = [i for i, run in enumerate(runs) if _tested(run)]
    found["configurations"] = listed(runs, judged)
    if not judged:
        return {**found, "headline": "", "details": []}
    if len(judged) < 2:
        return {**found, **_of_one(runs, *judged)}
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
    best = max(others, key=lambda g: g.mean)
    try:
        against = {g.name: _compared(runs, g, baseline, SHOWN if g is best else LISTED) for g in others}
    except FedmtError as error:
        best = max(groups, key=lambda g: g.mean)
        said = "No verdict: these runs were not tested on the same samples."
        return {**found, "best": best.places[0], "headline": said, "details": [str(error)]}
    compared = against[best.name]
    headline, details = sentences(compared)
    if len(others) > 1:
        details.append(
            f"{best.name} is the best of {len(others)} on these {compared.noun}s. Because it was chosen on "
            "them, its result is slightly too optimistic. The table has the difference of each run."
        )
    details += [_spread(g) for g in (best, baseline) if g.spread is not None]
    for run in (runs[i] for g in (best, baseline) for i in g.places):
        if run.evaluation is not None and _earlier(run):
            details.append(f"{title(run)}: this compares its answers after round {run.evaluation.round}.")
    for group in others:
        both = against[group.name].differences[compared.wanted]
        for place in group.places:
            found["differences"][place] = {name: _short(one) for name, one in both.items()}
    found["sites"] = _by_site(runs, others, baseline)
    return {
        **found,
        "headline": headline,
        "details": details,
        "verdict": compared.verdict.word,
        "best": baseline.places[0] if compared.verdict.word == "worse" else best.places[0],
        "baseline": baseline.places[0],
    }


def _of_one(runs: Sequence[ReportedRun], place: int) -> dict[str, Any]:
    """The answer if one run is tested: its comparison with a baseline if it has one, else what it reaches."""
    alone, stored = _alone(runs[place]), _stored(runs[place])
    if stored is None:
        return {"best": place, "headline": alone, "details": []}
    headline, details = sentences(stored)
    verdict = stored.verdict.word
    return {"best": place, "headline": headline, "details": [*details, alone], "verdict": verdict}


def noun(settings: Mapping[str, Any]) -> str:
    """What one test sample of a run is called: `test image`."""
    return f"test {find_input(settings.get('input', DEFAULT_INPUT.name)).word}"


def sentences(compared: Comparison) -> tuple[str, list[str]]:
    """The verdict with the paired difference, and the values of both sides."""
    found, count = compared.differences[compared.wanted], compared.tested_on(compared.wanted)
    even, first, second = found[EVEN_HANDED], compared.first, compared.second
    begin = {
        "better": f"{first} is better than {second}:",
        "no difference": f"{first} and {second}: no difference in balanced accuracy that {count} can show.",
        "worse": f"{first} is worse than {second}: do not use it.",
    }[compared.verdict.word]
    what = "balanced accuracy" if begin.endswith(":") else "Balanced accuracy"
    headline = f"{begin} {what} is {_size(even)} ({_interval(even)}, paired over the same {count})."
    details = []
    for name in (n for n in SAID if n in found):
        one = found[name]
        metric = METRICS[name]
        said = f"{metric.title}: {metric.format(one.first)} against {metric.format(one.second)}"
        # The difference in balanced accuracy is in the headline.
        details.append(f"{said}." if one is even else f"{said}, {_size(one)} ({_interval(one)}).")
    return headline, details


def _size(one: Difference) -> str:
    unit = " points" if METRICS[one.metric].unit == "share" else ""
    return f"{_change(one, abs(one.value))}{unit} {'higher' if one.value >= 0 else 'lower'}"


def _interval(one: Difference) -> str:
    if not math.isfinite(one.low + one.high):
        return "too few samples for an interval"
    return f"95% interval {_change(one, one.low, True)} to {_change(one, one.high, True)}"


def _change(one: Difference, size: float, sign: bool = False) -> str:
    """In the metric's unit, as the page's scripts write it: shares in percentage points."""
    if METRICS[one.metric].unit == "share":
        return points(size, sign)
    return f"{size:{'+' if sign else ''}.3f}".replace("-", "\N{MINUS SIGN}")


def _tested(run: ReportedRun) -> bool:
    made = run.evaluation
    return made is not None and any(t.space == made.wanted for t in made.tests)


def _earlier(run: ReportedRun) -> bool:
    """Whether the predictions are older than the metrics, as they may be while a run goes on."""
    made = run.evaluation
    return made is not None and bool(run.metrics) and made.round != run.metrics[-1]["round"]


def _is_single(run: ReportedRun) -> bool:
    return str(run.settings.get("method", {}).get("name", "")) == "single"


def _compared(
    runs: Sequence[ReportedRun],
    first: Configuration,
    second: Configuration,
    metrics: Sequence[str],
) -> Comparison:
    sides = [
        {runs[i].label: made for i in group.places if (made := runs[i].evaluation) is not None}
        for group in (first, second)
    ]
    what = noun(runs[first.places[0]].settings)
    return compare(sides[0], sides[1], (first.name, second.name), what, metrics, wanted_only=True)


def _by_site(
    runs: Sequence[ReportedRun], others: Sequence[Configuration], baseline: Configuration
) -> list[dict[str, Any]]:
    """At each site and in each test set of the wanted space, the paired differences in balanced accuracy.

    Each is `{"kind", "name", "samples", "differences"}`, the last by the place of a configuration's first
    run. A place that is not the same samples in every run is left out, as are runs of earlier versions,
    which do not know which samples are from where.
    """

    def tests(group: Configuration) -> list[Predicted]:
        made = [e for i in group.places if (e := runs[i].evaluation) is not None]
        return [next(t for t in e.tests if t.space == e.wanted) for e in made]

    def same(test: Predicted, place: Place) -> bool:
        return any(p[:2] == place[:2] and np.array_equal(p.positions, place.positions) for p in test.places)

    base = tests(baseline)
    found = []
    for place in base[0].places:
        at = torch.from_numpy(place.positions.astype(np.int64))
        labels = torch.from_numpy(base[0].labels.astype(np.int64))[at]
        judged = {}
        for group in others:
            own = tests(group)
            if all(same(test, place) for test in (*own, *base)):
                first, second = ([probabilities(t)[at] for t in side] for side in (own, base))
                groups = next((g for t in (*base, *own) if (g := t.together) is not None), None)
                inside = None if groups is None else together([(len(at), groups[at])])
                one = differences(first, second, labels, [EVEN_HANDED], inside).get(EVEN_HANDED)
                if one is not None:
                    judged[group.places[0]] = _short(one)
        if judged:
            found.append({"kind": place.kind, "name": place.name, "samples": len(at), "differences": judged})
    return found


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
    groups = kept.get("groups", {})
    return Comparison(*names, wanted, kept["samples"], {wanted: found}, noun(run.settings), groups)


def _alone(run: ReportedRun) -> str:
    """The results of one run, with intervals."""
    assert run.evaluation is not None
    wanted = run.evaluation.wanted
    test = next(t for t in run.evaluation.tests if t.space == wanted)
    measured = (run.evaluation.measured or {}).get("metrics", {})
    parts = []
    for metric in (METRICS[name] for name in SAID):
        one = measured.get(metric.name, {}).get(wanted)
        if one is None:
            assert metric.function is not None
            labels = torch.from_numpy(test.labels.astype("int64"))
            one = {"value": float(metric.function(probabilities(test), labels))}
        if not math.isfinite(one["value"]):
            continue  # there is no AUROC if all test samples belong to one class
        ends = f"{metric.format(one['low'])} to {metric.format(one['high'])}" if "low" in one else ""
        called = metric.title if metric.title.isupper() else metric.title.lower()
        parts.append(f"{called} is {metric.format(one['value'])}{f' (95% interval {ends})' if ends else ''}")
    count = f"{len(test.labels):,} {noun(run.settings)}{'' if len(test.labels) == 1 else 's'}"
    when = f", after round {run.evaluation.round}" if _earlier(run) else ""
    return f"{title(run)}{when}: {', '.join(parts[:-1])} and {parts[-1]} in '{wanted}', on {count}."


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
