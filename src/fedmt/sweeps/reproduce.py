"""Runs an experiment: its runs in worker processes side by side, its table rewritten as they finish.

A run is a run folder like any other, named after its resolved config: finished ones are kept, a killed
one goes on, and two experiments that share a run share its folder.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import shlex
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import TaskID, TimeRemainingColumn
from rich.table import Table

from fedmt.config import Config
from fedmt.engines.device import pick_device
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Record
from fedmt.errors import FedmtError, listed, nearest
from fedmt.progress import Live
from fedmt.run import Stopped, run
from fedmt.sweeps.experiment import (
    SCALES,
    Experiment,
    Run,
    Sweep,
    cost,
    expand,
    find_experiment,
    known_experiments,
    read_experiment,
)
from fedmt.sweeps.results import Finished, Heading, Results, number, read_finished

GIB_PER_RUN = 6
CORES_PER_RUN = 2
"""On CUDA: the GPU memory and the cores that a run is taken to need (a ResNet18 at batch 50 and its data)."""

WHERE_TO_GET = {
    "cifar-100-python": "unpack cifar-100-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html there",
    "fitzpatrick17k": "see https://github.com/mattgroh/fitzpatrick17k and the head of "
    "experiments/base/fitzpatrick17k.toml",
}


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with `error` if it failed, `stopped` if it was asked to."""

    error: str = ""
    stopped: bool = False


def reproduce(
    experiment: Experiment,
    sweep: Sweep,
    out: Path,
    command: list[str],
    console: Console,
    jobs: int | None = None,
) -> bool:
    """Runs what is not finished yet and writes the table; whether no run failed. May raise `Stopped`."""
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
    )  # stable: every cell gets a first figure before any gets its second
    # Before anything runs: an --out that cannot be written to shall not cost a run.
    results.write(stem)
    if left:
        jobs = min(jobs or default_jobs(left), len(left))
        console.print(
            f"{experiment.file.title}: {len(asked)} runs, {len(asked) - len(left)} of them finished before; "
            f"{jobs} at a time in {folder}",
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
                    f"{m} {number(m, v)}" for m in experiment.file.show if (v := found.value(m)) is not None
                )
            results.write(stem)
            return text

        with Display(console, left).watching() as display:
            _run_all(left, folder, jobs, display, ended)
    results.write(stem)
    pictures = results.draw_curves(stem)
    _print_results(results, console)
    written = [stem.with_name(stem.name + ".md"), stem.with_name(stem.name + ".json"), *pictures]
    console.print("Written: " + ", ".join(map(str, written)), soft_wrap=True)
    for one in asked.values():
        if one.key in failed:
            console.print(f"Failed: {one.label} ({folder / one.key}): {failed[one.key]}", soft_wrap=True)
    return not failed


