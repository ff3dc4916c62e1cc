"""One model on one device. It trains according to a `LocalWork`, predicts, and measures batch-norm
statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmt.aggregation import Weights
from fedmt.backbones.dropout import reseed, with_own_masks
from fedmt.backbones.heads import find_heads
from fedmt.core import static_bn
from fedmt.core.errors import FedmtError
from fedmt.core.seeding import seeded
from fedmt.engines.compiled import Compiled
from fedmt.engines.eager import batches
from fedmt.engines.eager.private import Noising, check_apart, clipped_sum, record_loss
from fedmt.engines.eager.sending import sent
from fedmt.engines.eager.sgd import FlatSGD
from fedmt.inputs import Input
from fedmt.methods.training import Training
from fedmt.methods.work import LocalWork, Tensors

Precision = Literal["auto", "float32", "bfloat16"]

Pass = Callable[[Tensor], Tensor]
Passes = Callable[[Hashable, Pass, Tensor], Tensor]
"""Takes (the name of a computation, a function of a batch, the batch) and returns the function's result."""

STATISTICS_SAMPLES = 1000
"""Batch-norm statistics are measured on at most this many samples of a center, evenly spread. A pass over all
samples in each round would take as long as the pseudo-labels."""


@dataclass(frozen=True, eq=False)
class Terms:
    """What a strategy adds to local training (`aggregation.Strategy`)."""

    proximal: float = 0.0
    correction: Mapping[str, Tensor] = field(default_factory=dict)
    measure: bool = False


@dataclass(frozen=True, eq=False)
class Trained:
    """losses: the mean of each loss over the steps. trainable: the work's own trained tensors.
    mean_gradient: by parameter, if it was to be measured. weights: the model's current weights.
    """

    losses: dict[str, float]
    trainable: Tensors
    mean_gradient: Weights
    weights: Weights


