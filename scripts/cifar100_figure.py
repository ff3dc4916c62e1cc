"""Draws cifar100.png of docs/results/cifar100.md from the runs in docs/results/data/cifar100.

python scripts/cifar100_figure.py
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

from fedmt.commands.sweeps.figures import metric_of
from fedmt.reports.content import COLORS

DOCS = Path(__file__).parent.parent / "docs"
BLACK, BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = COLORS

RUNS = {
    "oracle-n25-seed0": ("all fine labels, n = 25", GREEN, "-"),
    "t-n25-seed0": ("FedMT (T), n = 25", BLUE, "-"),
    "e-n25-seed0": ("FedMT (E), n = 25", ORANGE, "-"),
    "t-n5-260-rounds-seed0": ("FedMT (T), n = 5, 260 rounds", BLUE, "--"),
    "e-n5-seed0": ("FedMT (E), n = 5", ORANGE, "--"),
    "paper-n25-seed0": ("printed options (T), n = 25", PINK, ":"),
}
PAPER = {"paper, T, n = 25": 66.70, "paper, T, n = 5": 57.12}

PANELS = {
    "accuracy.fine": "test accuracy, fine classes, %",
    "confident_share": "share of confident pseudo-labels, %",
    "pseudo_label_accuracy": "of these right, %",
    "correspondence_error": "error of the estimated M (Frobenius)",
}


def curve(name: str, metric: str) -> dict[int, float]:
    """A metric of a run by round, for the rounds that have it."""
    lines = (DOCS / "results" / "data" / "cifar100" / f"{name}.jsonl").read_text().splitlines()
    found = {r["round"]: metric_of(r, metric) for r in map(json.loads, lines)}
    return {k: v for k, v in found.items() if v is not None}


def main() -> None:
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    axes = figure.subplots(2, 2).flatten()
    for axis, (metric, title) in zip(axes, PANELS.items(), strict=True):
        for name, (label, color, style) in RUNS.items():
            if name.startswith("oracle") and axis is not axes[0]:
                continue  # its labels are true, so all of them are certain
            values = curve(name, metric)
            if values:
                rounds, heights = zip(*values.items(), strict=True)
                axis.plot(rounds, heights, style, color=color, label=label, linewidth=1.6)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("round", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, 260)
    for label, accuracy in PAPER.items():
        axes[0].axhline(accuracy, color=BLACK, linewidth=0.8, alpha=0.6)
        axes[0].annotate(
            label,
            (205, accuracy),
            ha="right",
            va="bottom",
            fontsize=7,
            xytext=(0, 1),
            textcoords="offset points",
        )
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
    figure.savefig(DOCS / "figures" / "cifar100.png", dpi=130)


if __name__ == "__main__":
    main()
