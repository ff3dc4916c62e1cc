"""Draws the paper's figures from our runs: docs/figures/paper-*.png of docs/results/paper.md.

    python scripts/paper_figures.py

A figure is drawn as soon as one of its lines has two points. Lines and full points are ours, with one
standard deviation if there are several seeds. Crosses are the figures that the paper prints.
"""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_runs import Runs
from paper_tables import Tables

from fedmt.reports.content import COLORS

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
BLACK, BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = COLORS
METHODS = {
    "Single": BLACK,
    "FedTrans": GREEN,
    "FedRep": PINK,
    "SemiFL": YELLOW,
    "FedMT (T)": BLUE,
    "FedMT (E)": ORANGE,
    "FedMT (E, counting)": SKY,
    "Learnable": PINK,
}
"""Each method has one color on the whole page. Its line is dashed if it starts from ImageNet weights."""

BY_ROW = {
    "main": (
        "accuracy.fine",
        "labeled images per class at the reference center",
        "test accuracy, fine classes, %",
    ),
    "coarse": (
        "accuracy.coarse",
        "labeled images per class at the reference center",
        "test accuracy, coarse classes, %",
    ),
    "noniid": ("accuracy.fine", "split", "test accuracy, fine classes, %"),
    "scalability": ("accuracy.fine", "centers", "test accuracy, fine classes, %"),
    "backbones": ("accuracy.fine", "", "test accuracy, fine classes, %"),
}
"""Figures with one point per row: the metric, and the labels of the axes."""

WIDE = "FedMT (T)"
"""This line is wider, because that of FedMT (E) is drawn over it and often coincides with it."""

BOTTOM = {"coarse": 35}
"""Where an axis begins if it is not at 0: the curves in the coarse classes are close together."""


def by_row(tables: Tables, name: str) -> Figure | None:
    """Draws one line per method over the rows of an experiment."""
    metric, below, beside = BY_ROW[name]
    rows = [row for row in tables.rows(name) if not row.startswith("N_c")]
    if name == "backbones":
        rows = [r for r in rows if any(tables.figure(name, r, c, metric) for c in tables.columns(name))]
    figure, axis = blank(below, beside)
    most, papers = 0, False
    for column in tables.columns(name):
        color, style = look(column)
        found = [tables.figure(name, row, column, metric) for row in rows]
        printed = [tables.printed(name, row, column, metric) for row in rows]
        most, papers = max(most, sum(f is not None for f in found)), papers or any(printed)
        if any(found):
            # A row that was not run breaks the line. Networks are never connected by a line.
            heights = [f.value if f else math.nan for f in found]
            spread = [f.deviation or 0.0 if f else math.nan for f in found]
            line = "" if name == "backbones" else style
            wide, size = (3.0, 8) if column == WIDE else (1.5, 5)
            axis.errorbar(range(len(rows)), heights, spread, color=color, linestyle=line, marker="o",
                          linewidth=wide, markersize=size, capsize=3, label=column)  # fmt: skip
        if any(printed):
            label = None if any(found) else f"{column}, not run"
            heights, mark = [p[0] if p else math.nan for p in printed], "x" if style == "-" else "+"
            axis.plot(range(len(rows)), heights, mark, color=color, markersize=7, alpha=0.7, label=label)
    axis.set_xticks(range(len(rows)), [short(row) for row in rows])
    if papers:
        said = "; +: the paper's from ImageNet weights" if name == "main" else ""
        axis.set_title(f"points: ours; x: the paper's{said}", fontsize=8, loc="left")
    return finished(figure, axis, BOTTOM.get(name, 0)) if most > 1 else None


def mhat(tables: Tables) -> Figure | None:
    """Draws the error of M-hat over the rounds. The lines of a method differ in the samples per center."""
    figure, axis = blank("round", "error of M-hat (Frobenius norm)")
    styles = dict(zip(tables.rows("mhat"), (":", "--", "-"), strict=True))
    drawn = False
    for row, column in tables.cells("mhat"):
        runs = tables.finished("mhat", row, column)
        if runs:
            drawn = True
            curve = runs[0].curve("correspondence_error")
            axis.plot(
                list(curve),
                list(curve.values()),
                styles[row],
                color=METHODS[column],
                label=f"{column}, {row}",
            )
            spread = runs[0].curve("correspondence_error_sd")
            at = [r for r in curve if r in spread]
            axis.fill_between(at, [curve[r] - spread[r] for r in at], [curve[r] + spread[r] for r in at],
                              color=METHODS[column], alpha=0.15, linewidth=0)  # fmt: skip
    return finished(figure, axis) if drawn else None


def look(column: str) -> tuple[str, str]:
    """The color and line style of a method."""
    method, imagenet, _ = column.partition(" (ImageNet)")
    return METHODS[method], "--" if imagenet else "-"


def short(row: str) -> str:
    """The label of a row below the axis."""
    return row.rpartition("= ")[2].removeprefix("non-IID, ").replace(", ", ",\n")


def place(label: str) -> int:
    """The position of a line in the legend, which follows the order of the methods."""
    return max((at for at, method in enumerate(METHODS) if label.startswith(method)), default=len(METHODS))


def blank(below: str, beside: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axis = figure.add_subplot()
    axis.set_xlabel(below, fontsize=9)
    axis.set_ylabel(beside, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def finished(figure: Figure, axis: Axes, bottom: float = 0) -> Figure:
    axis.set_ylim(bottom=bottom)
    handles, labels = axis.get_legend_handles_labels()
    # By default, matplotlib lists lines before points with errors.
    order = sorted(range(len(labels)), key=lambda at: place(labels[at]))
    figure.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="outside right upper",
        fontsize=8,
        frameon=False,
    )
    return figure


def main() -> None:
    tables = Tables(Runs())
    drawn = {name: by_row(tables, name) for name in BY_ROW} | {"mhat": mhat(tables)}
    for name, figure in drawn.items():
        file = FIGURES / f"paper-{name}.png"
        if figure is not None:
            figure.savefig(file, dpi=130)
            print(file)
        else:
            file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