class Trainer:
    """precision: 'bfloat16' autocasts the network; 'auto' does so on CUDA. 'float32' also switches off TF32
    convolutions for the whole process."""

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        device: torch.device,
        input: Input,
        precision: Precision = "auto",
    ) -> None:
        with_own_masks(model)
        self.model = model.to(device)
        self.input = input
        self.model.to(memory_format=input.memory_format)  # type: ignore[call-overload]
        self.training = training
        self.device = device
        self._optimizer = FlatSGD(dict(model.named_parameters()))
        self.parameters = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
        """Every name of a parameter. A tied one has several, and its update travels under each of them."""
        heads = find_heads(model)
        self._heads = heads[1] if heads is not None else None
        if precision == "float32" and device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False
        self.passes: Passes | None = None
        """Runs batches without gradients. The fast engine replaces it."""
        self.compiled: Compiled | None = None
        """What the fast engine trains with instead of the network."""
        self.half = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")

    # -- weights ----------------------------------------------------------------------------------

    def weights(self, copy: bool = True) -> Weights:
        own = self.model.state_dict()
        return {k: v.detach().clone() if copy else v.detach() for k, v in own.items()}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        try:
            self.model.load_state_dict(weights)
        except RuntimeError:
            raise FedmtError(
                f"The saved weights do not fit model '{type(self.model).__name__}': the network has changed "
                "since the run began. Start a new run in another --out."
            ) from None

    # -- training ---------------------------------------------------------------------------------

    def train(
        self, samples: Tensor, work: LocalWork, head: int = 0, seed: int = 0, terms: Terms | None = None
    ) -> Trained:
        """Local SGD on the loaded model, with the head that answers. seed: for the backbone's own dropout."""
        with seeded(seed, self.device):
            reseed(self.model, seed)
            return self._trained(samples, work, head, terms or Terms())

    def _trained(self, samples: Tensor, work: LocalWork, head: int, terms: Terms) -> Trained:
        training = self.training
        static_bn.set_static(self.model, training.batch_norm != "running")
        self.model.train()
        self._answer_by(head)
        self._optimizer.restart(terms.proximal, terms.correction, terms.measure)
        steps = {key: value.to(self.device) for key, value in work.steps.items()}
        tables = {key: value.to(self.device) for key, value in work.tables.items()}
        trainable = {k: v.to(self.device).clone().requires_grad_() for k, v in work.trainable.items()}
        # No weight decay, which would pull them toward 0, and no clipping together with the model.
        beside = FlatSGD(trainable) if trainable else None
        tables |= trainable
        rate, momentum, nesterov = work.learning_rate, training.momentum, training.nesterov
        sums: dict[str, Tensor] = {}
        at_once = self._steps_at_once(steps)
        for first in range(0, len(work), at_once):
            chunk = {k: v[first : first + at_once] for k, v in steps.items()}
            views = work.views(self._gather(samples, chunk["index"]), chunk)
            for position, batch in enumerate(views):
                step = {key: value[position] for key, value in chunk.items()}
                losses = work.loss(self._forward(batch), step, tables)
                losses["loss"].backward()
                self._optimizer.step(rate, momentum, nesterov, training.weight_decay, training.clip)
                if beside is not None:
                    beside.step(rate, momentum, nesterov, weight_decay=0.0, clip=0.0)
                for (
                    key,
                    value,
                ) in losses.items():  # summed on the device, so that nothing waits within a round
                    sums[key] = sums[key] + value.detach() if key in sums else value.detach()
        return Trained(
            {key: (value / len(work)).item() for key, value in sums.items()},
            {key: value.detach() for key, value in trainable.items()},
            self._optimizer.mean_gradient() if terms.measure else {},
            self.weights(copy=False),
        )

    def train_privately(
        self, samples: Tensor, work: LocalWork, noising: Noising, head: int = 0, terms: Terms | None = None
    ) -> Trained:
        """The same with DP-SGD (`private`). The losses are not reported, because they depend on all records.

        The network is in evaluation mode: batch norm uses the statistics that came with the weights, and
        there is no dropout. The gradient is not clipped again.
        """
        terms = terms or Terms()
        training, optimizer = self.training, self._optimizer
        sizes = check_apart(work).tolist()
        self.model.eval()
        self._answer_by(head)
        optimizer.restart(terms.proximal, terms.correction, terms.measure)
        parameters = {k: p for k, p in self.model.named_parameters() if p.requires_grad}
        tables = {key: value.to(self.device) for key, value in work.tables.items()}
        loss = record_loss(self.model, work, tables)
        first = 0
        for size in sizes:
            steps = {k: v[first : first + size].to(self.device) for k, v in work.steps.items()}
            first += size
            if size:  # a step that drew no record still adds its noise
                views = work.views(self._gather(samples, steps["index"]), steps)
                values = {k: p.detach() for k, p in parameters.items()}
                for name, total in clipped_sum(loss, values, views, steps, noising.clip).items():
                    own = parameters[name].grad
                    assert own is not None
                    own.add_(total)
            noise = noising.normal(len(optimizer.gradient)).to(optimizer.gradient)
            optimizer.gradient.add_(noise, alpha=noising.noise * noising.clip).div_(noising.expected)
            optimizer.step(
                work.learning_rate, training.momentum, training.nesterov, training.weight_decay, clip=0.0
            )
        mean = optimizer.mean_gradient() if terms.measure else {}
        return Trained({}, {}, mean, self.weights(copy=False))

    def _steps_at_once(self, steps: Tensors) -> int:
        """Number of steps whose views are made together: those with about a million values in total."""
        values = steps["index"][0].numel() * math.prod(self.input.seen_shape)
        return max(1, (1 << 20) // values)

    def _gather(self, samples: Tensor, index: Tensor) -> Tensor:
        return samples[index.to(samples.device)].to(self.device)

    def _forward(self, views: Tensor) -> Tensor:
        return self.forward(self.model, views)

    def forward(self, model: Callable[[Tensor], Tensor], views: Tensor) -> Tensor:
        """A model's logits, in the trainer's precision."""
        half = torch.autocast(self.device.type, dtype=torch.bfloat16) if self.half else nullcontext()
        with half:
            logits: Tensor = model(views.contiguous(memory_format=self.input.memory_format))
        return logits.float()

    def _answer_by(self, head: int) -> None:
        if self._heads is not None:
            self._heads.active = head

    # -- predicting -------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, samples: Tensor, head: int = 0) -> Tensor:
        """The loaded model's probabilities [N, K] on unaugmented samples, with one of its heads."""
        self.model.eval()
        self._answer_by(head)
        return self._each(("probabilities", head), lambda batch: self._plain(batch).softmax(1), samples)

    @torch.no_grad()
    def predict_by(self, samples: Tensor, heads: Sequence[Weights]) -> list[Tensor]:
        """Probabilities from each of several heads (`weight`, `bias`) on the loaded network, which runs once
        for all of them."""
        assert self._heads is not None
        self.model.eval()
        self._answer_by(0)
        seen: list[Tensor] = []

        def features(batch: Tensor) -> Tensor:
            self._plain(batch)
            return seen.pop()

        hook = self._heads.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].float()))
        try:
            every = self._each("features", features, samples)
        finally:
            hook.remove()
        return [
            F.linear(every, *(h[k].to(every) for k in ("weight", "bias") if k in h)).softmax(1) for h in heads
        ]

    # -- batch-norm statistics --------------------------------------------------------------------

    def statistics(self, samples: Tensor) -> static_bn.Statistics:
        """Statistics of the loaded model's layers over at most `STATISTICS_SAMPLES` unaugmented samples."""
        every = max(1, math.ceil(len(samples) / STATISTICS_SAMPLES))
        spread = samples[::every]  # the data may be sorted by class
        split = batches.split_evenly if self.device.type == "cuda" else batches.split
        return static_bn.measure(
            self.model,
            sent(split(spread, self._batch_size), self.device),
            self._plain,
            lambda function, batch: self._pass("statistics", function, batch),
        )

    def set_statistics(self, statistics: static_bn.Statistics) -> None:
        self.model.load_state_dict(statistics, strict=False)

    # -- passes without gradients -----------------------------------------------------------------

    @property
    def _batch_size(self) -> int:
        return batches.batch_size(self.input, self.device)

    def _each(self, name: Hashable, function: Pass, samples: Tensor) -> Tensor:
        """A function's results for stored samples, one batch at a time. name: the name of the computation."""
        size = self._batch_size
        if self.passes is None:
            return torch.cat([function(part) for part in sent(batches.split(samples, size), self.device)])
        found = []
        for part in sent(samples.split(size), self.device):
            filled = batches.padded(part, size)
            found.append(self.passes(name, function, filled)[: len(part)])
        return torch.cat(found)

    def _pass(self, name: Hashable, function: Pass, batch: Tensor) -> Tensor:
        return function(batch) if self.passes is None else self.passes(name, function, batch)

    def _plain(self, batch: Tensor) -> Tensor:
        """The network's logits of unaugmented samples, as they are stored."""
        return self._forward(self.input.plain(batch))
