"""The quickstart: the whole idea on bundled images, in minutes on two cores.

A reference center knows ten garments but has a handful of images of each. Eight centers have 750 images each
and label differently: four by department, four by layer. Nobody shares an image.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedmt.commands.steps import stopped
from fedmt.config import Config, parse_config
from fedmt.core.rounding import percent
from fedmt.inputs.images.augment import GEOMETRIC
from fedmt.reports.report import report
from fedmt.runs.files import write_atomically
from fedmt.training.progress import Display
from fedmt.training.run import Stopped, run

SPACES = ("garment", "department", "layer")

# Tuned on training images that no center uses, never on the test images. docs/start/quickstart.md explains
# how.
PER_CLASS = 3
FEDERATED = {
    "rounds": 14,
    "local_epochs": 1,
    "batch_size": 50,
    "reference_epochs": 5,
    "reference_batch_size": 25,
    "warmup_epochs": 300,
    "learning_rate": 0.1,
}
# The reference center alone, for 800 epochs, at the learning rate and batch size that suit it best. Twice as
# many epochs gain half a point.
ALONE = {
    "rounds": 20,
    "reference_epochs": 40,
    "reference_batch_size": 10,
    "learning_rate": 0.05,
}
# With --quick, to check in less than a minute that an installation works.
QUICK = {"rounds": 2, "reference_epochs": 1, "warmup_epochs": 5}
OPERATIONS = (
    "identity", *GEOMETRIC, "autocontrast", "brightness", "contrast", "posterize", "solarize",
)  # fmt: skip

OPTIONS = {"name": "fedmt", "prior": "uniform"}

METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Single": ({"name": "single"}, ALONE),
    "FedMT (T)": ({**OPTIONS, "correspondence": "given"}, FEDERATED),
    "FedMT (E)": ({**OPTIONS, "correspondence": "estimated"}, FEDERATED),
}


def quickstart_config(method: str, seed: int, quick: bool = False) -> Config:
    """The config of one of the three methods. quick: with a fraction of the rounds and images."""
    options, training = METHODS[method]
    training = {**training, **QUICK} if quick else training
    return parse_config(
        {
            "seed": seed,
            "method": options,
            "training": training,
            "augmentation": {"operations": OPERATIONS, "flip": False},
            "model": {"backbone": "small_cnn"},
            "benchmark": {
                "data": {"source": "fashion_mnist"},
                "wanted": "garment",
                "spaces": {"department": 4, "layer": 4},
                "per_class": PER_CLASS,
                "samples": 50 if quick else 750,
            },
        }
    )


def quickstart(out: Path, seed: int, console: Console, quick: bool = False) -> list[dict[str, Any]]:
    """Runs the three methods, keeping finished runs, and writes summary.json and report.html."""
    console.print(
        f"Ten garments, {PER_CLASS} labeled images of each at the reference center; 8 centers of "
        f"{50 if quick else 750} images label by department or by layer.",
        soft_wrap=True,
    )
    if quick:
        console.print(
            "Note: --quick shows that everything works. Its accuracies mean little.", soft_wrap=True
        )
    rows, folders = [], []
    for method in METHODS:
        config = quickstart_config(method, seed, quick)
        folder = out / method.lower().replace(" (", "-").rstrip(")")
        display = Display(console, method, quiet=True)
        try:
            with display.watching():
                summary = run(config, folder, resume=True, observer=display)
        except Stopped:
            stopped(console, _again(out, seed, quick))
            raise SystemExit(130) from None
        accuracy = summary["accuracy"]
        console.print(f"{method}: {percent(accuracy['garment'])} in {summary['seconds']:.0f} s")
        rows.append(
            {
                "method": method,
                "fine_accuracy": accuracy["garment"],
                "coarse_accuracy": {s: accuracy[s] for s in SPACES[1:]},
                "rounds": summary["rounds"],
                "seconds": summary["seconds"],
            }
        )
        folders.append(folder)
    write_atomically(out / "summary.json", (json.dumps(rows, indent=2) + "\n").encode())
    intro = (
        f"Fashion-MNIST, split between nine centers (seed {seed}). The reference center has {PER_CLASS} "
        f"images of each of ten garments. Eight centers with {(50 if quick else 750)} images each label in "
        "other spaces: four by department, four by layer. Single uses only the reference center's images. "
        "FedMT (T) knows how the spaces correspond. FedMT (E) estimates it."
    )
    command = shlex.join(_again(out, seed, quick))
    page = out / "report.html"
    report(folders, page, "fedmt quickstart", intro=intro, labels=list(METHODS), command=command)
    table = Table(title="Test accuracy")
    table.add_column("method")
    for space in SPACES:
        table.add_column(space, justify="right")
    table.add_column("seconds", justify="right")
    for row in rows:
        shown = [row["fine_accuracy"], *row["coarse_accuracy"].values()]
        table.add_row(row["method"], *map(percent, shown), f"{row['seconds']:.0f}")
    console.print(table)
    console.print(f"Curves and estimated correspondences: {out / 'report.html'}", soft_wrap=True)
    return rows


def _again(out: Path, seed: int, quick: bool) -> list[str]:
    """The command that continues the quickstart."""
    words = ["fedmt", "quickstart", "--out", str(out), "--seed", str(seed)]
    return [*words, "--quick"] if quick else words