def default_jobs(runs: list[Run]) -> int:
    """Runs side by side: on a CPU one a core; on CUDA as many as free memory and cores allow, by a rough
    rule. --jobs overrides it."""
    device = pick_device(runs[0].config.device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device.type != "cuda":
        return cores
    free = torch.cuda.mem_get_info(device)[0] / 2**30
    return max(1, min(int(free // GIB_PER_RUN), cores // CORES_PER_RUN))


def _check_data(configs: list[Config]) -> None:
    """Every file or folder that the runs will read is there."""
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
        raise FedmtError("\n".join([*hints, "Or name the folder that holds the data by --data DIR."]))


# -- processes -----------------------------------------------------------------------------------------


def _run_all(
    runs: list[Run], folder: Path, jobs: int, display: Display, ended: Callable[[Run, Outcome], str]
) -> None:
    """All runs, `jobs` at a time. A worker that dies takes the pool with it: those it interrupted are
    tried once more, fewer at a time, then counted as failed."""
    left = {r.key: r for r in runs}
    deaths: Counter[str] = Counter()
    while left:
        interrupted = _run_pool(left, folder, jobs, display, ended)
        for key in interrupted:
            deaths[key] += 1
            if deaths[key] > 1:
                died = Outcome("its process died twice, perhaps for lack of memory; try fewer --jobs")
                gone = left.pop(key)
                display.done(gone, ended(gone, died))
        jobs = max(1, jobs // 2)


def _run_pool(
    left: dict[str, Run], folder: Path, jobs: int, display: Display, ended: Callable[[Run, Outcome], str]
) -> set[str]:
    """Runs from `left`, which it empties, until all are done or a worker dies; those then under way."""
    context = multiprocessing.get_context("spawn")  # fork would copy threads and CUDA's state in mid-air
    messages, stop = context.Queue(), context.Event()
    under_way: set[str] = set()
    arguments = (os.getpid(), stop, messages)
    pool = ProcessPoolExecutor(min(jobs, len(left)), context, _start_worker, arguments)

    def listen() -> None:
        while True:
            try:
                kind, key, *rest = messages.get_nowait()
            except queue.Empty:
                return
            if key in left:
                under_way.add(key)
                display.heard(left[key], kind, *rest)

    try:
        # Workers start here and inherit this: Ctrl-C reaches them too, but the parent says what to do.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        waiting: dict[Future[Outcome], Run] = {
            pool.submit(_work, r.config, str(folder / r.key), r.key): r for r in left.values()
        }
        signal.signal(signal.SIGINT, handler)
        while waiting:
            done, _ = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            listen()
            for future in done:
                one = waiting.pop(future)
                if future.cancelled():
                    continue
                outcome = future.result()
                if not outcome.stopped:
                    del left[one.key]
                    display.done(one, ended(one, outcome))
                under_way.discard(one.key)
            if display.stop_asked and not stop.is_set():
                stop.set()
                for future in waiting:
                    future.cancel()
        if display.stop_asked:
            raise Stopped
        return set()
    except BrokenProcessPool:
        listen()
        if not under_way:  # not even one run began: trying again would end the same way
            raise FedmtError("The worker processes ended before they began a run; try --jobs 1.") from None
        return under_way
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """What a worker process knows of its parent."""

    parent = 0
    stop: Any = None
    messages: Any = None
    busy = False

    @classmethod
    def orphan(cls) -> bool:
        return os.getppid() != cls.parent


def _start_worker(parent: int, stop: Any, messages: Any) -> None:
    """In each worker once: one thread, so that figures do not depend on the number of workers."""
    torch.set_num_threads(1)
    _Worker.parent, _Worker.stop, _Worker.messages = parent, stop, messages
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """Ends an idle worker whose parent was killed: its queue would keep it waiting for ever."""
    while not (_Worker.orphan() and not _Worker.busy):
        time.sleep(0.5)
    os._exit(1)


def _work(config: Config, folder: str, key: str) -> Outcome:
    """One run, in a worker."""
    if _Worker.stop.is_set():  # the pool had handed it out already
        return Outcome(stopped=True)
    _Worker.busy = True
    try:
        run(config, folder, resume=True, observer=_Watch(key))
        return Outcome()
    except Stopped:
        if _Worker.orphan():
            os._exit(1)
        return Outcome(stopped=True)
    except FedmtError as error:
        return Outcome(" ".join(str(error).split()))
    except Exception as error:  # a bug, or a library's: it must not end the others
        trace = Path(folder + ".error.txt")
        trace.write_text(traceback.format_exc(), encoding="utf-8")
        said = " ".join(str(error).split())[:300]  # in a line of a table
        return Outcome(f"{type(error).__name__}: {said} (details in {trace})")
    finally:
        _Worker.busy = False


class _Watch:
    """An `Observer` that reports to the parent and stops when asked to, or when the parent is gone."""

    def __init__(self, key: str) -> None:
        self.key = key

    def _may_go_on(self) -> None:
        if _Worker.orphan() or _Worker.stop.is_set():
            raise Stopped

    def started(self, engine: LocalEngine, done: int, notes: tuple[str, ...]) -> None:
        _Worker.messages.put(("started", self.key, done, engine.method.training.rounds, notes))

    def center(self, round: int, name: str) -> None:
        self._may_go_on()
        _Worker.messages.put(("center", self.key, round, name))

    def round(self, record: Record) -> None:
        _Worker.messages.put(("round", self.key, record["round"]))
        self._may_go_on()


# -- what is shown -------------------------------------------------------------------------------------


class Display(Live):
    """Runs done, what runs now and in which round, time left; plain lines where there is no terminal."""

    def __init__(self, console: Console, runs: list[Run]) -> None:
        super().__init__(console, TimeRemainingColumn(elapsed_when_finished=False))
        self._total, self._ended = len(runs), 0
        # The bar moves by images trained, since runs differ: where they are not known, by runs.
        costs = {r.key: cost(r.config) for r in runs}
        self._costs = (
            {k: float(c or 1) for k, c in costs.items()} if all(costs.values()) else dict.fromkeys(costs, 1.0)
        )
        self._rounds: dict[str, int] = {}
        self._notes: set[str] = set()
        self._all = self._progress.add_task(f"runs 0/{self._total}", total=sum(self._costs.values()), note="")
        self._tasks: dict[str, TaskID] = {}
        self._done = dict.fromkeys(self._costs, 0.0)

    def _stop_at_once(self) -> None:
        """Files are replaced whole, and workers leave by themselves."""
        self._progress.stop()
        os._exit(130)

    def heard(self, one: Run, kind: str, *rest: Any) -> None:
        """A message from a worker."""
        key = one.key
        if kind == "started":
            done, self._rounds[key], notes = rest
            if key in self._tasks:  # its process died, and it is tried once more
                self._progress.remove_task(self._tasks.pop(key))
            self._tasks[key] = self._progress.add_task(one.label, total=self._rounds[key], note="")
            self._move(key, done)
            if not self.console.is_terminal:
                going_on = f", going on after round {done}" if done else ""
                self.console.print(f"{one.label}: started{going_on}", soft_wrap=True)
            for note in notes:
                if note not in self._notes:  # a sentence for every seed would hide the others
                    self._notes.add(note)
                    self.console.print(f"Note: {one.label}: {note}", soft_wrap=True)
        elif kind == "round":
            self._move(key, rest[0])
        else:
            round, name = rest
            stage = f"round {round}/{self._rounds[key]}" if round else "warm-up"
            self._progress.update(self._tasks[key], note=f"{stage}, {name}")

    def _move(self, key: str, round: int) -> None:
        self._progress.update(self._tasks[key], completed=round)
        self._done[key] = self._costs[key] * round / self._rounds[key]
        self._progress.update(self._all, completed=sum(self._done.values()))

    def done(self, one: Run, text: str) -> None:
        self._ended += 1
        if one.key in self._tasks:
            self._progress.remove_task(self._tasks.pop(one.key))
        self._done[one.key] = self._costs[one.key]
        self._progress.update(
            self._all, description=f"runs {self._ended}/{self._total}", completed=sum(self._done.values())
        )
        self.console.print(f"[{self._ended}/{self._total}] {one.label}: {text}", soft_wrap=True)


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
    """A line for each shipped experiment; nothing is loaded."""
    table = Table(
        title=f"fedmt reproduce NAME; runs for {sweep.seeds} seeds, images trained at scale {sweep.scale}"
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
        images = _short(sum(known)) if len(known) == len(costs) else "not known without the data"
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
    """`fedmt reproduce`; whether no run failed. Ctrl-C ends it with the command to go on, status 130."""
    if scale not in SCALES:
        raise FedmtError(f"--scale {scale}: no such scale.{nearest(scale, SCALES)} Known: {listed(SCALES)}.")
    sweep = Sweep(seeds, scale, tuple(only or ()), tuple(overrides or ()), tuple(weights or ()), data)
    if listing:
        list_experiments(sweep, out, console)
        return True
    if name is None:
        raise FedmtError("Which experiment? `fedmt reproduce --list` lists them.")
    command = ["fedmt", "reproduce", name]
    for option, values in (("--only", sweep.only), ("--weights", sweep.weights), ("--set", sweep.overrides)):
        command += [part for value in values for part in (option, str(value))]
    command += ["--seeds", str(seeds), "--scale", scale, "--out", str(out)]
    command += ["--data", str(data)] if data is not None else []
    command += ["--jobs", str(jobs)] if jobs is not None else []
    try:
        return reproduce(read_experiment(find_experiment(name)), sweep, out, command, console, jobs)
    except Stopped:
        console.print(
            f"Stopped; every finished round is saved. Go on with:\n  {shlex.join(command)}", soft_wrap=True
        )
        raise SystemExit(130) from None
