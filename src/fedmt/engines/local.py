"""The local engine: all centers in one process, on one device.

A round is a function of the state before it: same seed, same weights (to the bit on a CPU with the same
number of threads). A center's random numbers come from the seed, the round and its name alone, and
updates are averaged in the order of the names.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedmt import static_bn
from fedmt.aggregation import RunningMean, fedavg
from fedmt.data.center import Center, Federation
from fedmt.engines.device import place
from fedmt.engines.sgd import FlatSGD
from fedmt.engines.state import State
from fedmt.engines.testing import accuracies
from fedmt.errors import FedmtError
from fedmt.methods.base import CenterRound, LocalWork, Method, Tensors

Record = dict[str, Any]
"""One line of metrics.jsonl."""


def random_numbers(seed: int, round: int, name: str) -> np.random.Generator:
    """A center's generator in a round. Hashed, so that no two (seed, round, name) share a stream."""
    digest = hashlib.blake2b(f"{seed}\0{round}\0{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


@dataclass
class LocalEngine:
    """Runs a method on a federation.

    model: images [B, C, H, W] in [0, 1] to logits [B, K]; its weights are the starting point.
    precision: 'bfloat16' autocasts the network; 'auto' does so on CUDA. 'float32' means it: it switches
        the process's TF32 convolutions off.
    on_center: called with (round, name) before each center: progress, and a safe point to stop at.
    """

    federation: Federation
    method: Method
    model: nn.Module
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    on_center: Callable[[int, str], None] = lambda round, name: None

    def __post_init__(self) -> None:
        self.model = self.model.to(self.device)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = FlatSGD(self.model)
        self._parameters = frozenset(name for name, _ in self.model.named_parameters())
        self.federation = place(self.federation, self.device)
        if self.precision == "float32" and self.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False
        half = self.precision == "bfloat16" or (self.precision == "auto" and self.device.type == "cuda")
        self._autocast = torch.autocast(self.device.type, dtype=torch.bfloat16) if half else nullcontext()
        self._seconds: dict[str, float] = {}

    # -- rounds -----------------------------------------------------------------------------------

    def start(self) -> tuple[State, Record]:
        """Round 0: the reference center's warm-up, statistics and a first test."""
        with self._own_random_state():
            return self._start()

    def _start(self) -> tuple[State, Record]:
        self._seconds = {}
        self.on_center(0, self.federation.reference.name)
        state = State(0, self._weights())
        state, loss = self._reference_update(state, 0)
        return state, self._record(state, loss, {})

    def round(self, before: State) -> tuple[State, Record]:
        """One round: the centers train (B), their updates are averaged (C), the reference center trains (A).

        This is Algorithm 1 shifted by the warm-up, so that every round ends with the model that is tested.
        """
        with self._own_random_state():
            return self._round(before)

    def _round(self, before: State) -> tuple[State, Record]:
        self._seconds = {}
        before = before.to(self.device)  # one that was read from a checkpoint is not there yet
        number = before.round + 1
        mean = RunningMean()
        kept = dict(before.kept)
        records: dict[str, Record] = {}
        for center in self.federation.centers if self.method.federated else ():
            self.on_center(number, center.name)
            plan, record = self._center_update(center, before, number)
            kept[center.name] = {k: v.cpu() for k, v in plan.keep.items()}
            records[center.name] = record
            if plan.work is None:
                continue
            with self._phase("aggregate"):
                weight = len(center) if self.method.training.weights == "samples" else 1.0
                if not mean.add(self._weights(copy=False), before.weights, weight):
                    record["left_out"] = "its weights are not finite: training diverged"
                    del record["losses"]  # not numbers either
        with self._phase("aggregate"):
            training = self.method.training
            weights, velocity = fedavg(
                before.weights,
                mean.mean,
                before.velocity,
                self._parameters,
                training.server_rate,
                training.server_momentum,
            )
        state = State(number, weights, velocity, kept)
        self.on_center(number, self.federation.reference.name)
        state, loss = self._reference_update(state, number)
        return state, self._record(state, loss, records)

    def _reference_update(self, state: State, number: int) -> tuple[State, float | None]:
        """Procedure A, then the batch-norm statistics of the model it ends in."""
        reference = self.federation.reference
        self._load(state.weights)
        loss = None
        work = self.method.reference_work(
            reference, number, random_numbers(self.seed, number, reference.name)
        )
        if work is not None:
            with self._phase("reference"):
                loss = self._train(reference, work, number)["loss"]
        with self._phase("statistics"):
            self._static_statistics()
        return replace(state, weights=self._weights()), loss

    def _center_update(self, center: Center, before: State, number: int) -> tuple[CenterRound, Record]:
        """Procedure B: pseudo-labels from the received model, then local training of a copy of it."""
        self._load(before.weights)
        with self._phase("pseudo_labels"):
            predictions = self.predict(center.images)
            kept = before.kept.get(center.name, {})
            rng = random_numbers(self.seed, number, center.name)
            plan = self.method.center_round(center, predictions, kept, number, rng)
        record: Record = dict(plan.facts)
        if plan.confident is not None and plan.pseudo_labels is not None:
            record["confident_share"] = plan.confident.float().mean().item()
            if center.truth is not None and plan.confident.any():
                right = (plan.pseudo_labels == center.truth)[plan.confident]
                record["pseudo_label_accuracy"] = right.float().mean().item()
        if plan.work is None:
            record["abstained"] = plan.reason
            return plan, record
        with self._phase("train"):
            record["losses"] = self._train(center, plan.work, number)
        return plan, record

    # -- training ---------------------------------------------------------------------------------

    def _train(self, center: Center, work: LocalWork, number: int) -> dict[str, float]:
        """Local SGD on the loaded model; returns the mean of each named loss over the steps."""
        training = self.method.training
        static_bn.set_static(self.model, training.batch_norm != "running")
        self.model.train()
        self._optimizer.restart()
        steps = {key: value.to(self.device) for key, value in work.steps.items()}
        tables = {key: value.to(self.device) for key, value in work.tables.items()}
        sums: dict[str, Tensor] = {}
        # A backbone's own randomness (dropout) follows from the same three things as the batches.
        dropout = random_numbers(self.seed, number, f"dropout of {center.name}")
        torch.manual_seed(int(dropout.integers(2**62)))
        at_once = self._steps_at_once(center, steps)
        for first in range(0, len(work), at_once):
            chunk = {k: v[first : first + at_once] for k, v in steps.items()}
            views = work.views(self._gather(center.images, chunk["index"]), chunk)
            for position, batch in enumerate(views):
                step = {key: value[position] for key, value in chunk.items()}
                losses = work.loss(self._forward(batch), step, tables)
                losses["loss"].backward()
                self._optimizer.step(
                    work.learning_rate,
                    training.momentum,
                    training.nesterov,
                    training.weight_decay,
                    training.clip,
                )
                for key, value in losses.items():  # summed on the device: no waiting inside a round
                    sums[key] = sums[key] + value.detach() if key in sums else value.detach()
        return {key: (value / len(work)).item() for key, value in sums.items()}

    def _steps_at_once(self, center: Center, steps: Tensors) -> int:
        """How many steps' views to make together: as many as have about a million pixel values."""
        pixels = steps["index"][0].numel() * center.images[0].numel()
        return max(1, (1 << 20) // pixels)

    def _forward(self, images: Tensor) -> Tensor:
        with self._autocast:
            logits: Tensor = self.model(images.contiguous(memory_format=torch.channels_last))
        return logits.float()

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """The loaded model's probabilities [N, K] on un-augmented uint8 images."""
        self.model.eval()
        return torch.cat([self._forward(batch).softmax(1) for batch in self._plain_batches(images)])

    def _static_statistics(self) -> None:
        """Pools the statistics of the centers' un-augmented images into the loaded model."""
        mode = self.method.training.batch_norm
        if mode == "running":
            return
        centers = [self.federation.reference]
        if mode == "static" and self.method.federated:
            centers += self.federation.centers
        parts = (
            (float(len(c)), static_bn.measure(self.model, self._plain_batches(c.images), self._forward))
            for c in centers
        )
        self.model.load_state_dict(static_bn.pool(parts), strict=False)

    # -- testing ----------------------------------------------------------------------------------

    def _record(self, state: State, reference_loss: float | None, centers: dict[str, Record]) -> Record:
        with self._phase("test"):
            projections = self.method.projections(self.federation, state.kept)
            accuracy = accuracies(self.federation, projections, self.predict)
        record: Record = {
            "round": state.round,
            "accuracy": accuracy,
            "learning_rate": self.method.training.rate(state.round),
            "reference_loss": reference_loss,
        }
        for key in ("confident_share", "pseudo_label_accuracy", "correspondence_error"):
            values = [c[key] for c in centers.values() if key in c]
            if values:
                record[key] = sum(values) / len(values)
        trained = [c["losses"] for c in centers.values() if "losses" in c]
        if trained:
            record["losses"] = {k: sum(c[k] for c in trained) / len(trained) for k in trained[0]}
        record["centers"] = centers
        record["seconds"] = {k: round(v, 4) for k, v in self._seconds.items()}
        return record

    # -- data and weights -------------------------------------------------------------------------

    def _gather(self, images: Tensor, index: Tensor) -> Tensor:
        return images[index.to(images.device)].to(self.device)

    def _plain_batches(self, images: Tensor) -> Iterator[Tensor]:
        """Un-augmented images in [0, 1], in batches of about half a million pixels (more on a GPU)."""
        pixels = images.shape[2] * images.shape[3]
        size = max(16, (1 << 19) * (8 if self.device.type == "cuda" else 1) // pixels)
        # Of about equal size: a batch of a few left over would have statistics of its own kind.
        for batch in images.tensor_split(math.ceil(len(images) / size)):
            yield batch.to(self.device).float().div_(255)

    def _weights(self, copy: bool = True) -> dict[str, Tensor]:
        own = self.model.state_dict()
        return {k: v.detach().clone() if copy else v.detach() for k, v in own.items()}

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        try:
            self.model.load_state_dict(weights)
        except RuntimeError:
            raise FedmtError(
                f"The saved weights do not fit model '{type(self.model).__name__}': the network has changed "
                "since the run began. Begin anew in another --out."
            ) from None

    def _own_random_state(self) -> AbstractContextManager[None]:
        """Inside, torch's global generators may be seeded; outside, they are as the caller left them."""
        return torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [])

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Adds the seconds spent inside to the round's `seconds`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin
