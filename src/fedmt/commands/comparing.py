"""`fedmt compare`: runs against a baseline, metric by metric, on the same test samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedmt.commands.steps import next_step
from fedmt.core.errors import FedmtError
from fedmt.metrics import METRICS
from fedmt.metrics.comparing import Difference
from fedmt.reports.answer import noun
from fedmt.reports.report import Source, distinct
from fedmt.runs.comparison import Comparison, compare
from fedmt.runs.evaluation import Evaluation


def command_line(
    runs: Sequence[Path], baseline: Path | None, metric: str | None, as_json: bool, console: Console
) -> None:
    """Prints the comparison of each run with the baseline, by default the first run."""
    first, others = (baseline, list(runs)) if baseline is not None else (runs[0], list(runs[1:]))
    if not others:
        raise FedmtError(
            f"compare: {first} is the only run. Give at least one more run, or name the baseline with "
            "--baseline RUN."
        )
    folders = [first, *others]
    names = dict(zip(folders, distinct(folders), strict=True))
    sources = {folder: Source(folder) for folder in folders}
    shown = list(METRICS) if metric is None else [_known(metric)]
    base = {names[first]: evaluated(sources[first], first)}
    what = noun(sources[first].settings)
    found = {
        folder: compare({names[folder]: evaluated(sources[folder], folder)}, base, noun=what)
        for folder in others
    }
    if as_json:
        records = {str(folder): one.to_json() for folder, one in found.items()}
        for record in records.values():
            record["differences"] = {n: d for n, d in record["differences"].items() if n in shown}
        print(json.dumps({"baseline": str(first), "runs": records}, indent=2, allow_nan=False))
        return
    for space in dict.fromkeys(space for one in found.values() for space in one.differences):
        console.print(table(space, [one for one in found.values() if space in one.differences], shown))
    for one in found.values():
        console.print(one.verdict.sentence, soft_wrap=True)
    next_step(console, "report", *others, first)


def evaluated(source: Source, folder: Path) -> Evaluation:
    """The evaluation that a finished run saved, or one computed from its last checkpoint and the data."""
    reported = source.reported(str(folder))
    if not reported.metrics:
        raise FedmtError(f"{folder}: no round has finished yet. Compare it after the first round.")
    if reported.evaluation is None or not reported.evaluation.tests:
        why = " ".join(reported.notes) or "It was not tested, because its config has no [[tests]]."
        raise FedmtError(f"{folder}: it has no test predictions to compare. {why}")
    return reported.evaluation


def table(space: str, found: Sequence[Comparison], metrics: Sequence[str]) -> Table:
    """The differences in one label space: a row for each metric, two columns for each run."""
    base = found[0].second
    shown = Table(title=f"{space}, {found[0].tested_on(space)}; differences with 95% intervals")
    shown.add_column("metric")
    shown.add_column(base, justify="right")
    for one in found:
        shown.add_column(one.first, justify="right")
        shown.add_column("difference", justify="right")
    for name in metrics:
        of = [one.differences[space].get(name) for one in found]
        known = [d for d in of if d is not None]
        if known:
            metric = METRICS[name]
            cells = [c for d in of for c in (("-", "-") if d is None else (metric.format(d.first), _cell(d)))]
            shown.add_row(metric.title, metric.format(known[0].second), *cells)
    return shown


def _cell(of: Difference) -> str:
    mark = {"better": "  better", "worse": "  worse", "no difference": ""}[of.judged]
    return f"{of.figures()}{mark}"


def _known(name: str) -> str:
    metric = METRICS.find(name, "--metric")
    if metric.function is None:
        raise FedmtError(
            f"--metric {name}: this metric has values per class only, and a comparison needs one value per "
            "run."
        )
    METRICS.setdefault(metric.name, metric)
    return metric.name
