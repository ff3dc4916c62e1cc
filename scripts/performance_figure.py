"""Draws docs/figures/performance.png from docs/figures/performance.json: where a round's time goes, by phase.

The JSON holds what `benchmarks/gpu_round.py --json` and `benchmarks/scaling.py --json` wrote, under "round"
and "scaling".

python scripts/performance_figure.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
PHASES = {
    "train": "local training, 10 centers side by side",
    "pseudo_labels": "pseudo-labels and plans (training goes on meanwhile)",
    "reference": "reference center",
    "statistics": "batch-norm statistics",
    "aggregate": "averaging",
    "test": "test",
    "rest": "rest",
}


def main() -> None:
    measured = json.loads((FIGURES / "performance.json").read_text())
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    parts = (
        ("round", "10 centers x 4000 samples, 5 local epochs", "local batch size"),
        ("scaling", "40,000 samples in all, local batch 50", "centers"),
    )
    for axis, (key, title, label) in zip(axes, parts, strict=True):
        bars = measured[key]["batches"] if key == "round" else measured[key]
        below = [0.0] * len(bars)
        for phase, name in PHASES.items():
            heights = [max(bar["phases"].get(phase, 0.0), 0.0) for bar in bars.values()]
            axis.bar(list(bars), heights, bottom=below, label=name, width=0.6)
            below = [b + h for b, h in zip(below, heights, strict=True)]
        axis.set(title=title, xlabel=label, ylabel="seconds per round")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    out = FIGURES / "performance.png"
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    main()
