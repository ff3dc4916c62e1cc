"""Runs an experiment: its runs execute side by side in worker processes, and its table is rewritten as they
finish.

Each run has an ordinary run folder, named after its resolved config. Finished runs are kept, killed runs
continue, and two experiments that share a run share its folder.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table

from fedmt.commands.steps import next_step, stopped
from fedmt.commands.sweeps.curves import draw_curves
from fedmt.commands.sweeps.differences import all_differences
from fedmt.commands.sweeps.display import Display
from fedmt.commands.sweeps.expansion import Run, Sweep, expand
from fedmt.commands.sweeps.experiment import Experiment, find_experiment, known_experiments, read_experiment
from fedmt.commands.sweeps.figures import number
from fedmt.commands.sweeps.results import Finished, Heading, Results, read_finished
from fedmt.commands.sweeps.scales import SCALES, cost
from fedmt.commands.sweeps.workers import Outcome, run_all
from fedmt.config import Config
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.engines.device import pick_device
from fedmt.training.run import Stopped

MOST_REPORTED = 4
"""Number of runs that the suggested next command names. A page with more is hard to read."""

GIB_PER_RUN = 6
CORES_PER_RUN = 2
"""On CUDA: the GPU memory and the cores that a run is assumed to need (a ResNet18 at batch size 50 and its
data)."""

WHERE_TO_GET = {
    "cifar-100-python": "unpack cifar-100-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html there",
    "fitzpatrick17k": "see https://github.com/mattgroh/fitzpatrick17k and the header of "
    "experiments/base/fitzpatrick17k.toml",
    "trec": "scripts/text_benchmarks.py makes it from the download",
    "clinc150": "scripts/text_benchmarks.py makes it from the download",
    "breakhis": "see the header of experiments/base/breakhis.toml",
}


def reproduce(
    experiment: Experiment,
    sweep: Sweep,
    out: Path,
    command: list[str],
    console: Console,
    jobs: int | None = None,
) -> bool:
    """Runs what is not finished yet and writes the table. Returns whether every run succeeded. May raise
    `Stopped`."""
    cells = expand(experiment, sweep)
    asked = {r.key: r for cell in cells if cell.selected for r in cell.runs}
    _check_data([r.config for r in asked.values()])
    folder = out / "runs"
    stem = out / (experiment.name if sweep.scale == "full" else f"{experiment.name}-{sweep.scale}")
    changed = tuple(f"--set {s}" for s in sweep.overrides) + tuple(f"--weights {w}" for w in sweep.weights)
    heading = Heading(sweep.scale, sweep.seeds, shlex.join(command), changed)
    finished: dict[str, Finished] = {}
    for key in {r.key for cell in cells for r in cell.runs}:
        found = read_finished(folder / key)
        if found is not None:
            finished[key] = found
    failed: dict[str, str] = {}
    results = Results(experiment, cells, finished, failed, heading, folder)
    left = [r for r in asked.values() if r.key not in finished]
    left.sort(
        key=lambda r: r.config.seed
    )  # a stable sort: every cell gets its first figure before any cell gets its second
    # Check --out before anything runs, so that a folder that cannot be written to does not cost a run.
    results.write(stem)
    if left:
        jobs = min(jobs or default_jobs(left), len(left))
        console.print(
            f"{experiment.file.title}: {len(asked)} runs, {len(asked) - len(left)} of them already "
            f"finished; {jobs} at a time in {folder}",
            soft_wrap=True,
        )

        def ended(done: Run, outcome: Outcome) -> str:
            found = None if outcome.error else read_finished(folder / done.key)
            if found is None:
                failed[done.key] = outcome.error or "it left no summary.json"
                text = f"failed: {failed[done.key]}"
            else:
                finished[done.key] = found
                text = f"{found.summary['seconds']:.0f} s  " + "  ".join(
                    f"{m} {number(m, v)}"
                    for m in experiment.file.show
                    if (v := results.value(done, m)) is not None
                )
            results.write(stem)
            return text

        with Display(console, left).watching() as display:
            run_all(left, folder, jobs, display, ended)
    results = replace(results, differences=all_differences(results))
    results.write(stem)
    pictures = draw_curves(results, stem)
    _print_results(results, console)
    written = [stem.with_name(stem.name + ".md"), stem.with_name(stem.name + ".json"), *pictures]
    console.print("Written: " + ", ".join(map(str, written)), soft_wrap=True)
    for one in asked.values():
        if one.key in failed:
            console.print(f"Failed: {one.label} ({folder / one.key}): {failed[one.key]}", soft_wrap=True)
    done = [folder / key for key in asked if key in finished]
    if failed:
        next_step(console, *command[1:])
    elif done:
        next_step(console, "report", *done[:MOST_REPORTED])
    return not failed


def default_jobs(runs: list[Run]) -> int:
    """The number of runs side by side: on a CPU, one per core; on CUDA, as many as free memory and cores
    allow, by a rough rule. --jobs overrides it."""
    device = pick_device(runs[0].config.device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device.type != "cuda":
        return cores
    free = torch.cuda.mem_get_info(device)[0] / 2**30
    return max(1, min(int(free // GIB_PER_RUN), cores // CORES_PER_RUN))


def _check_data(configs: list[Config]) -> None:
    """Checks that every file or folder that the runs will read exists."""
    missing: dict[Path, None] = {}
    for config in configs:
        if config.benchmark is not None:
            sources = [config.benchmark.data, *([config.benchmark.test] if config.benchmark.test else [])]
        else:
            sources = [*([config.reference] if config.reference else []), *config.centers, *config.tests]
        paths = [p for s in sources for p in (s.path, s.labels, s.root) if p is not None]
        missing |= dict.fromkeys(
            p for p in [*paths, config.model.weights] if p is not None and not p.exists()
        )
    if missing:
        hints = [
            f"{path} is missing"
            + next((f": {hint}" for name, hint in WHERE_TO_GET.items() if name in path.parts), "")
            + "."
            for path in missing
        ]
        raise FedmtError("\n".join([*hints, "Or give the folder that contains the data with --data DIR."]))


def _print_results(results: Results, console: Console) -> None:
    file = results.experiment.file
    for metric in file.show:
        table = Table(title=f"{file.title}\n{metric}, scale {results.heading.scale}", show_lines=True)
        table.add_column("")
        for column in results.shown()[1]:
            table.add_column(column, justify="right")
        for label, texts in results.table(metric):
            table.add_row(label, *("\n".join(filter(None, pair)) for pair in texts))
        console.print(table)
    for note in results.notes():
        console.print(f"Note: {note}", soft_wrap=True)


def list_experiments(sweep: Sweep, out: Path, console: Console) -> None:
    """One line per shipped experiment. Nothing is loaded."""
    table = Table(
        title=f"fedmt reproduce NAME; runs with --seeds {sweep.seeds}, images at --scale {sweep.scale}"
    )
    for heading in ("name", "paper", "runs", "finished", "images", "what"):
        table.add_column(heading, justify="right" if heading in ("runs", "finished", "images") else "left")
    for name, path in known_experiments().items():
        try:
            experiment = read_experiment(path)
            runs = {r.key: r for cell in expand(experiment, sweep) for r in cell.runs}
        except FedmtError as error:
            table.add_row(name, "", "", "", "", f"broken: {str(error).splitlines()[0]}")
            continue
        finished = sum((out / "runs" / key / "summary.json").exists() for key in runs)
        costs = [cost(r.config) for r in runs.values()]
        known = [c for c in costs if c is not None]
        images = _short(sum(known)) if len(known) == len(costs) else "unknown without the data"
        table.add_row(
            name, experiment.file.paper or "", str(len(runs)), str(finished), images, experiment.file.title
        )
    console.print(table)


def _short(number: int) -> str:
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return str(number)


def command_line(
    called: Literal["sweep", "reproduce"],
    name: str | None,
    listing: bool,
    only: list[str] | None,
    seeds: int,
    scale: str,
    out: Path,
    data: Path | None,
    weights: list[Path] | None,
    overrides: list[str] | None,
    jobs: int | None,
    console: Console,
) -> bool:
    """`fedmt sweep` and `fedmt reproduce`. Returns whether every run succeeded.

    Ctrl-C ends it with status 130 and the command that continues.
    """
    if scale not in SCALES:
        raise FedmtError(f"--scale {scale}: no such scale.{nearest(scale, SCALES)} Known: {listed(SCALES)}.")
    sweep = Sweep(seeds, scale, tuple(only or ()), tuple(overrides or ()), tuple(weights or ()), data)
    if listing:
        list_experiments(sweep, out, console)
        # This is the only experiment that needs no download.
        next_step(console, "reproduce", "methods", "--scale", "tiny", "--seeds", "1")
        return True
    if name is None:
        raise FedmtError("Which experiment? `fedmt reproduce --list` lists them.")
    path = find_experiment(name)
    if called == "reproduce" and name not in known_experiments():
        console.print(
            f"Note: for your own file, `fedmt sweep {shlex.quote(name)}` does the same.", soft_wrap=True
        )
    command = ["fedmt", called, name]
    for option, values in (("--only", sweep.only), ("--weights", sweep.weights), ("--set", sweep.overrides)):
        command += [part for value in values for part in (option, str(value))]
    command += ["--seeds", str(seeds), "--scale", scale, "--out", str(out)]
    command += ["--data", str(data)] if data is not None else []
    command += ["--jobs", str(jobs)] if jobs is not None else []
    try:
        return reproduce(read_experiment(path), sweep, out, command, console, jobs)
    except Stopped:
        stopped(console, command)
        raise SystemExit(130) from None
