"""Makes the runs that docs/results/paper.md still lacks, in the order in which readers need them.

    python scripts/paper_queue.py --list
    python scripts/paper_queue.py --data data --weights resnet18_imagenet.safetensors --seconds 600

Runs are made one after another, or --jobs at a time, and each is written as a raw file as soon as it is
finished. A run is not started if, by an estimate, it would not end within --seconds. A run that has a raw
file is not repeated, so the same command continues where the last one stopped. `fedmt reproduce` makes the
same runs by table, with checkpoints.
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from paper_runs import FOLDER, Runs, identity, to_json

from fedmt.commands.sweeps.expansion import Run, Sweep, expand
from fedmt.commands.sweeps.experiment import known_experiments, read_experiment
from fedmt.commands.sweeps.scales import cost
from fedmt.config import Config
from fedmt.core.errors import FedmtError
from fedmt.training.run import run

FEDERATED = ("FedRep", "FedTrans", "SemiFL")
IMAGENET = ("Single (ImageNet)", "FedTrans (ImageNet)", "FedRep (ImageNet)")
FEDMT = ("FedMT (T)", "FedMT (E)")


@dataclass(frozen=True)
class Wanted:
    """Cells of an experiment, selected as by `--only` (none: all cells), and the seeds."""

    experiment: str
    only: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)


def cells(row: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{column}, {row}" for column in columns)


QUEUE = (
    # First the columns of the main table that no search concerns, then the settings of the baselines, and
    # then their columns, starting with the ends of the table.
    *(Wanted("main", cells(row, FEDMT)) for row in ("n = 25", "n = 5", "n = 15", "n = 10", "n = 20")),
    Wanted(
        "baselines_search",
        (
            *(f"{method}: the recipe" for method in FEDERATED),
            *(f"{method}: rate 0.03" for method in FEDERATED),
            "FedTrans: fine-tuning at 0.03",
            "FedTrans: 300 epochs of fine-tuning",
            "FedRep: 8 reference epochs",
            "FedRep: 16 reference epochs",
            "SemiFL: xi 0.8",
            "SemiFL: xi 0.4",
            "Single: ",
        ),
    ),
    Wanted("main", cells("n = 25", ("Single", *FEDERATED))),
    Wanted("main", cells("n = 5", ("Single", *FEDERATED))),
    Wanted("main", cells("n = 15", ("Single", *FEDERATED))),
    Wanted("main", (*cells("n = 10", ("Single", *FEDERATED)), *cells("n = 20", ("Single", *FEDERATED)))),
    Wanted("estimators", ("counting), IID", "Learnable, IID", "Average, IID")),
    Wanted("noniid", ("gamma 0.9", "gamma 0.1", "IID")),
    Wanted("baselines_search", ("(ImageNet): rate",)),
    Wanted("main", cells("n = 25", IMAGENET)),
    Wanted("main", cells("n = 5", IMAGENET)),
    Wanted("main", ("n = 5", "n = 25"), (1, 2)),
    Wanted("main"),
    Wanted("estimators"),
    Wanted("mhat"),
    Wanted("cifar100_ablation"),
    Wanted("backbones", ("ResNet18, ImageNet", "MobileNetV2, ImageNet", "MobileNetV2, random")),
    Wanted("backbones", ("ResNet9, random", "ResNet18, random")),
    Wanted("scalability", ("C = 80", "C = 40", "C = 20", "N_c = 2000", "N_c = 1000")),
    Wanted("scalability"),
    Wanted("readings", cells("R^p on all, double softmax", ("FedMT (T)",))),
    Wanted("readings", cells("R^p on all", ("FedMT (T)",))),
    Wanted("readings", ("FedMT (T)",)),
    Wanted("cifar100_participation"),
    Wanted("cifar100_strategies"),
    Wanted("baselines_search"),
    Wanted("fitzpatrick", (), (0, 1, 2)),
    Wanted("initialization"),
    Wanted("lambda2"),
    Wanted("thresholds"),
    Wanted("paper_network"),
    Wanted("backbones", ("ResNet50, random",)),
    Wanted("readings"),
)

SECONDS_PER_IMAGE = 22e-6
"""Measured on one H200: FedMT's 150 rounds at n = 25 see 7.6 million images, each in two views, in 167 s."""
START = 12.0
"""Seconds that a run takes outside its rounds: data, captured graphs, the last evaluation."""
TIMES = {"resnet9": 1.0, "resnet50": 5.0, "mobilenet_v2": 2.0}
"""How much longer a run takes than with ResNet18, roughly."""


