"""Draws the four figures of docs/concepts/why.md and docs/concepts/method.md.

python scripts/method_figures.py              draws, from docs/figures/method.json
python scripts/method_figures.py --measure    first runs the quickstart's FedMT (E), seed 0, to make that file
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

import fedmt
from fedmt import Correspondence
from fedmt.commands.quickstart import quickstart_config
from fedmt.config import build_federation
from fedmt.data.sources.fashion_mnist import (
    GARMENT,
    GARMENT_TO_DEPARTMENT,
    GARMENT_TO_LAYER,
    read_fashion_mnist,
)
from fedmt.reports.content import COLORS
from fedmt.training.run import build_engine

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
BLACK, BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = COLORS
TINTS = ("#cfe3f2", "#f7d9c4", "#cdeade", "#f1d9e6", "#f8e6c1", "#ddf0fb")
ORDER = ("trouser", "dress", "t-shirt", "shirt", "pullover", "coat", "sandal", "sneaker", "ankle boot", "bag")
"""The garments, in an order in which the garments of every class of the two other spaces are adjacent."""


def measure() -> dict[str, Any]:
    """M-hat of every center in every round, and the last model's prediction for the first test image on which
    it is undecided between two garments of the same department but of different layers."""
    torch.set_num_threads(1)
    config = quickstart_config("FedMT (E)", seed=0)
    federation, _ = build_federation(config)
    engine = build_engine(config, federation, torch.device("cpu"))
    state, record = engine.start()
    rounds = []
    while state.round < config.training.rounds:
        state, record = engine.round(state)
        centers = {
            name: {
                "space": next(c.space.name for c in federation.centers if c.name == name and c.space),
                "error": found["correspondence_error"],
                "matrix": np.round(state.kept[name]["correspondence"].tolist(), 4).tolist(),
            }
            for name, found in record["centers"].items()
        }
        rounds.append({"round": state.round, "accuracy": record["accuracy"], "centers": centers})
        print(f"round {state.round}: error of M-hat {record['correspondence_error']:.3f}", flush=True)
    tested = next(t for t in engine.tested(state) if t.test.space == federation.wanted)
    labels, answers = tested.labels, tested.probabilities
    top = answers.topk(2)
    department, layer = (m.map_labels(top.indices) for m in (GARMENT_TO_DEPARTMENT, GARMENT_TO_LAYER))
    torn = (department[:, 0] == department[:, 1]) & (layer[:, 0] != layer[:, 1])
    image = int((torn & (top.values[:, 1] > 0.3)).nonzero()[0])
    return {
        "command": "python scripts/method_figures.py --measure",
        "versions": {
            "fedmt": fedmt.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "rounds": rounds,
        "prediction": {
            "test_image": image,
            "garment": GARMENT.classes[int(labels[image])],
            "probabilities": np.round(answers[image].tolist(), 4).tolist(),
        },
    }


# -- the pictures -----------------------------------------------------------------------------------


def label_spaces() -> Figure:
    """Three ways to label ten garments, and what they have in common."""
    rows = [("garment\n(wanted)", [[g] for g in ORDER], list(ORDER))]
    for matrix in (GARMENT_TO_DEPARTMENT, GARMENT_TO_LAYER):
        groups = [_members(matrix, name) for name in matrix.coarse]
        rows.append((matrix.coarse.name, groups, list(matrix.coarse)))
    common = _common([groups for _, groups, _ in rows[1:]])
    rows.append(("common\nto all", common, ["clothing", "footwear", "bag"]))
    figure = Figure(figsize=(10.5, 2.9), layout="constrained")
    axes = figure.subplots()
    for y, (title, groups, names) in enumerate(rows):
        axes.text(-0.15, -y, title, ha="right", va="center", fontsize=10, weight="bold")
        for number, (group, name) in enumerate(sorted(zip(groups, names, strict=True), key=_first)):
            places = sorted(ORDER.index(g) for g in group)
            assert places == list(range(places[0], places[-1] + 1)), (name, group)
            tint = TINTS[number % 2] if y < 3 else "#e6e6e6"
            axes.add_patch(
                Rectangle(
                    (places[0] + 0.03, -y - 0.36), len(places) - 0.06, 0.72, fc=tint, ec="#404040", lw=0.9
                )
            )
            axes.text(places[0] + len(places) / 2, -y, name, ha="center", va="center", fontsize=10)
        axes.text(10.12, -y, f"{len(groups)} classes", ha="left", va="center", fontsize=10)
    axes.set(xlim=(-1.15, 11.1), ylim=(-3.5, 0.5))
    axes.axis("off")
    return figure


def _first(pair: tuple[list[str], str]) -> int:
    return min(ORDER.index(g) for g in pair[0])


def _members(matrix: Correspondence, name: str) -> list[str]:
    """The garments that belong to a class of the other space."""
    row = matrix.matrix[matrix.coarse.index(name)]
    return [g for g, share in zip(GARMENT, row.tolist(), strict=True) if share > 0]


def _common(partitions: list[list[list[str]]]) -> list[list[str]]:
    """The finest grouping in which every space can answer: groups that share a garment are merged."""
    groups: list[set[str]] = []
    for group in (set(g) for partition in partitions for g in partition):
        touched = [g for g in groups if g & group]
        groups = [g for g in groups if not g & group] + [group.union(*touched)]
    return [sorted(g, key=ORDER.index) for g in sorted(groups, key=lambda g: min(map(ORDER.index, g)))]


def one_round() -> Figure:
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 105), ylim=(0, 46))
    axes.axis("off")
    _box(axes, 1, 4, 36, 38, TINTS[0], "Reference center, coordinating")
    _lines(
        axes,
        3,
        35,
        [
            "few images, labels in the wanted space",
            "",
            "C   averages the updates that arrived:",
            "     f + rate · mean(f_c - f)",
            "A   trains the average on its own labels:",
            "     cross-entropy of f(x)",
            "     pooled batch-norm statistics",
            "     test, metrics, checkpoint",
        ],
    )
    for number, (x, y) in enumerate(((63.5, 6.5), (62, 5.25), (60.5, 4))):
        _box(axes, x, y, 41, 38, TINTS[1], "Each center" if number == 2 else "")
    _lines(
        axes,
        62.5,
        35,
        [
            "many images, labels in a space of its own",
            "",
            "B1  guesses wanted labels: f(x), K numbers",
            "B2  M (J x K): given, or estimated from",
            "      guesses and own labels",
            "B3  posterior  q_k ~ f_k M[label, k];",
            "      confident: max q > ξ. None? It abstains",
            "B4  trains:  R^p + λ2 (L_fix + λ1 L_mix)",
            "      R^p: cross-entropy of M f(x)",
        ],
    )
    _arrow(axes, (37.5, 32), (60, 32), BLUE, "model f")
    _arrow(axes, (60, 19), (37.5, 19), ORANGE, "update f_c - f")
    axes.text(
        48.7, 11.5, "batch-norm statistics,\nunless switched off", ha="center", fontsize=8.5, color="#404040"
    )
    axes.text(82, 6.4, "stay here: images, labels, guesses, M-hat", ha="center", fontsize=9.5, weight="bold")
    axes.text(19, 6.4, "one round; R of them", ha="center", fontsize=9.5, weight="bold")
    return figure


def _box(axes: Axes, x: float, y: float, width: float, height: float, color: str, title: str) -> None:
    style = "round,pad=0,rounding_size=1.2"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=color, ec="#404040", lw=1))
    axes.text(x + width / 2, y + height - 3.4, title, ha="center", weight="bold", fontsize=11)


def _lines(axes: Axes, x: float, top: float, lines: list[str]) -> None:
    for number, line in enumerate(lines):
        axes.text(x, top - 3.05 * number, line, fontsize=9.5, va="center")


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str, text: str) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=18, lw=2.4, color=color))
    axes.text((start[0] + end[0]) / 2, start[1] + 1.6, text, ha="center", fontsize=10.5, color="black")


def projection(measured: dict[str, Any]) -> Figure:
    """The two correspondences, and one prediction through each of them."""
    found = measured["prediction"]
    f = torch.tensor(found["probabilities"])
    figure = Figure(figsize=(10.5, 6.2), layout="constrained")
    grid = figure.add_gridspec(3, 3, width_ratios=[1.25, 7, 3.2], height_ratios=[2.4, 5, 4])
    picture, wanted = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    picture.imshow(read_fashion_mnist("test").images[found["test_image"], 0], cmap="gray_r")
    picture.set_title(f"a {found['garment']}", fontsize=10)
    picture.set(xticks=[], yticks=[])
    bars = wanted.bar(range(len(f)), f.tolist(), 0.7, color=BLUE)
    wanted.bar_label(bars, [f"{p:.2f}" if p > 0.005 else "" for p in f.tolist()], fontsize=9, padding=1)
    wanted.set(xlim=(-0.5, 9.5), ylim=(0, 1.15), xticks=[], yticks=[])
    wanted.set_title("f(x): the model's probabilities of the ten wanted classes", fontsize=10)
    wanted.spines[["top", "right", "left"]].set_visible(False)
    for row, matrix in enumerate((GARMENT_TO_DEPARTMENT, GARMENT_TO_LAYER), 1):
        heat, out = figure.add_subplot(grid[row, 1]), figure.add_subplot(grid[row, 2])
        _heat(heat, matrix, matrix.matrix.numpy())
        heat.set_title(
            f"M, garment to {matrix.coarse.name}: {len(matrix.coarse)} x {len(matrix.fine)}", fontsize=10
        )
        answer = matrix.project(f).tolist()
        bars = out.barh(range(len(answer)), answer, 0.7, color=ORANGE)
        out.bar_label(bars, [f"{p:.2f}" if p > 0.005 else "" for p in answer], fontsize=9, padding=2)
        out.set(xlim=(0, 1.25), ylim=(len(answer) - 0.5, -0.5), xticks=[])
        out.set_yticks(range(len(answer)), matrix.coarse.classes, fontsize=9)
        out.set_title(f"M f(x): by {matrix.coarse.name}", fontsize=10)
        out.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


def _heat(axes: Axes, matrix: Correspondence, values: np.ndarray, names: bool = True) -> None:
    axes.imshow(values, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    axes.set_xticks(
        range(len(matrix.fine)), matrix.fine.classes if names else [], rotation=35, ha="right", fontsize=9
    )
    axes.set_yticks(range(len(matrix.coarse)), matrix.coarse.classes, fontsize=9)
    for j in range(len(matrix.coarse)):
        for k in range(len(matrix.fine)):
            if values[j, k] >= 0.005:
                shown = "1" if values[j, k] > 0.995 else f"{values[j, k]:.2f}".lstrip("0")
                color = "white" if values[j, k] > 0.55 else "black"
                axes.text(k, j, shown, ha="center", va="center", fontsize=8, color=color)


def estimate(measured: dict[str, Any]) -> Figure:
    """M-hat of one center in the first and the last round, and the errors of all centers over the rounds."""
    rounds = measured["rounds"]
    figure = Figure(figsize=(10.5, 5.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.5, 1])
    center = next(n for n, c in rounds[0]["centers"].items() if c["space"] == "layer")
    truth = GARMENT_TO_LAYER
    for row, record in enumerate((rounds[0], rounds[-1])):
        axes = figure.add_subplot(grid[row, 0])
        found = record["centers"][center]
        _heat(axes, truth, np.array(found["matrix"]), names=row == 1)
        for j, k in truth.matrix.nonzero().tolist():
            axes.add_patch(Rectangle((k - 0.48, j - 0.48), 0.96, 0.96, fill=False, edgecolor=ORANGE, lw=1.8))
        axes.set_title(f"M-hat of {center}, round {record['round']} (outlined: M)", fontsize=10)
    curves = figure.add_subplot(grid[:, 1])
    for space, color, dash in (("department", BLUE, "-"), ("layer", ORANGE, "--")):
        names = [n for n, c in rounds[0]["centers"].items() if c["space"] == space]
        for number, name in enumerate(names):
            errors = [r["centers"][name]["error"] for r in rounds]
            label = f"the {len(names)} centers that label by {space}" if number == 0 else None
            curves.plot(
                [r["round"] for r in rounds],
                errors,
                dash,
                color=color,
                lw=1.6,
                marker="o",
                ms=3.5,
                label=label,
            )
    curves.set(xlabel="round", xticks=[r["round"] for r in rounds])
    curves.set_ylim(bottom=0)
    curves.set_title("Error of M-hat: Frobenius norm of M-hat - M", fontsize=10)
    curves.legend(frameon=False, fontsize=9)
    curves.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws the figures of docs/concepts/.")
    parser.add_argument("--measure", action="store_true", help="first run the quickstart's FedMT (E)")
    data = FIGURES / "method.json"
    if parser.parse_args().measure:
        data.write_text(json.dumps(measure(), indent=None) + "\n")
    measured = json.loads(data.read_text())
    pictures = {
        "label-spaces": label_spaces(),
        "round": one_round(),
        "projection": projection(measured),
        "estimate": estimate(measured),
    }
    for name, figure in pictures.items():
        out = FIGURES / f"{name}.png"
        figure.savefig(out, dpi=150)
        print(out)


if __name__ == "__main__":
    main()
