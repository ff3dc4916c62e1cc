"""A worker: one model that trains one center after another, each step a replay of what was captured once.

Everything a step reads lies in slots that never move: a chunk of steps' inputs, their views, the round's
tables, the learning rate, the place in the chunk. A `Program` is the slots and the two functions of one shape
of work: `views` makes the views of a chunk of steps, `step` trains on the next of them. On CUDA both are
captured as graphs; elsewhere they are called, which is how they are tested without a GPU.
"""

from __future__ import annotations

import copy
import gc
import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedmt import static_bn
from fedmt.backbones.heads import find_heads
from fedmt.engines.flat import FlatModel
from fedmt.engines.site import Job
from fedmt.engines.trainer import Trained, Trainer

CHUNK_VALUES = 1 << 23
CHUNK_STEPS = 64
"""How many steps' views are made at once: about 8 million values, at most 64 steps."""

PROGRAMS = 16
"""How many shapes of work a worker remembers. They share the memory of their steps, but not their slots."""


class Uncapturable(Exception):
    """A work or a model that cannot be replayed; why."""


@dataclass(eq=False)
class UnderWay:
    """A job that a worker has begun. What its steps read is held until they are done."""

    job: Job
    program: Program
    steps: Mapping[str, Tensor]
    done: int = 0
    held: list[object] = field(default_factory=list)
    found: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    trainable: dict[str, Tensor] = field(default_factory=dict)
    mean_gradient: dict[str, Tensor] = field(default_factory=dict)
    losses: Tensor | None = None
    event: torch.cuda.Event | None = None

    @property
    def launched(self) -> bool:
        """Whether all its steps are on their way."""
        return self.losses is not None

    def result(self) -> Trained:
        """Waits for the steps."""
        assert self.losses is not None
        if self.event is not None:
            self.event.synchronize()
            here = torch.cuda.current_stream(self.losses.device)
            for tensor in self.found.values():
                tensor.record_stream(here)  # made on the worker's stream, used on this one
        losses = dict(zip(self.program.names, self.losses.tolist(), strict=True))
        return Trained(losses, self.trainable, self.mean_gradient, self.weights)


