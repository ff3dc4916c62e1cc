"""The report: runs to one HTML page with everything inside, which opens from disk and asks no network.

`content` turns runs into plain data (JSON), `render` puts that into the page under `page/`, whose scripts
draw it. Curves are drawn by uPlot, which lies beside them with its licence.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2
import numpy as np

from fedmt.data.member import Member
from fedmt.metrics import HEADLINE, METRICS
from fedmt.metrics.measuring import recorded
from fedmt.models.correspondences import in_short, origin, plan
from fedmt.reports.results import for_priors, measured_results, predictions, short, shortened
from fedmt.reports.scores import Numbers
from fedmt.runs.evaluation import Evaluation

# Okabe and Ito's colours, told apart by colour-blind readers too; the last three darker than theirs, since a
# line needs a contrast of 3 to white paper. The page adds line styles to them.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#C46BA0", "#B07C00", "#3390C8")

SCRIPTS = ("basics.js", "tables.js", "curves.js", "matrices.js", "detail.js", "main.js")
MEANS = ("confident_share", "pseudo_label_accuracy", "correspondence_error", "prior_error")
REASONS = ("abstained", "absent", "left_out")


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One run as the report shows it.

    config: resolved, as TOML (`text`) and read (`settings`). summary: None for a run that is not finished.
    notes: what is missing on the page and why. mistakes: by label space, each a dictionary with an image.
    """

    label: str
    metrics: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    summary: Mapping[str, Any] | None = None
    evaluation: Evaluation | None = None
    notes: Sequence[str] = ()
    mistakes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


