"""Runs side by side in worker processes. These may die, fail or be told to stop, and none outlives its
parent."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedmt.commands.sweeps.display import Display
from fedmt.commands.sweeps.expansion import Run
from fedmt.config import Config
from fedmt.core.errors import FedmtError
from fedmt.engines.local import LocalEngine
from fedmt.engines.site import Record
from fedmt.training.run import Stopped, run


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with `error` if it failed, or `stopped` if it was asked to stop."""

    error: str = ""
    stopped: bool = False


def run_all(
    runs: list[Run], folder: Path, jobs: int, display: Display, ended: Callable[[Run, Outcome], str]
) -> None:
    """All runs, `jobs` at a time. A worker that dies takes the pool with it. The runs it interrupted are
    tried once more, fewer at a time, and then counted as failed."""
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
    """Runs jobs from `left`, emptying it, until all are done or a worker dies. Returns the runs then in
    progress."""
    # Workers are copies of a process that has imported this module and done nothing else. Copies of this
    # process would have its threads and CUDA's state, at an arbitrary moment.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    messages, stop = context.Queue(), context.Event()
    under_way: set[str] = set()
    pool = ProcessPoolExecutor(min(jobs, len(left)), context, _start_worker, (stop, messages))

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
        # Workers start here and inherit this. Ctrl-C reaches them too, but the parent decides what to do.
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
        if not under_way:  # not even one run began, so trying again would end the same way
            raise FedmtError("The worker processes ended before they began a run; try --jobs 1.") from None
        return under_way
    finally:
        stop.set()  # however this ended, no run continues for minutes that nobody waits for
        pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """What a worker process knows about its parent."""

    stop: Any = None
    messages: Any = None
    busy = False
    key = ""
    """The run in progress."""

    @staticmethod
    def orphan() -> bool:
        parent = multiprocessing.parent_process()
        return parent is None or not parent.is_alive()


def _start_worker(stop: Any, messages: Any) -> None:
    """Runs once in each worker. One thread only, so that figures do not depend on the number of workers."""
    torch.set_num_threads(1)
    _Worker.stop, _Worker.messages = stop, messages
    # The parent shows warnings as notes, as in a single run. Printed here, they would break its display.
    warnings.showwarning = lambda text, *_, **__: messages.put(("noted", _Worker.key, str(text)))
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """Ends an idle worker whose parent was killed. Its queue would otherwise keep it waiting forever."""
    while not (_Worker.orphan() and not _Worker.busy):
        time.sleep(0.5)
    os._exit(1)


def _work(config: Config, folder: str, key: str) -> Outcome:
    """One run, in a worker."""
    if _Worker.stop.is_set():  # the pool had already handed it out
        return Outcome(stopped=True)
    _Worker.busy, _Worker.key = True, key
    try:
        run(config, folder, resume=True, observer=_Watch(key))
        return Outcome()
    except Stopped:
        if _Worker.orphan():
            os._exit(1)
        return Outcome(stopped=True)
    except FedmtError as error:
        return Outcome(" ".join(str(error).split()))
    except Exception as error:  # a bug here or in a library must not end the other runs
        trace = Path(folder + ".error.txt")
        trace.write_text(traceback.format_exc(), encoding="utf-8")
        said = " ".join(str(error).split())[:300]  # fits in one line of a table
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
