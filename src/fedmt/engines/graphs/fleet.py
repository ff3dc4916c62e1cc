"""Many centers at once: a fixed number of workers, each with a model and a stream of its own.

Centers are dealt to the workers in their order, and a worker takes the next as soon as its last steps are
launched, so that the device has more than one small step to work on. Memory holds as many models as there
are workers, however many centers there are. Nothing depends on which center is ready first: a center's random
numbers are its own, and results are handed back in the order of the jobs.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from fedmt.data.center import Center
from fedmt.engines.clock import logged
from fedmt.engines.eager.trainer import Trained, Trainer
from fedmt.engines.graphs.program import Uncapturable, UnderWay, signature
from fedmt.engines.graphs.worker import Base, Check, Worker, first_steps
from fedmt.engines.site import Job

WORKERS = 10
"""At most. More streams did not make an H200 faster (docs/development/performance-diary.md)."""

FILLED = 1 << 24
"""Values of the samples of all workers' steps at once, beyond which another worker has nothing left to fill:
such steps keep the device busy by themselves. Each worker costs a capture, and memory."""

CHECKED_STEPS = 2
"""Number of a job's first steps in which a capture is compared."""

PREDICT_AT_ONCE = 8192
"""Samples of several centers that are predicted together."""


class Fleet:
    """size: number of workers. run: trains a job step by step, where it cannot be captured."""

    def __init__(
        self, trainer: Trainer, values: Tensor, capacity: int, size: int, run: Callable[[Job], Trained]
    ) -> None:
        self._trainer, self._values, self._capacity, self._size = trainer, values, capacity, size
        self._run = run
        self._workers: list[Worker] = []
        self._checks: dict[object, Sequence[Check]] = {}
        self._base: Base | None = None
        self.eager = ""
        """Why steps are no longer captured; empty while they are."""

    def train(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Trained]]:
        """Each job with its result, in the order of the jobs."""
        coming = iter(jobs)
        under_way: deque[UnderWay] = deque()
        ended = False
        try:
            while True:
                slow: Job | None = None
                for worker in list(self._available()):
                    if worker.idle and not ended and slow is None:
                        job = next(coming, None)
                        ended = job is None
                        if job is not None:
                            begun = self._begin(worker, job)
                            if worker not in self._workers:  # there is no memory for it: another's turn
                                coming = chain([job], coming)
                                continue
                            if begun is None:
                                slow = job
                            else:
                                under_way.append(begun)
                    worker.launch()
                if self.eager and slow is None and not ended and all(w.idle for w in self._workers):
                    slow = next(coming, None)
                    ended = slow is None
                # Wait for a result only when this keeps no worker waiting.
                spare = 2 * len(self._workers)
                while under_way and (
                    len(under_way) > spare
                    or slow is not None
                    or (ended and all(w.idle for w in self._workers))
                ):
                    while not under_way[0].launched:
                        for worker in self._workers:
                            worker.launch()
                    first = under_way.popleft()
                    yield first.job, first.result()
                if slow is not None:
                    yield slow, self._run(slow)
                if self.eager and not under_way:
                    self._workers = []
                if ended and not under_way:
                    return
        finally:
            if under_way and self._trainer.device.type == "cuda":
                torch.cuda.synchronize(self._trainer.device)  # what running steps read must not be freed
            for worker in self._workers:
                worker.drop()
            self._checks = {}  # they hold a round's weights

    def predictions(self, centers: Sequence[Center]) -> Mapping[str, Tensor]:
        """The loaded model's probabilities on each center's samples; small centers go together."""
        found: dict[str, Tensor] = {}
        group: list[Center] = []
        for center in centers:
            group.append(center)
            if center is centers[-1] or sum(map(len, group)) >= PREDICT_AT_ONCE:
                values = torch.cat([c.values for c in group]) if len(group) > 1 else center.values
                parts = self._trainer.predict(values).split([len(c) for c in group])
                found |= {c.name: part for c, part in zip(group, parts, strict=True)}
                group = []
        return found

    def _available(self) -> list[Worker]:
        """The workers, made when they are first needed; none once steps cannot be captured."""
        if not self._workers and not self.eager:
            try:
                with logged(f"made {self._size} workers"):
                    for _ in range(self._size):
                        self._workers.append(Worker(self._trainer, self._values, self._capacity))
            except Exception as error:  # a user's model may refuse to be copied
                self._workers = []
                self._give_up(f"{type(error).__name__}: {error}")
        return self._workers

    def _begin(self, worker: Worker, job: Job) -> UnderWay | None:
        """None where the job must be trained step by step, as that of a private center."""
        if self.eager or job.noising is not None:
            return None
        try:
            return worker.begin(job, self._base_of(worker, job), lambda: self._check(job), self._workers)
        except Uncapturable as reason:
            self._give_up(str(reason))
        except torch.cuda.OutOfMemoryError:
            if len(self._workers) > 1:
                self._workers.remove(worker)
                torch.cuda.empty_cache()
                return None
            self._give_up("the device's memory does not suffice for a captured step; lower the batch size")
        return None

    def _check(self, job: Job) -> Sequence[Check]:
        """A job's first steps by the step-by-step engine, once for each kind of job."""
        key = signature(job)
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
        """The job's weights as a vector; the same for all centers of a round except for their own layers."""
        base = self._base
        if base is None or not _mostly(job.received, base.weights):
            base = self._base = Base(job.received, worker.flat.packed(job.received))
        return base

    def _give_up(self, reason: str) -> None:
        self.eager = reason
        warnings.warn(
            f"The fast engine cannot be used with this model or method ({reason}). Centers are trained one "
            "after the other, step by step: slower, the same results.",
            stacklevel=2,
        )


def _mostly(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    same = sum(value is other.get(key) for key, value in one.items())
    return 2 * same > len(one)


def assemble(
    reference: Center, centers: Sequence[Center], trainer: Trainer, run: Callable[[Job], Trained]
) -> Fleet | None:
    """A fleet for a reference center and the other centers that train here, with one worker per center up to
    `WORKERS`; without other centers, one worker serves the reference center.

    Their samples are placed together (`device.place`); None where they are not on the device.
    """
    values = whole(reference.values)
    if values.device.type != trainer.device.type:
        warnings.warn(
            "The samples do not fit into the GPU's memory: centers are trained one after the other, and each "
            "batch is sent there when it is needed.",
            stacklevel=2,
        )
        return None
    capacity = max(len(c) for c in (reference, *centers))
    count = max(1, len(centers))
    step = 2 * trainer.training.batch_size * math.prod(trainer.input.seen_shape)
    most = min(WORKERS, max(2, math.ceil(FILLED / step)))
    waves = math.ceil(count / most)
    return Fleet(trainer, values, capacity, math.ceil(count / waves), run)


def whole(part: Tensor) -> Tensor:
    """The tensor of all samples that a center's are a part of (`device.place`)."""
    size = part.untyped_storage().nbytes() // max(part[0].numel() * part.element_size(), 1)
    return part.as_strided((size, *part.shape[1:]), part.stride(), 0)
