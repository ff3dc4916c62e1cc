"""The results of an experiment so far: a table in Markdown, and the same as JSON.

Every figure comes from the last round, never from the best round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedmt.commands.sweeps.expansion import Cell, Run
from fedmt.commands.sweeps.experiment import Experiment
from fedmt.commands.sweeps.figures import curve_name, is_share, metric_of, metrics_of, number, spelled_out
from fedmt.commands.sweeps.scales import Scale
from fedmt.core.errors import nearest
from fedmt.metrics.comparing import Difference
from fedmt.runs.files import write_atomically, writing
from fedmt.runs.records import read_record

NOTHING = "\N{EN DASH}"

SCALE_NOTES = {
    "full": "as written",
    "small": "**not the paper's setting**: fewer classes, images and rounds, a small network",
    "tiny": "**not the paper's setting**: a smoke test that takes seconds; its figures mean nothing",
}


@dataclass(frozen=True)
class Finished:
    """A finished run: its last round's metrics and its summary."""

    record: Mapping[str, Any]
    summary: Mapping[str, Any]

    def value(self, metric: str) -> float | None:
        """`accuracy.fine` and the like, in the last round. Shares are in percent."""
        return metric_of(self.record, metric)


def read_finished(folder: Path) -> Finished | None:
    """The run in a folder if it is finished. A run whose files were cut short by a kill or a full disk is not
    finished."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return Finished(read_record(lines[-1]), summary)
    except (OSError, ValueError, IndexError):
        return None


@dataclass(frozen=True)
class Heading:
    """The heading of a table, so that it can be read and reproduced without anything else."""

    scale: Scale
    seeds: int
    command: str
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Results:
    """The cells of an experiment with the known results of their runs, by the runs' keys."""

    experiment: Experiment
    cells: Sequence[Cell]
    finished: Mapping[str, Finished]
    failed: Mapping[str, str]
    heading: Heading
    runs_folder: Path
    differences: Mapping[tuple[str, str, str], Difference] = field(default_factory=dict)
    """Differences from the baseline's column, by row, column and metric. Only a finished sweep has them."""

    def values(self, cell: Cell, metric: str) -> list[float]:
        """The figures of the finished seeds."""
        found = [self.value(run, metric) for run in cell.runs]
        return [v for v in found if v is not None]

    def value(self, run: Run, metric: str) -> float | None:
        """A finished run's figure from the last round. A metric without a label space is in the wanted
        one."""
        done = self.finished.get(run.key)
        return None if done is None else done.value(spelled_out(metric, run.config))

    def cell_text(self, cell: Cell, metric: str) -> str:
        """`46.4 ± 0.8`, or a note if there is no figure."""
        if not cell.runs:
            return NOTHING
        values = self.values(cell, metric)
        done = sum(r.key in self.finished for r in cell.runs)
        failed = sum(r.key in self.failed for r in cell.runs)
        if not done:
            return "failed" if failed else "not run"
        if not values:
            return NOTHING
        text = number(metric, mean(values))
        if len(values) > 1:
            text += f" ± {number(metric, stdev(values))}"
        if cell.random_start:
            text += " †"
        if done < len(cell.runs):
            text += f" ({done} of {len(cell.runs)} seeds" + (f", {failed} failed)" if failed else ")")
        return text

    def paper_text(self, cell: Cell, metric: str) -> str:
        """`paper 46.41 ± 0.78`, or nothing."""
        figure = self.experiment.paper_figure(metric, cell.row, cell.column)
        return "paper " + " ± ".join(f"{v:.2f}" for v in figure) if figure else ""

    def shown(self) -> tuple[list[str], list[str]]:
        """The labels of the rows and columns with at least one cell that was requested or has known
        results."""
        known = [c for c in self.cells if c.selected or any(r.key in self.finished for r in c.runs)]
        return list(dict.fromkeys(c.row for c in known)), self._in_order({c.column for c in known})

    def _in_order(self, columns: set[str]) -> list[str]:
        return [c.label for c in self.experiment.file.columns if c.label in columns]

    def table(self, metric: str) -> list[tuple[str, list[tuple[str, str]]]]:
        """Each shown row: its label, and (text, the paper's text) for each shown cell."""
        rows, columns = self.shown()
        cells = {(c.row, c.column): c for c in self.cells}
        return [
            (
                r,
                [
                    (self.cell_text(cells[r, c], metric), self.paper_text(cells[r, c], metric))
                    for c in columns
                ],
            )
            for r in rows
        ]

    def notes(self) -> list[str]:
        """The experiment's note, the meaning of the marks in the table, and why cells are empty."""
        found = [self.experiment.file.note] if self.experiment.file.note else []
        if any(c.random_start for c in self.cells):
            found.append(
                "† from a random start; the paper's figure is from ImageNet weights (provide them with "
                "--weights)."
            )
        rows, columns = self.shown()
        out = [p.label for p in self.experiment.file.rows if p.label not in rows]
        out += [p.label for p in self.experiment.file.columns if p.label not in columns]
        if out:
            found.append(f"Left out by --only: {'; '.join(out)}.")
        for cell in self.cells:
            if cell.skipped and cell.row in rows and cell.column in columns:
                found.append(f"{cell.row}, {cell.column}: {cell.skipped}.")
        for metric in dict.fromkeys((*self.experiment.file.show, *self.experiment.file.curves)):
            if self.finished and not self._has(metric):
                has = {name for f in self.finished.values() for name in metrics_of(f.record)}
                found.append(f"No run has a metric '{metric}'.{nearest(metric, has)}")
        return found

    def _has(self, metric: str) -> bool:
        return any(self.value(run, metric) is not None for run in self.runs())

    def runs(self) -> list[Run]:
        """Every run once, although several cells may share it."""
        return list({r.key: r for cell in self.cells for r in cell.runs}.values())

    # -- files ----------------------------------------------------------------------------------------

    def write(self, stem: Path) -> None:
        """Writes `stem`.md and `stem`.json. Each file is replaced whole."""
        with writing(stem.parent):
            stem.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(stem.with_name(stem.name + ".md"), self.markdown(stem.name).encode())
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"
        write_atomically(stem.with_name(stem.name + ".json"), text.encode())

    def markdown(self, stem: str = "") -> str:
        """The table as a standalone document."""
        file, heading = self.experiment.file, self.heading
        source = f"{file.paper} of the paper" if file.paper else "Not in the paper"
        seeds = "seed 0" if heading.seeds == 1 else f"seeds 0 to {heading.seeds - 1}"
        spread = "" if heading.seeds == 1 else "; mean ± standard deviation (n - 1) over seeds"
        lines = [
            f"# {file.title}",
            "",
            f"{source}. Scale: {heading.scale} ({SCALE_NOTES[heading.scale]}). {seeds.capitalize()}{spread}. "
            "Figures are from the last round"
            + (
                "; the paper's figures are below them in italics." if any(r.paper for r in file.rows) else "."
            ),
            "",
        ]
        if heading.changed:
            lines += [f"Changed: {', '.join(f'`{c}`' for c in heading.changed)}.", ""]
        for metric in file.show:
            unit = ", %" if is_share(metric) else ""
            lines += [f"## {metric}{unit}", ""]
            columns = self.shown()[1]
            lines.append("| | " + " | ".join(map(_escaped, columns)) + " |")
            lines.append("| --- |" + " ---: |" * len(columns))
            for label, texts in self.table(metric):
                shown = [t + (f"<br>*{p}*" if p else "") for t, p in texts]
                lines.append(f"| {_escaped(label)} | " + " | ".join(shown) + " |")
            lines.append("")
            lines += self._difference_lines(metric, columns)
        for metric in filter(self._has, file.curves):
            lines += [f"![{metric} by round]({curve_name(stem, metric)}.png)", ""]
        lines += [f"- {note}" for note in self.notes()]
        for run in self.runs():
            if run.key in self.failed:
                lines.append(f"- {run.label} failed: {self.failed[run.key]}")
        made = [", ".join(f"{k} {v}" for k, v in self._versions().items()), date.today().isoformat()]
        lines += ["", f"{'; '.join(filter(None, made))}. Made by", "", f"    {heading.command}", ""]
        return "\n".join(lines)

    def _difference_lines(self, metric: str, columns: Sequence[str]) -> list[str]:
        """The table of paired differences from the baseline, if there are any."""
        rows, base = self.shown()[0], self.experiment.file.baseline
        found = [c for c in columns if any((r, c, metric) in self.differences for r in rows)]
        if not found:
            return []
        share = is_share(metric)
        lines = [
            f"Difference from {base}{', points' if share else ''}: mean over seeds and 95% interval, paired "
            "over the same test samples.",
            "",
            "| | " + " | ".join(map(_escaped, found)) + " |",
            "| --- |" + " ---: |" * len(found),
        ]
        for row in rows:
            cells = [self.differences.get((row, column, metric)) for column in found]
            lines.append(f"| {_escaped(row)} | " + " | ".join(_signed(d, share) for d in cells) + " |")
        return [*lines, ""]

    def as_json(self) -> dict[str, Any]:
        """Everything for other programs: unrounded figures, and every run with its folder."""
        file, heading = self.experiment.file, self.heading
        return {
            "experiment": self.experiment.name,
            "title": file.title,
            "paper": file.paper,
            "scale": heading.scale,
            "seeds": heading.seeds,
            "changed": list(heading.changed),
            "command": heading.command,
            "date": date.today().isoformat(),
            "versions": self._versions(),
            "notes": self.notes(),
            "cells": [self._cell_json(cell) for cell in self.cells],
            "runs": [self._run_json(run) for run in self.runs()],
        }

    def _versions(self) -> dict[str, str]:
        """The versions that the runs were made with, which may differ from the current ones."""
        finished = (self.finished.get(run.key) for run in self.runs())
        each = [found.summary.get("versions", {}) for found in finished if found is not None]
        names = dict.fromkeys(name for versions in each for name in versions)
        return {name: " and ".join(sorted({str(v[name]) for v in each if name in v})) for name in names}

    def _cell_json(self, cell: Cell) -> dict[str, Any]:
        shown: dict[str, dict[str, Any]] = {}
        for metric in self.experiment.file.show:
            values = self.values(cell, metric)
            shown[metric] = {
                "mean": mean(values) if values else None,
                "sd": stdev(values) if len(values) > 1 else None,
                "n": len(values),
                "paper": self.experiment.paper_figure(metric, cell.row, cell.column),
            }
            if (difference := self.differences.get((cell.row, cell.column, metric))) is not None:
                shown[metric]["difference"] = difference.to_json()
        return {
            "row": cell.row,
            "column": cell.column,
            "skipped": cell.skipped,
            "random_start": cell.random_start,
            "metrics": shown,
            "runs": [r.digest for r in cell.runs],
        }

    def _run_json(self, run: Run) -> dict[str, Any]:
        found = self.finished.get(run.key)
        status = "finished" if found else "failed" if run.key in self.failed else "not run"
        # The centers' own metrics stay in the run folder.
        record = {k: v for k, v in found.record.items() if k != "centers"} if found else None
        return {
            "label": run.label,
            "config_hash": run.digest,
            "seed": run.config.seed,
            "status": status,
            "error": self.failed.get(run.key),
            "last_round": record,
            "seconds": found.summary.get("seconds") if found else None,
            "device": found.summary.get("device") if found else None,
            "path": str(self.runs_folder / run.key),
        }


def _signed(difference: Difference | None, share: bool) -> str:
    """`+6.2 (+4.1 to +8.3)`."""
    if difference is None:
        return NOTHING
    scale, digits = (100, 1) if share else (1, 3)
    value, low, high = (
        f"{scale * x:+.{digits}f}" for x in (difference.value, difference.low, difference.high)
    )
    if not math.isfinite(difference.low + difference.high):
        return f"{value} (no interval)"
    return f"{value} ({low} to {high})"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
