"""Makes the runs that docs/results/paper.md still lacks, in the order in which readers need them.

    python scripts/paper_queue.py --list
    python scripts/paper_queue.py --data data --weights resnet18_imagenet.safetensors --seconds 600

Runs are made one after another, or --jobs at a time, each in a process of its own, and each is written as a
raw file as soon as it is finished. A run whose process dies is tried once more, and the others go on. A run
is not started if, by an estimate, it would not end within --seconds. A run that has a raw file is not
repeated, so the same command continues where the last one stopped. With --stop-after, longer runs are
stopped after so many rounds, which can be enough to see that a run of 200 rounds is behind another one.
`fedmt reproduce` makes the same runs by table, with checkpoints.

On a large GPU, four runs at a time finish almost twice as many as one at a time, by the estimates below, if
NVIDIA's multi-process service is running (`nvidia-cuda-mps-control -d`). Six at a time finish no more.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from paper_runs import FOLDER, Runs, identity, to_json

from fedmt.commands.sweeps.expansion import Run, Sweep, expand
from fedmt.commands.sweeps.experiment import known_experiments, read_experiment
from fedmt.commands.sweeps.scales import cost
from fedmt.config import Config
from fedmt.core.errors import FedmtError
from fedmt.engines.site import Record
from fedmt.runs.folder import RunFolder
from fedmt.training.run import Silent, Stopped, run

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
            "FedRep: 32 reference epochs",
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
    # With the network of the baselines from ImageNet weights.
    Wanted("backbones", cells("ResNet18, ImageNet", FEDMT)),
    Wanted("backbones", cells("ResNet18, random", FEDMT)),
    Wanted("baselines_search", ("(ImageNet): rate", "FedRep (ImageNet): 8 reference epochs")),
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

SLOWER = 0.4
"""By what share of its time alone a run gets longer for each further run on the GPU. With three at a time,
runs took 1.9 times as long as alone. With four, they took 2.1 times as long as estimated here."""


def estimated_seconds(config: Config, stop_after: int | None = None) -> float:
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
    part = 1.0 if stop_after is None else min(1.0, stop_after / config.training.rounds)
    seconds = part * images * SECONDS_PER_IMAGE * views / 2
    return START + seconds * small * size * TIMES.get(config.model.backbone, 1.0)


def missing(
    known: Runs, data: Path | None, weights: tuple[Path, ...], enough: int | None = None
) -> Iterator[tuple[Wanted, Run]]:
    """Every run of the queue that has no raw file, once, in the order of the queue. The file of a stopped run
    counts if it has `enough` rounds."""
    done = {
        (identity(run.config), run.config.seed)
        for run in known.all
        if run.finished or (enough is not None and run.rounds >= enough)
    }
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
    parser.add_argument("--stop-after", type=int, help="Stop longer runs after this many rounds.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="Where raw files go.")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    known = Runs()
    if given.out != FOLDER:
        known.all += Runs(given.out, None).all
    queue = []
    for wanted, one in missing(known, given.data, tuple(given.weights), given.stop_after):
        label = f"{wanted.experiment}: {one.label}"
        if not given.only or any(text.casefold() in label.casefold() for text in given.only):
            queue.append((wanted.experiment, one, label))
    if given.list:
        total = 0.0
        for experiment, one, _ in queue:
            needed = estimated_seconds(one.config, given.stop_after)
            total += needed
            cell, seeds = one.label.rpartition(", seed")[0], str(one.config.seed + 1)
            command = ["fedmt", "reproduce", experiment, "--only", cell, "--seeds", seeds, "--jobs", "1"]
            print(f"{needed:6.0f} s  {total:7.0f} s in all  {shlex.join(command)}")
        return
    longer = 1 + SLOWER * (given.jobs - 1)
    if given.jobs > 1:
        # With the 32 hardware queues that fedmt asks for, a fourth process of the service could not start.
        # With 8 for each process, four could.
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    fitting = (
        (label, (one, label, given.out, given.stop_after))
        for _, one, label in queue
        if time.monotonic() + estimated_seconds(one.config, given.stop_after) * longer < end
    )
    side_by_side(make, fitting, given.jobs)


def side_by_side(
    target: Callable[..., None], work: Iterable[tuple[str, tuple[Any, ...]]], jobs: int, tries: int = 2
) -> None:
    """Calls the target once for each piece of work, a label and arguments, with `jobs` processes at a time.

    A process that dies does not stop the others, and its work is tried again at once.
    """
    context, coming = get_context("spawn"), iter(work)  # a process that has used CUDA must not be copied
    under_way: dict[SpawnProcess, tuple[str, tuple[Any, ...], int]] = {}

    def start(label: str, arguments: tuple[Any, ...], left: int) -> None:
        process = context.Process(target=target, args=arguments)
        process.start()
        under_way[process] = label, arguments, left

    while True:
        while len(under_way) < jobs and (found := next(coming, None)) is not None:
            start(*found, tries - 1)
        if not under_way:
            return
        wait([process.sentinel for process in under_way])
        for process in [process for process in under_way if not process.is_alive()]:
            process.join()
            label, arguments, left = under_way.pop(process)
            if process.exitcode != 0:
                then = "It is tried again." if left else "It is left out."
                print(f"{label}: its process ended with status {process.exitcode}. {then}", flush=True)
                if left:
                    start(label, arguments, left - 1)


class StopAfter(Silent):
    """Stops a run after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round(self, record: Record) -> None:
        if record["round"] == self.rounds:
            raise Stopped


def make(one: Run, label: str, out: Path, stop_after: int | None = None) -> None:
    """One run, and its raw file."""
    start = time.monotonic()
    rounds = one.config.training.rounds
    observer = StopAfter(stop_after) if stop_after is not None and stop_after < rounds else None
    with tempfile.TemporaryDirectory() as folder:  # checkpoints of 90 MB each are not kept
        place = Path(folder) / "run"
        try:
            run(one.config, place, observer=observer)
        except Stopped:
            label += f" (stopped after {stop_after} of {rounds} rounds)"
        except FedmtError as error:
            print(f"{label} failed: {error}", flush=True)
            return
        last = RunFolder(place).metrics()[-1]["accuracy"]
        name, text = to_json(place)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(text, encoding="utf-8")
    accuracy = {space: round(100 * value, 2) for space, value in last.items()}
    print(f"{label}: {accuracy}, {time.monotonic() - start:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
