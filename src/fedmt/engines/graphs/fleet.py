"""Trains many centers at once with a fixed number of workers, each with its own model and stream.

Centers are assigned to the workers in order, and a worker takes the next center as soon as its last steps are
launched, so that the device always has more than one small step to work on. Memory holds one model per
worker, for any number of centers. Nothing depends on which center is ready first: each center has its own
random numbers, and results are returned in the order of the jobs.

With several devices, each has its own workers, and a center trains where its samples are (`device.deal`).
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from fedmt.data.center import Center
from fedmt.engines.clock import logged
from fedmt.engines.device import Placed
from fedmt.engines.eager.sending import ahead
from fedmt.engines.eager.trainer import Trained, Trainer
from fedmt.engines.graphs.feed import AHEAD
from fedmt.engines.graphs.program import Uncapturable, UnderWay, signature
from fedmt.engines.graphs.station import Station
from fedmt.engines.graphs.worker import Base, Check, Worker, first_steps
from fedmt.engines.site import Job

WORKERS = 10
"""Maximum number of workers per device. More streams did not make an H200 faster (see
docs/development/performance-diary.md)."""

FILLED = 1 << 24
"""Number of sample values in all workers' steps together. Beyond it, another worker would not help, because
such steps keep the device busy by themselves. Each worker costs a capture and memory."""

CHECKED_STEPS = 2
"""Number of a job's first steps in which a capture is compared with the reference."""

PREDICT_AT_ONCE = 8192
"""Number of samples of several centers that are predicted together."""


class Fleet:
    """stations: the run's devices, its own first. dealt: for each center, the index of its station; 0 for
        others.
    size: the number of workers on each. run: trains a job step by step if it cannot be captured.
    """

    def __init__(
        self,
        trainer: Trainer,
        stations: Sequence[Station],
        dealt: Mapping[str, int],
        capacity: int,
        size: int,
        run: Callable[[Job], Trained],
    ) -> None:
        self._trainer, self._stations, self._dealt = trainer, stations, dealt
        self._capacity, self._size, self._run = capacity, size, run
        self._workers: list[Worker] = []
        self._at: dict[Worker, Station] = {}
        self._checks: dict[object, Sequence[Check]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self.eager = ""
        """Why steps are no longer captured; empty while they are."""

    def train(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Trained]]:
        """Yields each job with its result, in the order of the jobs."""
        coming = iter(jobs)
        under_way: deque[tuple[Job, Station, UnderWay]] = deque()
        ended = False
        waiting: Job | None = None  # the next job, if no worker of its device is free yet
        try:
            while True:
                slow: Job | None = None
                for worker in list(self._available()):
                    if worker.idle and not ended and slow is None:
                        job = waiting or next(coming, None)
                        ended, waiting = job is None, job
                        station = self._at[worker]
                        if job is not None and self._station(job) is station:
                            begun = self._begin(worker, job)
                            if (
                                worker not in self._workers
                            ):  # there is not enough memory for it, so it is another's turn
                                continue
                            waiting = None
                            if begun is None:
                                slow = job
                            else:
                                under_way.append((job, station, begun))
                    worker.launch()
                if self.eager and slow is None and not ended and all(w.idle for w in self._workers):
                    slow, waiting = waiting or next(coming, None), None
                    ended = slow is None
                # Wait for a result only if this keeps no worker waiting.
                spare = 2 * len(self._workers)
                while under_way and (
                    len(under_way) > spare
                    or slow is not None
                    or (ended and all(w.idle for w in self._workers))
                ):
                    job, station, first = under_way[0]
                    while not first.launched:
                        for worker in self._workers:
                            worker.launch()
                    under_way.popleft()
                    yield job, station.back(first.result(), self._trainer.device)
                if slow is not None:
                    yield slow, self._run(slow)
                if self.eager and not under_way:
                    self._workers, self._at = [], {}
                if ended and not under_way:
                    return
        finally:
            for station in self._stations:
                if under_way and station.device.type == "cuda":
                    torch.cuda.synchronize(station.device)  # memory that running steps read must not be freed
            for worker in self._workers:
                worker.drop()
            for station in self._stations:
                station.forget()
            self._checks = {}  # they hold a round's weights

    def predictions(self, centers: Sequence[Center]) -> Mapping[str, Tensor]:
        """The loaded model's probabilities on each center's samples. Small centers are combined."""
        groups: list[list[Center]] = []
        for center in centers:
            if not groups or sum(map(len, groups[-1])) >= PREDICT_AT_ONCE:
                groups.append([])
            groups[-1].append(center)
        found: dict[str, Tensor] = {}
        in_host_memory = self._stations[0].samples is None
        joined = ahead(_joined, groups) if in_host_memory else map(_joined, groups)
        for group, values in zip(groups, joined, strict=True):
            parts = self._trainer.predict(values).split([len(c) for c in group])
            found |= {c.name: part for c, part in zip(group, parts, strict=True)}
        return found

    def _available(self) -> list[Worker]:
        """The workers, made when they are first needed. None if steps cannot be captured."""
        if not self._workers and not self.eager:
            every = [station for _ in range(self._size) for station in self._stations]
            if any(station.samples is None for station in self._stations):
                # A thread may wait for the device, so each gathering place has its own thread.
                self._threads = self._threads or ThreadPoolExecutor(AHEAD * len(every), "gather")
            try:
                with logged(f"made {len(every)} workers"):
                    for station in every:
                        worker = Worker(
                            self._trainer, station.samples, self._capacity, station.device, self._threads
                        )
                        self._workers.append(worker)
                        self._at[worker] = station
            except Exception as error:  # a user's model may not support copying
                self._workers, self._at = [], {}
                self._give_up(f"{type(error).__name__}: {error}")
        return self._workers

    def _station(self, job: Job) -> Station:
        return self._stations[self._dealt.get(job.center.name, 0)]

    def _begin(self, worker: Worker, job: Job) -> UnderWay | None:
        """None if the job must be trained step by step, as for a private center."""
        if self.eager or job.noising is not None:
            return None
        station = self._at[worker]
        try:
            here = station.here(job)
            base = self._base_of(worker, here)
            beside = [w for w in self._workers if self._at[w] is station]
            return worker.begin(here, base, lambda: [station.check(c) for c in self._check(job)], beside)
        except Uncapturable as reason:
            self._give_up(str(reason))
        except torch.cuda.OutOfMemoryError:
            if sum(at is station for at in self._at.values()) > 1:
                self._workers.remove(worker)
                del self._at[worker]
                torch.cuda.empty_cache()
                return None
            self._give_up("the device does not have enough memory for a captured step; lower the batch size")
        return None

    def _check(self, job: Job) -> Sequence[Check]:
        """A job's first steps with the step-by-step engine, once for each kind of job and device. A worker
        finds only the samples of its own device."""
        key = signature(job), self._dealt.get(job.center.name, 0)
        if key not in self._checks:
            checks, received = [], job.received
            with logged("took the first steps of new work step by step, to compare with"):
                for position in range(min(CHECKED_STEPS, len(job.work))):
                    step = replace(first_steps(job, 1, position), received=received)
                    done = self._run(step)
                    received = {k: v.clone() for k, v in done.weights.items()}
                    checks.append(Check(step, done.losses, received))
            self._checks[key] = checks
        return self._checks[key]

    def _base_of(self, worker: Worker, job: Job) -> Base:
        return self._at[worker].base(worker.flat, job)

    def _give_up(self, reason: str) -> None:
        self.eager = reason
        warnings.warn(
            f"The fast engine cannot be used with this model or method ({reason}). Centers are trained one "
            "after the other, step by step. This is slower and gives the same results.",
            stacklevel=2,
        )