def estimated_seconds(config: Config) -> float:
    """Rough seconds on one H200, precise enough to tell whether a run fits into the remaining time."""
    views = 3 if config.method.get("projection", "none") == "all" else 2
    if (
        config.method["name"] in ("single", "fedtrans", "fedrep")
        and config.training.supervised_views == "weak"
    ):
        views = 1
    small = 1.3 if config.training.batch_size < 50 else 1.0  # small batches leave the GPU half idle
    size = 8.0 if config.benchmark and config.benchmark.data.source == "fitzpatrick17k" else 1.0
    images = (
        cost(config) or 8_000 * config.training.rounds
    )  # for Fitzpatrick, the number is known only from its data
    return START + images * SECONDS_PER_IMAGE * views / 2 * small * size * TIMES.get(
        config.model.backbone, 1.0
    )


def missing(known: Runs, data: Path | None, weights: tuple[Path, ...]) -> Iterator[tuple[Wanted, Run]]:
    """Every run of the queue that has no raw file, once, in the order of the queue."""
    done = {(identity(run.config), run.config.seed) for run in known.all if run.finished}
    for wanted in QUEUE:
        sweep = Sweep(max(wanted.seeds) + 1, only=wanted.only, data=data, weights=weights)
        chosen = [
            c for c in expand(read_experiment(known_experiments()[wanted.experiment]), sweep) if c.selected
        ]
        # The order is that of `only`, if it names single cells, and then that of the seeds.
        chosen.sort(key=lambda c: _place(f"{c.column}, {c.row}", wanted.only))
        for seed in wanted.seeds:
            for one in (cell.runs[seed] for cell in chosen if cell.runs):
                key = identity(one.config), seed
                if key not in done:
                    done.add(key)
                    yield wanted, one


def _place(label: str, only: tuple[str, ...]) -> int:
    return next((at for at, text in enumerate(only) if text.casefold() in label.casefold()), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the runs that docs/results/paper.md still lacks.")
    parser.add_argument(
        "--list", action="store_true", help="Say what would be run, and about how long it takes."
    )
    parser.add_argument(
        "--data", type=Path, help="The folder that holds cifar-100-python and fitzpatrick17k."
    )
    parser.add_argument(
        "--weights", type=Path, action="append", default=[], help="ImageNet weights of a backbone."
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="How long it may take in all.")
    parser.add_argument(
        "--only", action="append", help="Only runs whose experiment and label contain this. May be repeated."
    )
    parser.add_argument("--jobs", type=int, default=1, help="How many runs share the GPU at a time.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="Where raw files go.")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    known = Runs()
    if given.out != FOLDER:
        known.all += Runs(given.out, None).all
    total = 0.0
    # A process that has used CUDA must not be copied, so the workers are started anew.
    pool = ProcessPoolExecutor(given.jobs, get_context("spawn"))
    under_way: set[Future[None]] = set()
    for wanted, one in missing(known, given.data, tuple(given.weights)):
        label = f"{wanted.experiment}: {one.label}"
        if given.only and not any(text.casefold() in label.casefold() for text in given.only):
            continue
        needed = estimated_seconds(one.config)
        total += needed
        if given.list:
            cell = one.label.rpartition(", seed")[0]
            seeds = one.config.seed + 1
            command = [
                "fedmt",
                "reproduce",
                wanted.experiment,
                "--only",
                cell,
                "--seeds",
                str(seeds),
                "--jobs",
                "1",
            ]
            print(f"{needed:6.0f} s  {total:7.0f} s in all  {shlex.join(command)}")
            continue
        if len(under_way) == given.jobs:
            ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for finished in ended:
                finished.result()  # raises what the run raised
        if time.monotonic() + needed * given.jobs < end:  # at worst, runs side by side gain nothing
            under_way.add(pool.submit(make, one, label, given.out))
    for finished in under_way:
        finished.result()
    pool.shutdown()


def make(one: Run, label: str, out: Path) -> None:
    """One run, and its raw file."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:  # checkpoints of 90 MB each are not kept
        place = Path(folder) / "run"
        try:
            summary = run(one.config, place)
        except FedmtError as error:
            print(f"{label} failed: {error}", flush=True)
            return
        name, text = to_json(place)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(text, encoding="utf-8")
    accuracy = {space: round(100 * value, 2) for space, value in summary["accuracy"].items()}
    print(f"{label}: {accuracy}, {time.monotonic() - start:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
