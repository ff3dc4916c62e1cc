"""One shape of work, ready to be replayed for the steps of any center that has this shape.

Everything that a step reads is in slots that never move: a chunk of steps' inputs, their views, the round's
tables, the learning rate, the place in the chunk. A `Program` is the slots and two functions: `views` makes
the views of a chunk of steps, `step` trains on the next of them. On CUDA both are captured as graphs;
elsewhere they are called, which is how they are tested without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedmt.backbones.dropout import drawing_layers
from fedmt.core.errors import cut
from fedmt.engines.clock import logged
from fedmt.engines.eager.sgd import sgd_step
from fedmt.engines.eager.trainer import Trained
from fedmt.engines.graphs.capturing import captured, never_waiting
from fedmt.engines.graphs.feed import AHEAD, Feed, Stage
from fedmt.engines.site import Job

if TYPE_CHECKING:
    from fedmt.engines.graphs.worker import Worker

CHUNK_VALUES = 1 << 23
CHUNK_STEPS = 64
"""Number of steps whose views are made at once: about 8 million values, at most 64 steps."""


class Uncapturable(Exception):
    """Work or a model that cannot be replayed. The message says why."""


@dataclass(eq=False)
class UnderWay:
    """A job that a worker has begun. The data that its steps read is kept until they are done.

    done: the number of launched steps. seen: the number of further steps whose views are made.
    """

    job: Job
    program: Program
    steps: Mapping[str, Tensor]
    done: int = 0
    seen: int = 0
    held: list[object] = field(default_factory=list)
    found: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    trainable: dict[str, Tensor] = field(default_factory=dict)
    mean_gradient: dict[str, Tensor] = field(default_factory=dict)
    losses: Tensor | None = None
    event: torch.cuda.Event | None = None
    feed: Feed | None = None

    @property
    def launched(self) -> bool:
        """Whether all its steps are launched."""
        return self.losses is not None

    def result(self) -> Trained:
        """Waits for the steps."""
        assert self.losses is not None
        if self.event is not None:
            self.event.synchronize()
            here = torch.cuda.current_stream(self.losses.device)
            for tensor in self.found.values():
                tensor.record_stream(here)  # made on the worker's stream, but used on this one
        losses = dict(zip(self.program.names, self.losses.tolist(), strict=True))
        return Trained(losses, self.trainable, self.mean_gradient, self.weights)


class Program:
    """Slots and functions of one shape of work. chunk: number of steps whose views are made at once."""

    def __init__(self, worker: Worker, job: Job) -> None:
        self.worker, self.head = worker, job.head
        # Only the functions are kept: a method's plans come and go, but these are the same in every round.
        self.make_views, self.loss = job.work.views, job.work.loss
        self.terms = job.terms.proximal, corrects(job), job.terms.measure
        device = worker.device
        steps = job.work.steps
        values = steps["index"][0].numel() * math.prod(worker.trainer.input.seen_shape)
        self._most = max(1, min(CHUNK_VALUES // values, CHUNK_STEPS))
        # Views are made of the whole chunk, so it is no longer than the work of a small center.
        self.chunk = min(self._most, 1 << (len(job.work) - 1).bit_length())
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
        self.samples: Tensor | None = None  # the samples of the chunk, if they come from host memory
        self.stages: list[Stage] = []
        if worker.samples is None:
            input = worker.trainer.input
            shape = (self.chunk, *steps["index"].shape[1:], *input.shape)
            self.samples = torch.zeros(shape, dtype=input.dtype, device=device)
            self.stages = [Stage(shape, input.dtype, device) for _ in range(AHEAD)]
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.rate = torch.zeros((), device=device)
        self.batch: Tensor | None = None  # the chunk's views, [chunk, V, ...]
        self.sums: Tensor | None = None
        self.names: list[str] = []
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def outgrown(self, job: Job) -> bool:
        """Whether the job has so many more steps that longer chunks justify another capture."""
        return self.chunk < self._most and len(job.work) >= 4 * self.chunk

    def views(self) -> None:
        """Makes the views of the chunk's steps. The next step is its first."""
        samples = self.samples
        if samples is None:
            assert self.worker.samples is not None
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
        row = _Row(self.steps, self.position)
        batch = self.batch.index_select(0, self.position).squeeze(0)
        losses = self.loss(worker.forward(batch, self.head), row, {**self.tables, **self.trainable})
        inputs = [*worker.flat.parameters, *self.trainable.values()]
        gradients = torch.autograd.grad(losses["loss"], inputs, allow_unused=True)
        count = len(worker.flat.parameters)
        with torch.no_grad():
            worker.flat.take(gradients[:count])
            worker.flat.update(self.rate, worker.training, *self.terms)
            for (name, value), gradient in zip(self.trainable.items(), gradients[count:], strict=True):
                g = torch.zeros_like(value) if gradient is None else gradient
                speed = self.momentum[name]
                # No weight decay, which would pull them toward 0, and no clipping together with the model.
                step = sgd_step(
                    value, speed, g, self.rate, worker.training.momentum, worker.training.nesterov
                )
                value.copy_(step.weights)
                speed.copy_(step.velocity)
            if self.sums is None:
                self.names = list(losses)
                self.sums = torch.zeros(len(losses), device=self.rate.device)
            self.sums.add_(torch.stack([losses[name].detach().float() for name in self.names]))
            self.position.add_(1)

    def capture(self, like: Program | None = None) -> None:
        """Captures both functions. The slots must hold a job, which is overwritten. Raises `Uncapturable`.

        like: another worker's program for the same work. Anything tried there need not be tried again.
        """
        worker = self.worker
        assert worker.stream is not None and worker.pool is not None
        if like is None:
            with logged("tried a new shape of work, with the first use of its kernels"):
                self._try()
        else:
            assert like.batch is not None and like.sums is not None
            self.batch, self.sums = torch.zeros_like(like.batch), torch.zeros_like(like.sums)
            self.names = like.names
        try:
            with logged("captured it for a worker"):
                # One after the other, in this order, because the step reads what the views were written to.
                first, second = (captured(f, worker.stream, worker.pool) for f in (self.views, self.step))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            torch.cuda.synchronize(worker.device)
            raise Uncapturable(_first_line(error)) from error
        self._graphs = first, second

    def _try(self) -> None:
        """Performs two steps in the way in which they will be captured."""
        device = self.worker.device
        random = torch.cuda.get_rng_state(device)
        try:
            self.views()
            self.step()
            with never_waiting():
                self.views()
                self.step()
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise Uncapturable(_first_line(error)) from error
        torch.cuda.synchronize(device)
        if not torch.equal(random, torch.cuda.get_rng_state(device)):
            raise draws(self.worker.model)
        torch.cuda.empty_cache()  # a captured step has its own memory

    def run_views(self) -> None:
        self.views() if self._graphs is None else self._graphs[0].replay()

    def run_step(self) -> None:
        self.step() if self._graphs is None else self._graphs[1].replay()