def assemble(
    placed: Placed, centers: Sequence[Center], trainer: Trainer, run: Callable[[Job], Trained]
) -> Fleet:
    """A fleet for a reference center and the other centers that train here, with one worker per center, at
    most `WORKERS` on each device. Without other centers, one worker serves the reference center."""
    devices = placed.devices if centers else placed.devices[:1]
    mine = [[c for c in centers if placed.dealt[c.name] == number] for number in range(len(devices))]
    stations = []
    for number, device in enumerate(devices):
        some = (mine[number] or [placed.federation.reference])[0]
        stations.append(Station(device, None if placed.prefetch else whole(some.values), home=number == 0))
    capacity = max(len(c) for c in (placed.federation.reference, *centers))
    count = max(1, *map(len, mine))
    step = 2 * trainer.training.batch_size * math.prod(trainer.input.seen_shape)
    most = min(WORKERS, max(2, math.ceil(FILLED / step)))
    waves = math.ceil(count / most)
    dealt = placed.dealt if centers else {}
    return Fleet(trainer, stations, dealt, capacity, math.ceil(count / waves), run)


def _joined(group: Sequence[Center]) -> Tensor:
    """The samples of several centers as one tensor, on the device of the first."""
    first = group[0].values
    return first if len(group) == 1 else torch.cat([c.values.to(first.device) for c in group])


def whole(part: Tensor) -> Tensor:
    """The tensor that contains all samples, including a center's (`device.place`)."""
    size = part.untyped_storage().nbytes() // max(part[0].numel() * part.element_size(), 1)
    return part.as_strided((size, *part.shape[1:]), part.stride(), 0)
