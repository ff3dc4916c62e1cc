"""A run's test results as the report shows them: metrics with intervals, and what the diagrams need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedmt.core.priors import answers_for
from fedmt.metrics import EVEN_HANDED, HEADLINE, METRICS
from fedmt.metrics.comparing import differences
from fedmt.metrics.measuring import Answers, recorded, values
from fedmt.models.priors import of_some
from fedmt.reports.macro import macro
from fedmt.reports.scores import Numbers, confusion, reliability
from fedmt.reports.thresholds import curves
from fedmt.runs.comparison import probabilities as answers
from fedmt.runs.evaluation import Evaluation, Predicted, measured_again


def measured_results(last: Mapping[str, Any], evaluation: Evaluation | None) -> dict[str, Any]:
    """Every metric of the last round by label space, with intervals, and by class.

    The values are those that the round recorded. If the round recorded fewer metrics, the others and all
    intervals come from the evaluation, if it belongs to that round.
    """
    known: Mapping[str, Any] = {}
    if evaluation is not None:
        known = evaluation.measured or measured_again(evaluation)
    current = evaluation is not None and evaluation.round == last["round"]
    own = evaluation is not None and evaluation.measured is not None
    samples = {t.space: len(t.labels) for t in evaluation.tests} if evaluation is not None else {}
    found: dict[str, Any] = {}
    for kind, record in (("metrics", last), ("mean_matrix", last.get("mean_matrix", {}))):
        found[kind] = {n: {s: {"value": short(v)} for s, v in m.items()} for n, m in recorded(record).items()}
        for name, spaces in known.get(kind, {}).items() if current else ():
            for space, result in spaces.items():
                shown = found[kind].setdefault(name, {}).setdefault(space, shortened(result))
                # An evaluation by an earlier version contains only the mean of the answers. If there are
                # several, its interval may belong to another value.
                if "low" in result and (own or result["low"] <= shown["value"] <= result["high"]):
                    shown |= {k: short(result[k]) for k in ("low", "high")} | {"n": samples.get(space)}
    found["by_class"] = {
        name: {s: {k: [short(x) for x in v] for k, v in r.items()} for s, r in spaces.items()}
        for name, spaces in known.get("by_class", {}).items()
    }
    return found


CHOOSING = (HEADLINE, EVEN_HANDED)
"""Metrics of the predicted class, which therefore depend on the prior."""

PLACES = {
    "uniform": "equally frequent",
    "reference": "as frequent as at the reference center",
    "centers": "as frequent as at the centers",
}

ALIKE = 0.02
"""Total variation distance below which two priors are shown as one."""


def for_priors(evaluation: Evaluation | None, temperature: float | None = None) -> dict[str, Any] | None:
    """What the model would reach in the wanted space with answers for other class frequencies than its own.

    Computed from the probabilities that the run saved, so no data is needed. None if it saved none in the
    wanted space, or an earlier version that did not record its frequencies.
    temperature: the fitted one. A prediction applies it before the prior, and thus may choose another class.
    own: the words for the frequencies that all other results assume. others: the words and the metrics.
    """
    tests = [t for t in evaluation.tests if t.space == evaluation.wanted] if evaluation is not None else []
    if evaluation is None or not tests or "own" not in evaluation.priors:
        return None
    priors = {k: torch.tensor(v, dtype=torch.float64) for k, v in evaluation.priors.items()}
    own = priors.pop("own")
    # The reference center is a member too, but does not estimate. Nobody does if the method assumes a prior.
    known = len(evaluation.center_priors)
    some = of_some((known, len(evaluation.members) - 1)) if known else ""
    places = {**PLACES, "centers": PLACES["centers"] + some}
    priors = {"uniform": torch.full_like(own, 1 / len(own)), **priors}
    apart = {name: float((prior - own).abs().sum() / 2) for name, prior in priors.items()}
    saved = np.concatenate([t.probabilities for t in tests])
    cooled = saved if temperature is None else at_temperature(saved, temperature)
    probabilities = torch.from_numpy(cooled.astype(np.float64))
    labels = torch.cat([torch.from_numpy(t.labels.astype(np.int64)) for t in tests])
    others = []
    for name in (n for n in PLACES if apart.get(n, 0) > ALIKE):
        (found,) = values(
            {"": Answers([answers_for(probabilities, priors[name], own)], labels)}, False
        ).values()
        others.append({"prior": places[name], **{m: short(found.get(m)) for m in CHOOSING}})
    # Rounded, because the run's shares were computed in float32. The first of several is named: if the
    # reference center's classes are equally frequent, it is more helpful to say this.
    nearest = min((n for n in PLACES if n in apart), key=lambda n: round(apart[n], 6))
    return {"own": places[nearest], "others": others}


def at_temperature(probabilities: Numbers, temperature: float) -> Numbers:
    """softmax(z / T) [N, K] in float64, from the saved softmax(z): its power 1 / T, normalized.

    A probability that was rounded to 0 counts as a sixth of the smallest number of the saved type.
    """
    least = float(np.finfo(probabilities.dtype).smallest_subnormal) / 6
    powers = np.clip(probabilities.astype(np.float64), least, None) ** (1 / temperature)
    found: Numbers = powers / powers.sum(1, keepdims=True)
    return found


CALIBRATION = ("ece", "log_loss", "brier_score")
"""Metrics of the probabilities, which a temperature may better or worsen without changing an answer."""

ENDS = ("value", "low", "high")


def predictions(test: Predicted, classes: int, temperature: float | None = None) -> dict[str, Any]:
    """The predictions in one label space, as the diagrams need them; `by_class` has the metrics.

    temperature: the fitted one. The calibration is then also shown with it.
    """
    counts = confusion(test.labels, test.predicted, classes)
    labels = torch.from_numpy(test.labels.astype(np.int64))
    right = test.predicted == test.labels
    found = {
        "space": test.space,
        "n": len(test.labels),
        "grouped": test.groups is not None,
        "accuracy": short(float(right.mean())),
        "confusion": counts.ravel().tolist(),
        "support": counts.sum(1).tolist(),
        "curves": curves(test.labels, test.probabilities, classes),
        "macro": {name: shortened(m) for name, m in macro(answers(test), labels, test.together).items()},
        **_calibration(test, test.probabilities),
    }
    if temperature is not None:
        cooled = at_temperature(test.probabilities, temperature)
        after, before = (torch.from_numpy(p.astype(np.float64)) for p in (cooled, test.probabilities))
        change = differences([after], [before], labels, CALIBRATION, test.together)
        found["scaled"] = {
            "temperature": short(temperature),
            "change": {n: {k: short(getattr(d, k)) for k in ENDS} for n, d in change.items()},
            **_calibration(test, cooled),
        }
    return found


def _calibration(test: Predicted, answers: Numbers) -> dict[str, Any]:
    """bins: [samples, mean confidence, share right], None where a bin is empty. calibration: each metric of
    the probabilities with its interval.
    """
    probabilities, labels = (
        torch.from_numpy(x.astype(t)) for x, t in ((answers, np.float64), (test.labels, np.int64))
    )
    confidence = answers[np.arange(len(test.labels)), test.predicted].astype(np.float64)
    bins = reliability(confidence, test.predicted == test.labels)
    found = {}
    for name in CALIBRATION:
        function = METRICS[name].function
        assert function is not None
        ends = METRICS[name].ends(probabilities, labels, test.together).tolist()
        values = (function(probabilities, labels).item(), *ends)
        found[name] = dict(zip(ENDS, map(short, values), strict=True))
    return {
        "bins": [[b.samples, short(b.confidence), short(b.accuracy)] if b else None for b in bins],
        "calibration": found,
    }


def short(value: float | None) -> float | None:
    """Five digits, which is more than a screen shows. Anything that is not a number becomes a gap."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def shortened(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: short(value) for key, value in values.items()}
