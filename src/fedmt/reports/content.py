"""The report: turns runs into one self-contained HTML page that opens from disk without a network.

`content` turns runs into plain data (JSON), `render` puts that into the page under `page/`, whose scripts
draw it. Curves are drawn by uPlot, which is stored next to them with its license.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from fedmt.core.rounding import duration
from fedmt.metrics import EVEN_HANDED, HEADLINE, METRICS
from fedmt.metrics.measuring import recorded
from fedmt.models.correspondences import in_short, plan
from fedmt.reports.answer import answer, noun
from fedmt.reports.centers import centers, matrices, origins
from fedmt.reports.provenance import NOTICE, digest, provenance
from fedmt.reports.reported import ReportedRun
from fedmt.reports.results import for_priors, measured_results, predictions, short, shortened
from fedmt.reports.seeds import pooled
from fedmt.runs.evaluation import Evaluation

# Okabe and Ito's colors, which color-blind readers can distinguish too. The last three are darker than
# theirs, because a line needs a contrast of 3 on white paper. The page adds line styles.
COLORS = ("#39424e", "#0072B2", "#D55E00", "#009E73", "#C46BA0", "#B07C00", "#3390C8")

SCRIPTS = (
    "basics.js",
    "downloads.js",
    "tables.js",
    "forest.js",
    "summary.js",
    "metrics.js",
    "curves.js",
    "matrices.js",
    "thresholds.js",
    "detail.js",
    "centers.js",
    "main.js",
)
MEANS = ("confident_share", "pseudo_label_accuracy", "correspondence_error", "prior_error")


def content(
    title: str,
    intro: str,
    runs: Sequence[ReportedRun],
    notice: str = NOTICE,
    made: datetime.date | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Everything the page shows, as JSON can hold it. made: the day; None for a page that is live.

    command: that the page was asked for with.
    """
    shown = [_run(run) for run in runs]
    said = answer(runs)
    metrics = [
        {"name": m.name, "title": m.title, "unit": m.unit, "better": m.better} for m in METRICS.values()
    ]
    sentences = [said["headline"], *said["details"]] if said["headline"] else []
    return {
        "title": title,
        "intro": intro,
        "notice": notice,
        "provenance": provenance(runs, made, command),
        "command": command,
        "answer": said,
        "words": [*sentences, *_untested(shown)],
        "runs": shown,
        # A single run is its own mean. The page takes it from there and is smaller.
        "configurations": [
            {**group, **(pooled([shown[i] for i in group["places"]]) if len(group["places"]) > 1 else {})}
            for group in said["configurations"]
        ],
        "word": word(runs),
        "metrics": metrics,
        "headline": HEADLINE,
        "even_handed": EVEN_HANDED,
        "colors": COLORS,
    }


def render(data: Mapping[str, Any], live: str = "") -> str:
    """The page. live: the address, relative to the page, from which newer data is fetched; empty in a
    file."""
    files = resources.files("fedmt.reports") / "page"

    def read(name: str) -> str:
        return (files / name).read_text(encoding="utf-8")

    template = jinja2.Environment(autoescape=True).from_string(read("page.html.jinja"))
    return template.render(
        data=data,
        live=live,
        # Inside a script element, a browser looks for "</script" and "<!--" before it reads JSON.
        json=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        css=read("uplot/uPlot.min.css") + read("page.css"),
        uplot=read("uplot/uPlot.iife.min.js"),
        script="\n".join(read(name) for name in SCRIPTS),
    )


def word(runs: Sequence[ReportedRun]) -> str:
    """What one sample is called: image, row, text, or sample if the runs differ."""
    words = {noun(run.settings).removeprefix("test ") for run in runs}
    return words.pop() if len(words) == 1 else "sample"


def _places(evaluation: Evaluation | None) -> list[dict[str, Any]]:
    """The results of each test set and each site, if there are several. Earlier files have none."""
    known = (evaluation.measured or {}).get("places", []) if evaluation is not None else []
    return [{**p, "metrics": {n: shortened(m) for n, m in p["metrics"].items()}} for p in known]


def _untested(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each run that has no accuracy in the wanted space, which says why."""
    said = []
    for run in runs:
        if not run["tested"]:
            said.append(
                f"{run['label']} ({run['method']}): no accuracy was measured, because there is no test set. "
                "Add [[tests]] with labeled samples to the config, and run it again."
            )
        elif run["wanted"] not in run["accuracy"]:
            said.append(f"{run['label']} ({run['method']}): no accuracy in the wanted label space.")
    return said


def _run(run: ReportedRun) -> dict[str, Any]:
    last: Mapping[str, Any] = run.metrics[-1] if run.metrics else {"round": 0, HEADLINE: {}}
    method = run.settings.get("method", {})
    spaces = dict(run.evaluation.spaces) if run.evaluation is not None else {}
    accuracy = last[HEADLINE]
    measured = measured_results(last, run.evaluation)
    named = run.settings.get("wanted") or run.settings.get("benchmark", {}).get("wanted")
    wanted = next(iter(spaces), None) or named or next(iter(accuracy), "")
    summary = run.summary or {}
    seconds = sum(r["seconds"]["total"] for r in run.metrics)
    sources = origins(run, method)
    used = in_short(sources) if sources else plan(method)
    return {
        "label": run.label,
        "method": str(method.get("name", "?")) + (f", M {used}" if used else ""),
        "strategy": run.settings.get("aggregation", {}).get("name", ""),
        "finished": run.summary is not None,
        "round": last["round"],
        "planned": run.settings.get("training", {}).get("rounds", last["round"]),
        "seconds": short(seconds),
        "duration": duration(seconds),
        "wanted": wanted,
        "tested": bool(accuracy or run.settings.get("tests") or run.settings.get("benchmark")),
        "spaces": [{"name": name, "classes": list(classes)} for name, classes in spaces.items()],
        "accuracy": {s: v for s, v in measured["metrics"].get(HEADLINE, {}).items() if s in accuracy},
        **measured,
        "curves": _curves(run.metrics),
        "centers": centers(run, sources),
        **matrices(run.evaluation, sources),
        "tests": _tests(run, spaces),
        "priors": for_priors(run.evaluation, _temperature(run)),
        "places": _places(run.evaluation),
        "each_test": {t: shortened(m) for t, m in last.get("tests", {}).items()},
        "evaluated": run.evaluation.round if run.evaluation is not None else None,
        "mistakes": dict(run.mistakes),
        "config": run.text,
        "path": run.origin.config,
        "written": run.origin.written,
        "data": digest(run.origin) if run.origin.digests else None,
        "versions": summary.get("versions", {}),
        "seed": run.settings.get("seed"),
        "device": summary.get("device"),
        "threads": summary.get("threads"),
        "best": {k: short(v) for k, v in summary.get(f"best_{HEADLINE}_of_any_round", {}).items()},
        "notes": list(run.notes),
    }


def _temperature(run: ReportedRun) -> float | None:
    """The temperature of the calibration. None if there was no calibration, or it is still to come."""
    found: float | None = ((run.summary or {}).get("calibration") or {}).get("temperature")
    return found


def _tests(run: ReportedRun, spaces: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The predictions by label space; those in the wanted one also at the temperature that was fitted."""
    if run.evaluation is None:
        return []
    fitted, wanted = _temperature(run), run.evaluation.wanted
    return [
        predictions(t, len(spaces[t.space]), fitted if t.space == wanted else None)
        for t in run.evaluation.tests
    ]


def _curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns over the recorded rounds, with None if a round lacks a value."""
    # Without a warm-up, round 0 is the untrained network, which would only stretch the axes.
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