class Program:
    """Slots and functions of one shape of work. chunk: how many steps' views are made at once."""

    def __init__(self, worker: Worker, job: Job) -> None:
        self.worker, self.head = worker, job.head
        # The functions alone: a method's plans come and go, these are the same in every round.
        self.make_views, self.loss = job.work.views, job.work.loss
        self.terms = job.terms.proximal, corrects(job), job.terms.measure
        device = worker.device
        steps = job.work.steps
        values = steps["index"][0].numel() * worker.samples[0].numel()
        self.chunk = max(1, min(CHUNK_VALUES // values, CHUNK_STEPS))
        self.steps = {
            k: torch.zeros((self.chunk, *v.shape[1:]), dtype=v.dtype, device=device) for k, v in steps.items()
        }
        self.tables = {}
        for name, table in job.work.tables.items():
            rows = worker.capacity if name in job.work.samplewise else len(table) if table.dim() else None
            shape = table.shape if rows is None else (rows, *table.shape[1:])
            self.tables[name] = torch.zeros(shape, dtype=table.dtype, device=device)
        self.trainable = {
            k: torch.zeros(v.shape, dtype=v.dtype, device=device).requires_grad_()
            for k, v in job.work.trainable.items()
        }
        self.momentum = {k: torch.zeros_like(v) for k, v in self.trainable.items()}
        self.offset = torch.zeros((), dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.rate = torch.zeros((), device=device)
        self.batch: Tensor | None = None  # the chunk's views, [chunk, V, ...]
        self.sums: Tensor | None = None
        self.names: list[str] = []
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def views(self) -> None:
        """The views of the chunk's steps; the next step is its first."""
        index = self.steps["index"] + self.offset
        samples = self.worker.samples.index_select(0, index.flatten()).unflatten(0, index.shape)
        views = self.make_views(samples, self.steps)
        if self.batch is None:
            self.batch = torch.zeros_like(views)
        self.batch.copy_(views)
        self.position.zero_()

    def step(self) -> None:
        """Trains on the next step's views."""
        worker = self.worker
        assert self.batch is not None
        step = _Row(self.steps, self.position)
        batch = self.batch.index_select(0, self.position).squeeze(0)
        losses = self.loss(worker.forward(batch, self.head), step, {**self.tables, **self.trainable})
        inputs = [*worker.flat.parameters, *self.trainable.values()]
        gradients = torch.autograd.grad(losses["loss"], inputs, allow_unused=True)
        count = len(worker.flat.parameters)
        with torch.no_grad():
            worker.flat.take(gradients[:count])
            worker.flat.update(self.rate, worker.training, *self.terms)
            training = worker.training
            for (name, value), gradient in zip(self.trainable.items(), gradients[count:], strict=True):
                # No decay, which would pull them to 0, and no clipping together with the model.
                g = torch.zeros_like(value) if gradient is None else gradient
                v = self.momentum[name].mul_(training.momentum).add_(g)
                value.sub_(self.rate * (g + training.momentum * v if training.nesterov else v))
            if self.sums is None:
                self.names = list(losses)
                self.sums = torch.zeros(len(losses), device=self.rate.device)
            self.sums.add_(torch.stack([losses[name].detach().float() for name in self.names]))
            self.position.add_(1)

    def capture(self) -> None:
        """Captures both functions; the slots must hold a job, which is spoilt. Raises `Uncapturable`."""
        device = self.worker.device
        random = torch.cuda.get_rng_state(device)
        try:
            for trial in range(2):
                # The second time a wait for the device is an error: a captured step could not wait either.
                with warnings.catch_warnings(action="ignore"):  # torch calls this mode a prototype
                    torch.cuda.set_sync_debug_mode("error" if trial else "default")
                self.views()
                self.step()
        except Exception as error:
            raise Uncapturable(_first_line(error)) from error
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize(device)
        if not torch.equal(random, torch.cuda.get_rng_state(device)):
            raise Uncapturable("it draws random numbers of its own (dropout)")
        graphs = (torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())
        # An older engine's graphs, were they collected as garbage just now, would end the capture.
        collecting = gc.isenabled()
        gc.disable()
        try:
            for graph, function in zip(graphs, (self.views, self.step), strict=True):
                with torch.cuda.graph(
                    graph,
                    pool=self.worker.pool,
                    stream=self.worker.stream,
                    capture_error_mode="thread_local",
                ):
                    function()
        except Exception as error:
            torch.cuda.synchronize(device)
            raise Uncapturable(_first_line(error)) from error
        finally:
            if collecting:
                gc.enable()
        self._graphs = graphs

    def run_views(self) -> None:
        self.views() if self._graphs is None else self._graphs[0].replay()

    def run_step(self) -> None:
        self.step() if self._graphs is None else self._graphs[1].replay()


class _Row(Mapping[str, Tensor]):
    """One step's inputs: each is looked up when the loss asks for it, for most belong to the views."""

    def __init__(self, steps: Mapping[str, Tensor], position: Tensor) -> None:
        self._steps, self._position = steps, position

    def __getitem__(self, key: str) -> Tensor:
        return self._steps[key].index_select(0, self._position).squeeze(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


class Worker:
    """samples: all centers' [N, ...] as one tensor. capacity: of the largest center, in samples."""

    def __init__(self, trainer: Trainer, samples: Tensor, capacity: int) -> None:
        self.trainer, self.training, self.device = trainer, trainer.training, trainer.device
        self.samples, self.capacity = samples, capacity
        self.model = copy.deepcopy(trainer.model)
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
        # One for all programs: a worker replays one after the other, and nothing in it outlives a replay.
        self.pool = torch.cuda.graph_pool_handle() if self.stream is not None else None
        self._programs: dict[Hashable, Program] = {}
        self._now: UnderWay | None = None

    @property
    def idle(self) -> bool:
        return self._now is None

    def forward(self, views: Tensor, head: int) -> Tensor:
        if self._heads is not None:
            self._heads.active = head
        return self.trainer.forward(self.model, views)

    # -- one job ----------------------------------------------------------------------------------

    def begin(self, job: Job, base: Base, check: Callable[[], Sequence[Check]] | None = None) -> UnderWay:
        """Takes a job on. check: gives what a new capture is compared with."""
        key = signature(job)
        program = self._programs.pop(key, None)
        if program is None:
            while len(self._programs) >= PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            program = Program(self, job)
            if self.stream is not None:
                self._capture(program, job, base, check() if check is not None else ())
            else:
                self._try(program, job, base)
        self._programs[key] = program  # the last used is the last to be forgotten
        self._now = self._fill(program, job, base)
        return self._now

    def launch(self) -> None:
        """Sends the next chunk of steps on its way, and after the last of them what is to be handed back."""
        now = self._now
        if now is None:
            return
        with self._on_stream():
            self._chunk(now)
            if now.done == len(now.job.work):
                self._snapshot(now)
                self._now = None

    def drop(self) -> None:
        """Forgets a job that will not be finished."""
        self._now = None

    def _chunk(self, now: UnderWay) -> None:
        program = now.program
        count = min(program.chunk, len(now.job.work) - now.done)
        for key, slot in program.steps.items():
            slot[:count].copy_(now.steps[key][now.done : now.done + count])
        # Views are made of the whole chunk, and a larger center's samples may be left in its end.
        program.steps["index"][count:].zero_()
        program.run_views()
        for _ in range(count):
            program.run_step()
        now.done += count

    def _fill(self, program: Program, job: Job, base: Base) -> UnderWay:
        """The job's data into the slots, its weights into the model."""
        work = job.work
        steps = {k: _to_device(v, self.device) for k, v in work.steps.items()}
        tables = {k: v.to(self.device) for k, v in work.tables.items()}
        now = UnderWay(job, program, steps, held=[tables, base.flat])
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        flat = self.flat
        with self._on_stream(), torch.no_grad():
            flat.weights.copy_(base.flat)
            flat.put(flat.weights, {k: v for k, v in job.received.items() if v is not base.weights.get(k)})
            flat.refresh()
            flat.velocity.zero_()
            for kind in {v.dtype for v in self._buffers.values()}:
                names = [k for k, v in self._buffers.items() if v.dtype == kind]
                received = [job.received[k].to(self.device) for k in names]
                torch._foreach_copy_([self._buffers[k] for k in names], received)
            self._terms(job)
            program.offset.fill_(self._offset(job.center.values))
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
        """The strategy's terms. What a program was captured with must stay where it is."""
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
        """Copies of what came out, since the next job may begin at once."""
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

    def _offset(self, values: Tensor) -> int:
        """Where a center's samples begin among all."""
        if values.untyped_storage().data_ptr() != self.samples.untyped_storage().data_ptr():
            raise Uncapturable("the samples of a center are not on the device")
        return (values.storage_offset() - self.samples.storage_offset()) // max(values[0].numel(), 1)

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    # -- capturing --------------------------------------------------------------------------------

    def _try(self, program: Program, job: Job, base: Base) -> None:
        """A step where nothing is captured, on a CPU: it must not draw numbers that nobody seeds here."""
        random = torch.random.get_rng_state()
        self._chunk(self._fill(program, first_steps(job, 1), base))
        if not torch.equal(random, torch.random.get_rng_state()):
            raise Uncapturable("it draws random numbers of its own (dropout)")

    def _capture(self, program: Program, job: Job, base: Base, checks: Sequence[Check]) -> None:
        """Captures, then replays a job's first steps and compares them with the step-by-step engine's."""
        now = self._fill(program, job, base)
        with self._on_stream():
            for key, slot in program.steps.items():
                count = min(program.chunk, len(job.work))
                slot[:count].copy_(now.steps[key][:count])
            program.capture()
        for check in checks:
            now = self._fill(program, check.job, base)
            with self._on_stream():
                self._chunk(now)
                self._snapshot(now)
            check.compare(now.result(), self.flat.names)


@dataclass(frozen=True, eq=False)
class Base:
    """The weights that most centers of a round receive, and the same as one vector."""

    weights: Mapping[str, Tensor]
    flat: Tensor


@dataclass(frozen=True, eq=False)
class Check:
    """One step, and what it gave in the step-by-step engine: losses, and the weights after it.

    Both engines take it from the same weights. Over several steps they may part though both are right: at a
    learning rate of 0.1, relative changes of 1e-6 in the weights of a pretrained MobileNetV2 change the loss
    of its third step by a quarter.
    """

    job: Job
    losses: Mapping[str, float]
    weights: Mapping[str, Tensor]

    def compare(self, found: Trained, names: Sequence[str]) -> None:
        """Raises `Uncapturable` where a replay gave something else. names: of the trained weights."""
        for key, value in self.losses.items():
            # bfloat16 and another order of sums move a loss by a percent; a wrong step by much more.
            if not abs(found.losses[key] - value) <= 0.05 + 0.05 * abs(value) and value == value:
                raise Uncapturable(
                    f"replayed steps give {key} {found.losses[key]:.4g}, plain ones {value:.4g}"
                )
        before, plain, replayed = (
            torch.cat([weights[name].flatten() for name in names])
            for weights in (self.job.received, self.weights, found.weights)
        )
        expected, moved = plain - before, replayed - before
        length = expected.norm().item()
        if not 1e-5 * before.norm().item() < length < math.inf:
            return  # too small for float32 to tell, or the plain step diverged
        ratio = moved.norm().item() / length
        cosine = torch.dot(expected / length, moved / length).item() / max(ratio, 1e-9)
        # Two gradients in bfloat16 may lie far apart (cosines of 0.6 for MobileNetV2). A step that was left
        # out, taken twice or with other weights' gradients lies elsewhere.
        if not (cosine > 0.3 and 0.6 < ratio < 1.6):
            raise Uncapturable(
                f"replayed steps move the weights otherwise than plain ones: {ratio:.2g} times as far, at a "
                f"cosine of {cosine:.2g}"
            )


def first_steps(job: Job, count: int, first: int = 0) -> Job:
    """The job cut down to its first steps, or to some from the step `first` on."""
    steps = {k: v[first : first + count] for k, v in job.work.steps.items()}
    return replace(job, work=replace(job.work, steps=steps), keep={}, lasting={}, record={})


def corrects(job: Job) -> bool:
    """Whether gradients are corrected. Where they are measured, too: they will be from the next round on."""
    return bool(job.terms.correction) or job.terms.measure


def signature(job: Job) -> Hashable:
    """What two jobs must have in common to be replays of one capture."""
    work = job.work

    def shapes(tensors: Mapping[str, Tensor], skip: int = 0) -> Iterator[Hashable]:
        for key, value in tensors.items():
            yield key, value.shape[skip:], value.dtype

    samples = {k: v for k, v in work.tables.items() if k in work.samplewise}
    tables = {k: v for k, v in work.tables.items() if k not in work.samplewise}
    terms = (job.terms.proximal, corrects(job), job.terms.measure)
    parts = (shapes(work.steps, 1), shapes(samples, 1), shapes(tables), shapes(work.trainable))
    return (work.views, work.loss, job.head, terms, *map(tuple, parts))


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Sent from pinned memory, so that the host need not wait."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"
