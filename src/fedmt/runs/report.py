"""A plain report of one or several runs: one HTML file with everything inside, readable without a network.

Curves of accuracy in every label space and of the pseudo-labels, and the estimated correspondences
beside the true ones.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from fedmt.labels import Correspondence
from fedmt.runs.folder import write_atomically

# Okabe and Ito's colours: told apart by colour-blind readers too.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

PSEUDO_LABEL_CURVES = {
    "confident_share": "share of samples with a confident pseudo-label",
    "pseudo_label_accuracy": "accuracy of the confident pseudo-labels",
    "correspondence_error": "error of M-hat (Frobenius norm, mean over centers)",
}


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One run as the report shows it. estimates: each center's M-hat beside its true correspondence."""

    label: str
    metrics: Sequence[Mapping[str, Any]]
    estimates: Mapping[str, tuple[Tensor, Correspondence]] = field(default_factory=dict)

    @property
    def accuracy(self) -> Mapping[str, float]:
        """Of the last round, by label space."""
        accuracy: Mapping[str, float] = self.metrics[-1]["accuracy"]
        return accuracy

    @property
    def seconds(self) -> float:
        return float(sum(record["seconds"]["total"] for record in self.metrics))


def write_report(
    path: Path, title: str, intro: str, runs: Sequence[ReportedRun], spaces: Sequence[str]
) -> None:
    """Writes `path`; `spaces` are the label spaces to show, the wanted one first."""
    figures = [("Accuracy on the test images", accuracy_figure(runs, spaces))]
    learning = pseudo_label_figure(runs)
    if learning is not None:
        figures.append(("What the centers guess while they learn", learning))
    for run in runs:
        for name, (figure, caption) in correspondence_figures(run).items():
            figures.append((f"{run.label}: correspondence of '{name}'. {caption}", figure))
    rows = [
        {
            "method": run.label,
            "accuracy": [f"{run.accuracy[s]:.1%}" if s in run.accuracy else "-" for s in spaces],
            "rounds": run.metrics[-1]["round"],
            "seconds": f"{run.seconds:.0f}",
        }
        for run in runs
    ]
    template = jinja2.Environment(loader=jinja2.PackageLoader("fedmt.runs", "."), autoescape=True)
    page = template.get_template("report.html.jinja").render(
        title=title,
        intro=intro,
        spaces=spaces,
        rows=rows,
        figures=[(caption, _embedded(figure)) for caption, figure in figures],
    )
    write_atomically(path, page.encode())


def accuracy_figure(runs: Sequence[ReportedRun], spaces: Sequence[str]) -> Figure:
    """Accuracy over rounds, a panel for each label space.

    The horizontal axis is the share of each run's rounds, since methods have different numbers of them.
    """
    figure = Figure(figsize=(3.6 * len(spaces), 3.2), layout="constrained")
    for axes, space in zip(figure.subplots(1, len(spaces), squeeze=False)[0], spaces, strict=True):
        for run, colour in zip(runs, COLOURS, strict=False):
            # Round 0 without a warm-up is the untrained network: it would only stretch the axis.
            trained = [r for r in run.metrics if r["round"] > 0 or r["reference_loss"] is not None]
            points = [(r["round"], r["accuracy"][space]) for r in trained if space in r["accuracy"]]
            if points:
                last = max(run.metrics[-1]["round"], 1)
                axes.plot([100 * x / last for x, _ in points], [100 * y for _, y in points],
                          color=colour, label=run.label)  # fmt: skip
        axes.set(title=space, xlabel="training done, %", ylabel="accuracy, %")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    return figure


def pseudo_label_figure(runs: Sequence[ReportedRun]) -> Figure | None:
    """Confident share, their accuracy and the error of M-hat over rounds, where any run has them."""
    keys = [k for k in PSEUDO_LABEL_CURVES if any(k in r for run in runs for r in run.metrics)]
    if not keys:
        return None
    figure = Figure(figsize=(3.6 * len(keys), 3.2), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        for run, colour in zip(runs, COLOURS, strict=False):
            points = [(r["round"], r[key]) for r in run.metrics if key in r]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, label=run.label)
        axes.set_title(PSEUDO_LABEL_CURVES[key], fontsize="small")
        axes.set(xlabel="round", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def correspondence_figures(run: ReportedRun) -> dict[str, tuple[Figure, str]]:
    """For each space: the mean M-hat over its centers beside the true M, as heat maps with class names."""
    by_space: dict[str, list[tuple[Tensor, Correspondence]]] = {}
    for estimate, truth in run.estimates.values():
        by_space.setdefault(truth.coarse.name, []).append((estimate.cpu(), truth))
    figures = {}
    for name, pairs in by_space.items():
        truth = pairs[0][1]
        mean = torch.stack([e for e, _ in pairs]).mean(0)
        errors = [float((e - t.matrix.cpu()).norm()) for e, t in pairs]
        rows, columns = truth.matrix.shape
        figure = Figure(figsize=(max(7.0, 0.62 * columns * 2 + 2), 0.42 * rows + 1.6), layout="constrained")
        both = figure.subplots(1, 2, sharey=True)
        _heat_map(both[0], truth.matrix, truth, "true M")
        image = _heat_map(both[1], mean, truth, "mean M-hat")
        figure.colorbar(image, ax=both, label=f"P({name} | wanted class)")
        caption = f"{len(pairs)} centers, error {sum(errors) / len(errors):.2f} each on average."
        figures[name] = (figure, caption)
    return figures


def _heat_map(axes: Axes, matrix: Tensor, spaces: Correspondence, title: str) -> AxesImage:
    """Matrix [J, K] with class names; entries are written out where there is room for them."""
    rows, columns = matrix.shape
    image = axes.imshow(matrix.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
    axes.set_title(title)
    axes.set_xticks(range(columns), spaces.fine.classes, rotation=60, ha="right", fontsize="small")
    axes.set_yticks(range(rows), spaces.coarse.classes, fontsize="small")
    if rows * columns <= 200:
        for j, k in ((matrix >= 0.05).nonzero()).tolist():
            value = float(matrix[j, k])
            text = f"{value:.2f}".lstrip("0") if value < 0.995 else "1"
            colour = "white" if value > 0.6 else "black"
            axes.text(k, j, text, ha="center", va="center", fontsize=7, color=colour)
    return image


def _embedded(figure: Figure) -> str:
    """The figure as SVG in a data URL: sharp at any size, and its ids cannot clash with another's."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
