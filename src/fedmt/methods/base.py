"""What a method is: it says what each center computes in a round, as data and two functions.

A method knows no device, process or socket. For the reference center and for every other it
returns a `LocalWork`: the inputs of each step (sample indices, uniform numbers for the views), the
round's fixed tables (labels, pseudo-labels, M), how views are made of images, and the loss of the model's
answers. An engine runs it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmt.augment import WEAK_NUMBERS, Augmentation, strong, weak
from fedmt.data.center import Center, Federation
from fedmt.errors import FedmtError

Tensors = Mapping[str, Tensor]

ViewFunction = Callable[[Tensor, Tensors], Tensor]
"""(images uint8 [S, ..., C, H, W] of S steps, those steps' inputs) to views [S, V, C, H, W] in [0, 1].

Views of many steps are made at once, since many small operations cost more than a few large ones."""

LossFunction = Callable[[Tensor, Tensors, Tensors], dict[str, Tensor]]
"""(logits [V, K] of one step's views, the step's inputs, the round's tables) to named scalars.

'loss' is what is minimised; the others are for the record."""


@dataclass(frozen=True, eq=False)
class LocalWork:
    """The steps of one center in one round.

    steps: tensors whose first dimension is the step; 'index' [S, ...] says which samples to gather.
    tables: tensors that stay the same for the whole round.
    """

    views: ViewFunction
    loss: LossFunction
    steps: Tensors
    tables: Tensors
    learning_rate: float

    def __len__(self) -> int:
        return len(self.steps["index"])


@dataclass(frozen=True, eq=False)
class CenterRound:
    """What a center found out and will do in one round.

    work: None where the center abstains, and then `reason` says why.
    keep: what the center remembers from this round (M-hat), to be handed to it again in the next.
    pseudo_labels, confident: int64 and bool [N], to be judged where a benchmark knows the truth.
    facts: further numbers for the record.
    """

    work: LocalWork | None
    keep: Tensors = field(default_factory=dict)
    pseudo_labels: Tensor | None = None
    confident: Tensor | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Training:
    """How centers train, common to all methods.

    local_epochs, batch_size: at each center, a round. reference_epochs, reference_batch_size: at the
    reference center (batch 0: 250 where it has over 1000 samples, else 10). warmup_epochs: at the reference
    center before the first round, so that the first pseudo-labels mean something. reference_strong: train
    there on a strong view beside the weak one.
    server_momentum: 0 is plain averaging. weights: every center counts the same, or by its samples.
    batch_norm: 'static' pools all centers' statistics, 'static-reference' takes the reference
    center's alone (then nothing but weights travels), 'running' is ordinary batch norm.
    """

    rounds: int = 200
    local_epochs: int = 5
    batch_size: int = 50
    reference_epochs: int = 5
    reference_batch_size: int = 0
    warmup_epochs: int = 20
    reference_strong: bool = True
    learning_rate: float = 0.1
    schedule: Literal["cosine", "constant"] = "cosine"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    clip: float = 5.0
    server_rate: float = 1.0
    server_momentum: float = 0.5
    weights: Literal["equal", "samples"] = "equal"
    batch_norm: Literal["static", "static-reference", "running"] = "static"

    def __post_init__(self) -> None:
        at_least("training.rounds", self.rounds, 1)
        at_least("training.batch_size", self.batch_size, 1)
        for name in (
            "local_epochs",
            "reference_epochs",
            "reference_batch_size",
            "warmup_epochs",
            "weight_decay",
            "clip",
        ):
            at_least(f"training.{name}", getattr(self, name), 0)
        for name in ("learning_rate", "server_rate"):
            if not getattr(self, name) > 0:
                raise FedmtError(f"training.{name}: {getattr(self, name)} given, expected more than 0.")
        for name in ("momentum", "server_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise FedmtError(f"training.{name}: {getattr(self, name)} given, expected 0 <= it < 1.")

    def rate(self, round: int) -> float:
        """The learning rate of round 1..rounds; the warm-up, round 0, has that of round 1."""
        if self.schedule == "constant":
            return self.learning_rate
        done = max(round - 1, 0) / max(self.rounds, 1)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Method(ABC):
    """Base of the methods: the reference center's part, which all share."""

    name: ClassVar[str]
    federated: ClassVar[bool] = True
    """Whether the centers take part at all."""

    training: Training = field(default_factory=Training)
    augmentation: Augmentation = field(default_factory=Augmentation)

    def reference_work(self, reference: Center, round: int, rng: np.random.Generator) -> LocalWork | None:
        """Supervised training on the reference center's data; round 0 is the warm-up."""
        training = self.training
        epochs = training.reference_epochs if round > 0 else training.warmup_epochs
        if epochs == 0:
            return None
        batch = training.reference_batch_size or (250 if len(reference) > 1000 else 10)
        index = sample_stream(np.arange(len(reference)), epochs, batch, rng)
        uniforms = self.augmentation.strong_numbers + 2 * WEAK_NUMBERS
        steps = {
            "index": torch.from_numpy(index),
            "uniforms": torch.from_numpy(rng.random((*index.shape, uniforms), dtype=np.float32)),
        }
        assert reference.labels is not None
        tables = {"label": reference.labels}
        return LocalWork(self.reference_views, self.reference_loss, steps, tables, training.rate(round))

    def reference_views(self, images: Tensor, steps: Tensors) -> Tensor:
        """A weak and a strong view of each sample, [S, B, C, H, W] to [S, 2B, C, H, W]; or the weak alone."""
        options = self.augmentation
        flat, uniforms = images.flatten(0, 1), steps["uniforms"].flatten(0, 1)
        plain = weak(flat, uniforms[:, :WEAK_NUMBERS], options)
        if not self.training.reference_strong:
            return plain.view_as(images)
        base = weak(flat, uniforms[:, WEAK_NUMBERS : 2 * WEAK_NUMBERS], options)
        views = torch.stack([plain, strong(base, uniforms[:, 2 * WEAK_NUMBERS :], options)])
        pairs: Tensor = views.unflatten(1, images.shape[:2]).transpose(0, 1)
        return pairs.flatten(1, 2)

    def reference_loss(self, logits: Tensor, step: Tensors, tables: Tensors) -> dict[str, Tensor]:
        """R_s: cross-entropy, the mean over the views of each sample."""
        target = tables["label"][step["index"]]
        return {"loss": F.cross_entropy(logits, target.repeat(len(logits) // len(target)))}

    @abstractmethod
    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        """What a center does in a round, from the received model's probabilities [N, K] on its images
        and from what it kept of the round before."""

    @abstractmethod
    def projections(
        self, federation: Federation, kept: Mapping[str, Tensors]
    ) -> dict[str, dict[str, Tensor]]:
        """For each label space but the wanted one, by name: each center's matrix [J, K] into it."""


def at_least(name: str, value: float, least: float) -> None:
    """Refuses an option below its least value (and NaN)."""
    if not value >= least:
        raise FedmtError(f"{name}: {value} given, expected at least {least}.")


def sample_stream(samples: np.ndarray, epochs: int, batch: int, rng: np.random.Generator) -> np.ndarray:
    """Batches [S, batch] that pass over `samples` `epochs` times, each time in a new order.

    Every batch is full, so that a step has one shape: S = ceil(epochs * N / batch), and the last batch is
    filled up from one more pass.
    """
    steps = math.ceil(epochs * len(samples) / batch)
    passes = math.ceil(steps * batch / len(samples))
    stream = np.concatenate([rng.permutation(samples) for _ in range(passes)])
    return stream[: steps * batch].reshape(steps, batch).astype(np.int64)
