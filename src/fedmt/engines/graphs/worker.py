"""A worker: one model that trains one center after another. Each step replays what was captured once.

It fills the slots of a `Program` with a center's data, launches the steps, and copies the results.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmt.backbones.dropout import reseed
from fedmt.backbones.heads import find_heads
from fedmt.core import static_bn
from fedmt.engines.eager.trainer import Trained, Trainer
from fedmt.engines.graphs.feed import Feed
from fedmt.engines.graphs.flat import FlatModel
from fedmt.engines.graphs.program import Program, Uncapturable, UnderWay, corrects, draws, signature
from fedmt.engines.site import Job

PROGRAMS = 16
"""Number of shapes of work that a worker remembers. They share the memory of their steps, but not their
slots."""


AT_A_TIME = 8
"""Number of steps that are launched before it is the next worker's turn. A launch takes the host some time,
so after a whole chunk of each worker's steps the last worker would begin late."""


class Worker:
    """samples: those of all centers [N, ...] as one tensor; None if each center's samples are in host memory.
    capacity: the number of samples of the largest center. device: by default, the trainer's. threads: gather
    samples in host memory."""

    def __init__(
        self,
        trainer: Trainer,
        samples: Tensor | None,
        capacity: int,
        device: torch.device | None = None,
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        self.trainer, self.training, self.device = trainer, trainer.training, device or trainer.device
        self.samples, self.capacity, self._threads = samples, capacity, threads
        self.model = copy.deepcopy(trainer.model).to(self.device)
        static_bn.set_static(self.model, self.training.batch_norm != "running")
        self.model.train()
        heads = find_heads(self.model)
        self._heads = heads[1] if heads is not None else None
        self.flat = FlatModel(self.model, trainer.half)
        everything = self.model.state_dict()
        self._names = list(everything)
        # Buffers, and parameters that are not trained.
        self._buffers = {k: v for k, v in everything.items() if k not in self.flat.places}
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        # One pool for all programs: a worker replays one after the other, and nothing in it outlives a
        # replay.
        self.pool = torch.cuda.graph_pool_handle() if self.stream is not None else None
        self._programs: dict[Hashable, Program] = {}
        self._now: UnderWay | None = None
        self.compiled = trainer.compiled if self._heads is None else None
        self._network = self.model if self.compiled is None else self.compiled.of(self.model)

    @property
    def idle(self) -> bool:
        return self._now is None

    def forward(self, views: Tensor, head: int) -> Tensor:
        if self._heads is not None:
            self._heads.active = head
        return self.trainer.forward(self._network, views)

    # -- one job ----------------------------------------------------------------------------------

    def begin(
        self,
        job: Job,
        base: Base,
        check: Callable[[], Sequence[Check]] | None = None,
        others: Sequence[Worker] = (),
    ) -> UnderWay:
        """Begins a job. check: returns the reference for a new capture. others: workers of the same device,
        which may already have a capture."""
        key = signature(job)
        program = self._programs.pop(key, None)
        if program is None or program.outgrown(job):
            # The old one is held until the new one is captured: with its last graph, the pool would be gone.
            old = program
            while len(self._programs) >= PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            program = Program(self, job)
            if self.stream is not None:
                known = (w._programs[key] for w in others if key in w._programs)
                like = next((p for p in known if p.chunk == program.chunk), None)
                if self.compiled is not None and not self.compiled.failed:
                    like = None  # torch's compiler is called before a capture, not for the first time in one
                checks = check() if check is not None else ()
                self._capture(program, job, base, checks[:1] if like is not None else checks, like)
            else:
                self._try(program, job, base)
            del old
        self._programs[key] = program  # the last used is the last to be forgotten
        self._now = self._fill(program, job, base)
        return self._now

    def launch(self) -> None:
        """Launches the next steps and, after the last of them, the copies of the results."""
        now = self._now
        if now is None:
            return
        with self._on_stream():
            self._chunk(now)
            if now.done == len(now.job.work):
                self._snapshot(now)
                self._now = None

    def drop(self) -> None:
        """Discards a job that will not be finished."""
        if self._now is not None and self._now.feed is not None:
            self._now.feed.stop()
        self._now = None

    def _chunk(self, now: UnderWay) -> None:
        """Launches the next steps of a chunk, and before the first one, the views of all."""
        program = now.program
        if now.seen == 0:
            count = now.seen = min(program.chunk, len(now.job.work) - now.done)
            for key, slot in program.steps.items():
                slot[:count].copy_(now.steps[key][now.done : now.done + count])
            # Views are made of the whole chunk, and its end may still hold the samples of a larger center.
            program.steps["index"][count:].zero_()
            self._send(now)
            program.run_views()
        count = min(now.seen, AT_A_TIME)
        for _ in range(count):
            program.run_step()
        now.seen -= count
        now.done += count

    def _send(self, now: UnderWay) -> None:
        """Copies the next chunk's samples to their slot, if they come from host memory."""
        if now.feed is not None:
            assert now.program.samples is not None
            now.feed.send(now.program.samples)

    def _fill(self, program: Program, job: Job, base: Base) -> UnderWay:
        """Copies the job's data into the slots and its weights into the model."""
        work = job.work
        steps = {k: _to_device(v, self.device) for k, v in work.steps.items()}
        tables = {k: v.to(self.device) for k, v in work.tables.items()}
        now = UnderWay(job, program, steps, held=[tables, base.flat])
        if self.samples is None:
            assert self._threads is not None
            index = work.steps["index"]
            now.feed = Feed(job.center.values, index, program.chunk, program.stages, self._threads)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        flat = self.flat
        with self._on_stream(), torch.no_grad():
            flat.weights.copy_(base.flat)
            flat.put(flat.weights, {k: v for k, v in job.received.items() if v is not base.weights.get(k)})
            flat.refresh()
            flat.velocity.zero_()
            reseed(self.model, job.seed)
            for kind in {v.dtype for v in self._buffers.values()}:
                names = [k for k, v in self._buffers.items() if v.dtype == kind]
                received = [job.received[k].to(self.device) for k in names]
                torch._foreach_copy_([self._buffers[k] for k in names], received)
            self._terms(job)
            if self.samples is not None:
                program.offset.fill_(self._offset(job.center.values, self.samples))
            program.rate.fill_(work.learning_rate)
            for key, table in tables.items():
                slot = program.tables[key]
                (slot[: len(table)] if table.dim() else slot).copy_(table)
            for key, value in work.trainable.items():
                program.trainable[key].copy_(value)
                program.momentum[key].zero_()
            if program.sums is not None:
                program.sums.zero_()
        return now

    def _terms(self, job: Job) -> None:
        """Sets the strategy's terms. The memory that a program was captured with must stay in place."""
        flat, terms = self.flat, job.terms
        if terms.proximal > 0:
            flat.anchor = torch.empty_like(flat.weights) if flat.anchor is None else flat.anchor
            flat.anchor.copy_(flat.weights)
        if corrects(job):
            flat.correction = torch.empty_like(flat.weights) if flat.correction is None else flat.correction
            flat.correction.zero_()
            flat.put(flat.correction, terms.correction)
        if terms.measure:
            flat.total = torch.empty_like(flat.weights) if flat.total is None else flat.total
            flat.total.zero_()

    def _snapshot(self, now: UnderWay) -> None:
        """Copies the results, because the next job may begin immediately."""
        program, flat = now.program, self.flat
        assert program.sums is not None
        weights = now.found["all weights"] = flat.weights.clone()
        parameters = flat.named(weights)
        floats = [k for k, v in self._buffers.items() if v.is_floating_point()]
        copies = torch._foreach_mul([self._buffers[k] for k in floats], 1.0) if floats else ()
        now.found |= dict(zip(floats, copies, strict=True))
        now.found |= {k: v.clone() for k, v in self._buffers.items() if k not in now.found}
        now.weights = {k: parameters[k] if k in parameters else now.found[k] for k in self._names}
        for key, value in program.trainable.items():
            now.trainable[key] = now.found[f"trained {key}"] = value.detach().clone()
        if now.job.terms.measure:
            assert flat.total is not None
            mean = now.found["mean gradient"] = flat.total / max(len(now.job.work), 1)
            now.mean_gradient = flat.named(mean)
        now.losses = now.found["mean losses"] = program.sums / len(now.job.work)
        if self.stream is not None:
            now.event = torch.cuda.Event(blocking=True)
            now.event.record(self.stream)

    def _offset(self, values: Tensor, samples: Tensor) -> int:
        """The position of a center's first sample among all samples."""
        if values.untyped_storage().data_ptr() != samples.untyped_storage().data_ptr():
            raise Uncapturable("the samples of a center are not on the device")
        return (values.storage_offset() - samples.storage_offset()) // max(values[0].numel(), 1)

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    # -- capturing --------------------------------------------------------------------------------

    def _try(self, program: Program, job: Job, base: Base) -> None:
        """A step without a capture, on a CPU. It must not draw random numbers that nobody seeds here."""
        random = torch.random.get_rng_state()
        self._chunk(self._fill(program, first_steps(job, 1), base))
        if not torch.equal(random, torch.random.get_rng_state()):
            raise draws(self.model)

    def _capture(
        self, program: Program, job: Job, base: Base, checks: Sequence[Check], like: Program | None = None
    ) -> None:
        """Captures the steps, then replays a job's first steps and compares them with the step-by-step
        engine.

        like: another worker's program for the same work.
        """
        self._prepare(program, job, base)
        with self._on_stream():
            try:
                program.capture(like)
            except Uncapturable as reason:
                if like is None:
                    if self.compiled is None or self.compiled.failed:
                        raise
                    self.compiled.give_up(reason)
                # If it worked elsewhere, each worker may have to create something on first use.
                self._prepare(program, job, base)
                program.capture()
        for check in checks:
            now = self._fill(program, check.job, base)
            with self._on_stream():
                self._chunk(now)
                self._snapshot(now)
            check.compare(now.result(), self.flat.names)

    def _prepare(self, program: Program, job: Job, base: Base) -> None:
        """Fills the slots with the job's first steps."""
        now = self._fill(program, job, base)
        with self._on_stream():
            count = min(program.chunk, len(job.work))
            for key, slot in program.steps.items():
                slot[:count].copy_(now.steps[key][:count])
            self._send(now)
        if now.feed is not None:
            now.feed.stop()
        if self.stream is not None:
            self.stream.synchronize()  # memory that is being copied must not be freed before


@dataclass(frozen=True, eq=False)
class Base:
    """The weights that most centers of a round receive, also as one vector."""

    weights: Mapping[str, Tensor]
    flat: Tensor


@dataclass(frozen=True, eq=False)
class Check:
    """One step and its results in the step-by-step engine: the losses, and the weights after it.

    Both engines take it from the same weights. Over several steps, they may diverge although both are right:
    at a learning rate of 0.1, relative changes of 1e-6 in the weights of a pretrained MobileNetV2 change the
    loss of its third step by a quarter.
    """

    job: Job
    losses: Mapping[str, float]
    weights: Mapping[str, Tensor]

    def compare(self, found: Trained, names: Sequence[str]) -> None:
        """Raises `Uncapturable` if a replay gave a different result. names: the names of the trained
        weights."""
        for key, value in self.losses.items():
            # bfloat16 and another order of sums change a loss by a percent, a wrong step by much more.
            if not abs(found.losses[key] - value) <= 0.05 + 0.05 * abs(value) and value == value:
                raise Uncapturable(
                    f"replayed steps give {key} {found.losses[key]:.4g}, but plain steps give {value:.4g}"
                )
        before, plain, replayed = (
            torch.cat([weights[name].flatten() for name in names])
            for weights in (self.job.received, self.weights, found.weights)
        )
        expected, moved = plain - before, replayed - before
        length = expected.norm().item()
        if not 1e-5 * before.norm().item() < length < math.inf:
            return  # too small for float32 to distinguish, or the plain step diverged
        ratio = moved.norm().item() / length
        cosine = torch.dot(expected / length, moved / length).item() / max(ratio, 1e-9)
        # On an H200, a bfloat16 gradient of MobileNetV2 has a cosine of 0.84 to 0.94 with the exact one, so
        # two kernels that round differently may disagree, although these two agreed to 1.00000. A step that
        # was left out, done twice or done with the gradients of other weights has a very different direction.
        if not (cosine > 0.3 and 0.6 < ratio < 1.6):
            raise Uncapturable(
                f"replayed steps move the weights differently from plain steps: {ratio:.2g} times as far, at "
                f"a cosine of {cosine:.2g}"
            )


def first_steps(job: Job, count: int, first: int = 0) -> Job:
    """The job reduced to its first steps, or to some from the step `first` on."""
    steps = {k: v[first : first + count] for k, v in job.work.steps.items()}
    return replace(job, work=replace(job.work, steps=steps), keep={}, lasting={}, record={})


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Sent from pinned memory, so that the host does not have to wait."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