def content(title: str, intro: str, runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """Everything the page shows, as JSON can hold it."""
    shown = [_run(run) for run in runs]
    verdicts = _verdicts(runs)
    metrics = [
        {"name": m.name, "title": m.title, "unit": m.unit, "better": m.better} for m in METRICS.values()
    ]
    return {
        "title": title,
        "intro": intro,
        "words": [*verdicts, *words(shown, ahead=not verdicts)],
        "runs": shown,
        "metrics": metrics,
        "headline": HEADLINE,
        "colours": COLOURS,
    }


def render(data: Mapping[str, Any], live: str = "") -> str:
    """The page. live: the address, relative to the page, to ask for newer data; none in a file."""
    files = resources.files("fedmt.reports") / "page"

    def read(name: str) -> str:
        return (files / name).read_text(encoding="utf-8")

    template = jinja2.Environment(autoescape=True).from_string(read("page.html.jinja"))
    return template.render(
        data=data,
        live=live,
        # Inside a script element a browser looks for "</script" and "<!--" before it reads JSON.
        json=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        css=read("uplot/uPlot.min.css") + read("page.css"),
        uplot=read("uplot/uPlot.iife.min.js"),
        script="\n".join(read(name) for name in SCRIPTS),
    )


def _verdicts(runs: Sequence[ReportedRun]) -> list[str]:
    """How much better each run is than the baseline that was trained with it."""
    found = [(run.summary or {}).get("comparison") for run in runs]
    return [str(one["sentence"]) for one in found if isinstance(one, dict) and "sentence" in one]


def words(runs: Sequence[Mapping[str, Any]], ahead: bool = True) -> list[str]:
    """The summary in sentences: where each run stands, and which is ahead in the wanted space.

    ahead: False where a verdict, which rests on pairs, says more than intervals that overlap or do not.
    """
    said = []
    for run in runs:
        wanted = run["accuracy"].get(run["wanted"])
        state = f"{run['round']} rounds" if run["finished"] else f"{run['round']} of {run['planned']} rounds"
        sentence = f"{run['label']} ({run['method']}), {state} in {_duration(run['seconds'])}"
        if not run["tested"]:
            said.append(
                f"{sentence}: no accuracy was measured, because there is no test set. Add [[tests]] with "
                "labeled samples to the config, and run it again."
            )
            continue
        if wanted is None:
            said.append(f"{sentence}: no accuracy in the wanted label space.")
            continue
        sentence += f": {_percent(wanted['value'])} of the test samples right in '{run['wanted']}'"
        if "low" in wanted:
            low, high = _percent(wanted["low"]), _percent(wanted["high"])
            sentence += f" (95% interval {low} to {high}, {wanted['n']:,} samples)"
        others = [
            f"{_percent(a['value'])} in '{space}'"
            for space, a in run["accuracy"].items()
            if space != run["wanted"]
        ]
        said.append(sentence + (f"; {', '.join(others)}" if others else "") + ".")
    return said + (_ahead(runs) if ahead else [])


def _ahead(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    spaces = {run["wanted"] for run in runs}
    judged = [run for run in runs if run["wanted"] in run["accuracy"]]
    if len(judged) < 2 or len(spaces) != 1:
        return []
    wanted = spaces.pop()
    judged.sort(key=lambda run: -float(run["accuracy"][wanted]["value"]))
    first, second = (run["accuracy"][wanted] for run in judged[:2])
    points = 100 * (first["value"] - second["value"])
    said = f"Ahead in '{wanted}' is {judged[0]['label']}, {points:.1f} points before {judged[1]['label']}"
    if "low" in first and "low" in second:
        apart = first["low"] > second["high"]
        said += "; their intervals do not overlap" if apart else "; their intervals overlap"
    return [f"{said}."]


def _percent(share: float) -> str:
    """One digit, halves upwards: as the page's own tables round."""
    return f"{math.floor(1000 * share + 0.5) / 10:.1f}%"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _run(run: ReportedRun) -> dict[str, Any]:
    last: Mapping[str, Any] = run.metrics[-1] if run.metrics else {"round": 0, HEADLINE: {}}
    method = run.settings.get("method", {})
    spaces = dict(run.evaluation.spaces) if run.evaluation is not None else {}
    accuracy = last[HEADLINE]
    measured = measured_results(last, run.evaluation)
    named = run.settings.get("wanted") or run.settings.get("benchmark", {}).get("wanted")
    wanted = next(iter(spaces), None) or named or next(iter(accuracy), "")
    summary = run.summary or {}
    origins = _origins(run, method)
    used = in_short(origins) if origins else plan(method)
    return {
        "label": run.label,
        "method": str(method.get("name", "?")) + (f", M {used}" if used else ""),
        "strategy": run.settings.get("aggregation", {}).get("name", ""),
        "finished": run.summary is not None,
        "round": last["round"],
        "planned": run.settings.get("training", {}).get("rounds", last["round"]),
        "seconds": short(sum(r["seconds"]["total"] for r in run.metrics)),
        "wanted": wanted,
        "tested": bool(accuracy or run.settings.get("tests") or run.settings.get("benchmark")),
        "spaces": [{"name": name, "classes": list(classes)} for name, classes in spaces.items()],
        "accuracy": {s: v for s, v in measured["metrics"].get(HEADLINE, {}).items() if s in accuracy},
        **measured,
        "curves": _curves(run.metrics),
        "centers": _centers(run.metrics, run.evaluation, origins),
        **_matrices(run.evaluation),
        "tests": [predictions(t, len(spaces[t.space])) for t in run.evaluation.tests]
        if run.evaluation
        else [],
        "priors": for_priors(run.evaluation),
        "each_test": {t: shortened(m) for t, m in last.get("tests", {}).items()},
        "evaluated": run.evaluation.round if run.evaluation is not None else None,
        "mistakes": dict(run.mistakes),
        "config": run.text,
        "versions": summary.get("versions", {}),
        "seed": run.settings.get("seed"),
        "device": summary.get("device"),
        "threads": summary.get("threads"),
        "best": {k: short(v) for k, v in summary.get(f"best_{HEADLINE}_of_any_round", {}).items()},
        "notes": list(run.notes),
    }


def _origins(run: ReportedRun, method: Mapping[str, Any]) -> dict[str, str]:
    """Where the M of each center came from; nothing before the first evaluation, or if no M is used."""
    if run.evaluation is None or "correspondence" not in method:
        return {}
    found = {
        m.name: origin(method, run.evaluation.wanted, m, m.name in run.evaluation.estimates) or ""
        for m in run.evaluation.members
        if m.name != run.evaluation.reference
    }
    # Without its data, a run folder tells of the centers with an M-hat alone.
    others = sorted({name for r in run.metrics for name in r["centers"]} - found.keys())
    return found | dict.fromkeys(others, "not known")


def _curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns over the recorded rounds; None where a round lacks a value."""
    # Without a warm-up, round 0 is the untrained network: it would only stretch the axes.
    used = [r for r in metrics if r["round"] > 0 or r.get("reference_loss") is not None] or list(metrics)
    names = list(dict.fromkeys(name for r in used for name in recorded(r)))
    spaces = list(dict.fromkeys(s for r in used for name in recorded(r) for s in r[name]))
    losses = list(dict.fromkeys(name for r in used for name in r.get("losses", {})))
    return {
        "round": [r["round"] for r in used],
        "metrics": {
            name: {s: [short(r.get(name, {}).get(s)) for r in used] for s in spaces} for name in names
        },
        "losses": {name: [short(r.get("losses", {}).get(name)) for r in used] for name in losses}
        | {"reference_loss": [short(r.get("reference_loss")) for r in used]},
        **{key: [short(r.get(key)) for r in used] for key in MEANS if any(key in r for r in used)},
    }


def _centers(
    metrics: Sequence[Mapping[str, Any]], evaluation: Evaluation | None, origins: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Who took part: size, label space, where M came from, rounds missed and why, the last figures; over the
    rounds, M-hat's error, the norm of its update and its cosine to the mean of all."""
    members = {m.name: m for m in evaluation.members} if evaluation is not None else {}
    names = list(members) or sorted({name for r in metrics for name in r["centers"]})
    found = []
    for name in names:
        member = members.get(name)
        records = [(r["round"], r["centers"][name]) for r in metrics if name in r["centers"]]
        missed: dict[str, int] = {}
        reasons: dict[str, int] = {}
        for _, record in records:
            for kind in REASONS:
                if kind in record:
                    key = record[kind] if kind == "absent" else kind
                    missed[key] = missed.get(key, 0) + 1
                    if kind != "absent":
                        reasons[str(record[kind])] = reasons.get(str(record[kind]), 0) + 1
        last: Mapping[str, Any] = next((r for _, r in reversed(records) if "losses" in r), {})
        center: dict[str, Any] = {
            "name": name,
            "samples": member.size if member else None,
            "space": member.space.name if member and member.space else None,
            "reference": evaluation is not None and name == evaluation.reference,
            "correspondence": origins.get(name),
            "trained": sum("losses" in r for _, r in records),
            "missed": missed,
            "reasons": reasons,
            "loss": short(last.get("losses", {}).get("loss")),
            "confident_share": short(last.get("confident_share")),
            "pseudo_label_accuracy": short(last.get("pseudo_label_accuracy")),
            "prior_error": short(last.get("prior_error")),
        }
        for key, column in (
            ("errors", "correspondence_error"),
            ("norms", "update_norm"),
            ("cosines", "update_cosine"),
        ):
            values = [(n, r[column]) for n, r in records if column in r]
            if values:
                center[key] = [[n for n, _ in values], [short(v) for _, v in values]]
        center["clipped"] = sum("clipped" in r for _, r in records)
        found.append(center)
    return found


def _matrices(evaluation: Evaluation | None) -> dict[str, Any]:
    """M-hat by center, and the true matrices, each once: many centers share one."""
    if evaluation is None:
        return {"truths": [], "estimates": []}
    truths: list[dict[str, Any]] = []
    places: dict[bytes, int] = {}

    def place(member: Member) -> int | None:
        if member.correspondence is None or member.space is None:
            return None
        matrix = member.correspondence.matrix.cpu().numpy()
        key = member.space.name.encode() + matrix.tobytes()
        if key not in places:
            places[key] = len(truths)
            truths.append({"space": member.space.name, "matrix": _bytes(matrix)})
        return places[key]

    estimates = [
        {
            "center": m.name,
            "space": m.space.name if m.space is not None else None,
            "matrix": _bytes(evaluation.estimates[m.name]),
            "truth": place(m),
        }
        for m in evaluation.members
        if m.name in evaluation.estimates
    ]
    return {"truths": truths, "estimates": estimates}


def _bytes(matrix: Numbers) -> str:
    """Probabilities as one byte each (to 1/255, finer than a shade can be told), in base 64."""
    return base64.b64encode(np.rint(matrix.clip(0, 1) * 255).astype(np.uint8).tobytes()).decode()
