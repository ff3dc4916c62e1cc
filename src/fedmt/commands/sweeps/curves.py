"""Pictures of an experiment's curves: a metric by round, with a band of one deviation over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev

from fedmt.commands.sweeps.expansion import Cell
from fedmt.commands.sweeps.figures import curve_name, is_share, metric_of, spelled_out
from fedmt.commands.sweeps.results import Results
from fedmt.runs.folder import RunFolder


def draw_curves(results: Results, stem: Path) -> list[Path]:
    """Draws one picture per entry of the experiment's `curves`: mean and a band of one standard deviation
    over seeds, by round."""
    drawn = []
    for metric in results.experiment.file.curves:
        lines = {
            (cell.row, cell.column): found
            for cell in results.cells
            if (found := _curve(results, cell, metric)) is not None
        }
        if lines:
            drawn += _draw(stem.with_name(curve_name(stem.name, metric)), metric, lines)
    return drawn


def _curve(results: Results, cell: Cell, metric: str) -> list[tuple[int, float, float]] | None:
    """(round, mean, standard deviation) over the finished seeds."""
    by_round: dict[int, list[float]] = {}
    for run in cell.runs:
        if run.key in results.finished:
            for record in RunFolder(results.runs_folder / run.key).metrics():
                value = metric_of(record, spelled_out(metric, run.config))
                if value is not None:
                    by_round.setdefault(record["round"], []).append(value)
    points = [(r, mean(v), stdev(v) if len(v) > 1 else 0.0) for r, v in sorted(by_round.items())]
    return points or None


def _draw(
    stem: Path, metric: str, lines: Mapping[tuple[str, str], list[tuple[int, float, float]]]
) -> list[Path]:
    """Color shows the column, dashes show the row."""
    # Imported here because only curves need it, and it takes a while to load.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    columns, rows = list(dict.fromkeys(c for _, c in lines)), list(dict.fromkeys(r for r, _ in lines))
    styles = ("-", "--", ":", "-.")
    for (row, column), points in lines.items():
        at, middle, spread = (list(values) for values in zip(*points, strict=True))
        color = f"C{columns.index(column) % 10}"
        style = styles[rows.index(row) % len(styles)]
        axes.plot(at, middle, color=color, linestyle=style, label=f"{column}, {row}")
        low = [m - s for m, s in zip(middle, spread, strict=True)]
        high = [m + s for m, s in zip(middle, spread, strict=True)]
        axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # there is no round 0.5
    axes.set_ylabel(metric.replace("_", " ") + (", %" if is_share(metric) else ""))
    axes.legend(fontsize="small", frameon=False)
    written = []
    for ending in (".png", ".svg"):
        path = stem.with_name(stem.name + ending)
        figure.savefig(path, dpi=150)
        written.append(path)
    return written
