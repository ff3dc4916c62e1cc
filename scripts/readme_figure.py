"""Draws docs/figures/quickstart.png: the accuracies in methods.json, and the correspondence of one run.

fedmt quickstart
python scripts/readme_figure.py quickstart
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedmt.commands.quickstart import METHODS, PER_CLASS, SPACES
from fedmt.data.sources.fashion_mnist import GARMENT_TO_LAYER
from fedmt.reports.content import COLORS
from fedmt.runs.folder import RunFolder

DOCS = Path(__file__).parent.parent / "docs"
OUT = DOCS / "figures" / "quickstart.png"


def main(quickstart: Path) -> None:
    stored = json.loads((DOCS / "results" / "data" / "methods.json").read_text())
    cells = {cell["column"]: cell["metrics"] for cell in stored["cells"]}
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    bars, heat = figure.subplots(1, 2, width_ratios=[1.25, 1])
    for number, method in enumerate(METHODS):
        found = [cells[method][f"accuracy.{space}"] for space in SPACES]
        places = [x + 0.27 * (number - 1) for x in range(len(SPACES))]
        drawn = bars.bar(
            places,
            [f["mean"] for f in found],
            0.25,
            yerr=[f["sd"] for f in found],
            label=method,
            color=COLORS[number],
        )
        bars.bar_label(drawn, fmt="%.1f", fontsize=8, padding=2)
    bars.set_xticks(range(3), ["10 garments\n(wanted)", "5 departments", "4 layers"])
    bars.set(ylim=(50, 104), ylabel="test accuracy, %")
    bars.set_title(
        f"Reference center: {PER_CLASS} images per garment. Eight centers\nlabel by department or layer. "
        f"{stored['seeds']} seeds, mean ± sd",
        fontsize=9,
    )
    bars.legend(loc="upper left", ncols=3, fontsize=8, frameon=False)
    bars.spines[["top", "right"]].set_visible(False)

    state = RunFolder(quickstart / "fedmt-e").load()
    assert state is not None
    shape = GARMENT_TO_LAYER.matrix.shape
    kept = [k["correspondence"] for k in state.kept.values() if k["correspondence"].shape == shape]
    mean = sum(kept[1:], kept[0]) / len(kept)
    heat.imshow(mean.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
    heat.set_xticks(range(10), GARMENT_TO_LAYER.fine.classes, rotation=50, ha="right", fontsize=8)
    heat.set_yticks(range(4), GARMENT_TO_LAYER.coarse.classes, fontsize=8)
    for j, k in GARMENT_TO_LAYER.matrix.nonzero().tolist():
        box = Rectangle((k - 0.48, j - 0.48), 0.96, 0.96, fill=False, edgecolor="#D55E00", linewidth=1.5)
        heat.add_patch(box)
    heat.set_title("What FedMT (E) estimated: garment to layer\n(outlined: the truth)", fontsize=9)
    figure.savefig(OUT, dpi=150)
    print(OUT)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
