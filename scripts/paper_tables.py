"""Markdown tables of the paper's experiments from raw files, with the paper's figures below ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, stdev

from paper_runs import Measured, Runs, cells_of

from fedmt.commands.sweeps.expansion import Cell
from fedmt.commands.sweeps.experiment import Experiment, known_experiments, read_experiment

FAR = 2.0
"""In points: a larger difference from the paper's figure is printed in bold."""

NOT_RUN = "not run"
TITLES = {
    "accuracy.fine": "Fine classes",
    "accuracy.coarse": "Coarse classes",
    "accuracy.nine": "Wanted classes",
    "accuracy.three": "Three classes",
    "confident_share": "Share of confident pseudo-labels",
    "pseudo_label_accuracy": "Accuracy of confident pseudo-labels",
    "correspondence_error": "Error of M-hat (Frobenius norm)",
}


@dataclass(frozen=True)
class Figure:
    """The result of a cell in the last round: the mean over seeds, and the deviation if there are several."""

    value: float
    deviation: float | None
    seeds: int

    def text(self, digits: int = 2) -> str:
        """`66.92 ± 0.12`."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.value:.{digits}f}{spread}"


class Tables:
    """All experiments, with the known results of their cells."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    @cache  # noqa: B019 (there is one, for as long as the script runs)
    def cells(self, name: str) -> dict[tuple[str, str], Cell]:
        return {(cell.row, cell.column): cell for cell in cells_of(name)}

    @cache  # noqa: B019
    def experiment(self, name: str) -> Experiment:
        return read_experiment(known_experiments()[name])

    @cache  # noqa: B019
    def _runs(self, name: str, row: str, column: str) -> list[Measured]:
        return self.runs.of(self.cells(name)[row, column])

    def finished(self, name: str, row: str, column: str) -> list[Measured]:
        """The finished runs of a cell, one per seed. Of repeated runs, the first one counts."""
        by_seed = {run.config.seed: run for run in reversed(self._runs(name, row, column)) if run.finished}
        return [by_seed[seed] for seed in sorted(by_seed)]

    def stopped(self, name: str, row: str, column: str) -> Measured | None:
        """A run of a cell that ended before its last round."""
        return next((run for run in self._runs(name, row, column) if not run.finished), None)

    def rows(self, name: str) -> list[str]:
        return [row.label for row in self.experiment(name).file.rows]

    def columns(self, name: str) -> list[str]:
        return [column.label for column in self.experiment(name).file.columns]

    def figure(self, name: str, row: str, column: str, metric: str) -> Figure | None:
        """None if no run was finished, or if a run does not have this metric."""
        found = [run.last(metric) for run in self.finished(name, row, column)]
        values = [value for value in found if value is not None]
        if not values:
            return None
        return Figure(mean(values), stdev(values) if len(values) > 1 else None, len(values))

    def value(self, name: str, row: str, column: str, metric: str = "accuracy.fine") -> float | None:
        found = self.figure(name, row, column, metric)
        return None if found is None else found.value

    def printed(self, name: str, row: str, column: str, metric: str) -> tuple[float, ...] | None:
        return self.experiment(name).paper_figure(metric, row, column)

    # -- Markdown --------------------------------------------------------------------------------------

    def table(self, name: str, metric: str) -> str:
        """Our figure, the paper's in italics, and the difference. Empty rows and columns are left out."""
        rows = [
            r for r in self.rows(name) if any(self._known(name, r, c, metric) for c in self.columns(name))
        ]
        columns = [c for c in self.columns(name) if any(self._known(name, r, c, metric) for r in rows)]
        if not rows:
            return "Nothing of this table was run."
        lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
        for row in rows:
            lines.append(f"| {row} | " + " | ".join(self.cell(name, row, c, metric) for c in columns) + " |")
        return "\n".join(lines)

    def _known(self, name: str, row: str, column: str, metric: str) -> bool:
        ran = self.figure(name, row, column, metric) or self.stopped(name, row, column)
        return ran is not None or self.printed(name, row, column, metric) is not None

    def cell(self, name: str, row: str, column: str, metric: str) -> str:
        """`66.92 ± 0.12<br>*66.70 ± 0.21*<br>+0.22`, or how far the run got."""
        found = self.figure(name, row, column, metric)
        stopped = self.stopped(name, row, column)
        digits = 2 if metric.startswith(("accuracy", "correspondence")) else 1
        if found is not None:
            parts = [found.text(digits)]
        elif stopped is not None and (last := stopped.last(metric)) is not None:
            total = stopped.config.training.rounds
            parts = [f"{last:.{digits}f}, stopped after {stopped.rounds} of {total} rounds"]
        else:
            parts = [NOT_RUN]
        if (paper := self.printed(name, row, column, metric)) is not None:
            parts.append("*" + " ± ".join(f"{number:.2f}" for number in paper) + "*")
            if found is not None:
                apart = found.value - paper[0]
                parts.append(f"**{apart:+.2f}**" if abs(apart) > FAR else f"{apart:+.2f}")
        return "<br>".join(parts)

    def missing(self, name: str, seeds: Mapping[str, int]) -> tuple[int, int, str]:
        """The number of cells that were run, of all cells, and the missing ones. seeds: by row, if not 1."""
        lacking: dict[str, list[str]] = {}
        few = []
        ran = 0
        for row, column in self.cells(name):
            count = len(self.finished(name, row, column))
            ran += count > 0
            if not count:
                lacking.setdefault(column, []).append(row)
            elif count < seeds.get(row, 1):
                few.append(f"{column}, {row} ({count} of {seeds[row]} seeds)")
        words = [f"{column}: {_some(rows, self.rows(name))}" for column, rows in lacking.items()]
        words += few
        return ran, len(self.cells(name)), "; ".join(words)


def _some(rows: Sequence[str], every: Sequence[str]) -> str:
    return "all rows" if len(rows) == len(every) and len(every) > 1 else " / ".join(rows)


def plain_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table of texts."""
    body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *body])