class _Row(Mapping[str, Tensor]):
    """One step's inputs. Each is looked up when the loss reads it, because most belong to the views."""

    def __init__(self, steps: Mapping[str, Tensor], position: Tensor) -> None:
        self._steps, self._position = steps, position

    def __getitem__(self, key: str) -> Tensor:
        return self._steps[key].index_select(0, self._position).squeeze(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


def corrects(job: Job) -> bool:
    """Whether gradients are corrected or measured. Measured gradients are corrected from the next
    round on."""
    return bool(job.terms.correction) or job.terms.measure


def signature(job: Job) -> Hashable:
    """What two jobs must have in common to be replays of the same capture."""
    work = job.work

    def shapes(tensors: Mapping[str, Tensor], skip: int = 0) -> Iterator[Hashable]:
        for key, value in tensors.items():
            yield key, value.shape[skip:], value.dtype

    samples = {k: v for k, v in work.tables.items() if k in work.samplewise}
    tables = {k: v for k, v in work.tables.items() if k not in work.samplewise}
    terms = (job.terms.proximal, corrects(job), job.terms.measure)
    parts = (shapes(work.steps, 1), shapes(samples, 1), shapes(tables), shapes(work.trainable))
    return (work.views, work.loss, job.head, terms, *map(tuple, parts))


def draws(model: nn.Module) -> Uncapturable:
    """A step drew numbers from torch's generator, which a replay cannot repeat. Says where that may be."""
    layers = list(drawing_layers(model))
    where = f"in {cut(layers, 3)}" if layers else "in a function such as torch.nn.functional.dropout"
    return Uncapturable(f"it draws random numbers of its own {where}; layers of nn.Dropout are fine")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"
