"""What a strategy is: how centers' updates become the next global model, and what it asks of their training.

A strategy sees weights by name and knows no device, process or socket. The engine stores what a strategy
remembers between rounds: `server` at the coordinating site, `own` at each center. The updates of one round go
into its `Accumulator`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmt.core.errors import positive
from fedmt.core.registry import Named

Weights = dict[str, Tensor]
"""Tensors by name: those of a model, or others kept with them under a prefix (`packed`)."""


def packed(kind: str, tensors: Mapping[str, Tensor]) -> Weights:
    """The tensors under `kind:name`, so that several kinds travel and are kept as one mapping."""
    return {f"{kind}:{name}": value for name, value in tensors.items()}


def unpacked(kind: str, tensors: Mapping[str, Tensor]) -> Weights:
    """The tensors of one kind, by their plain names."""
    return {k.removeprefix(f"{kind}:"): v for k, v in tensors.items() if k.startswith(f"{kind}:")}


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no entry is infinite or NaN. On a GPU, this is one check for all, because each check waits for
    the device."""
    every = [t for t in tensors if t.is_floating_point() and t.numel() > 0]
    if not every or every[0].device.type == "cpu":
        return all(bool(t.isfinite().all()) for t in every)
    largest = torch._foreach_norm(every, float("inf"))
    return bool(torch.stack([value.float() for value in largest]).isfinite().all())


class Accumulator(ABC):
    """Takes the updates of one round, one by one, and combines them.

    Each name is combined over the updates that contain it, because a center sends only its own head. Updates
    arrive in a fixed order (sorted by the centers' names), so that the result is bit-identical.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """For each name, the number of updates that contain it."""

    @torch.no_grad()
    def add(self, update: Weights, weight: float) -> bool:
        """Adds an update, whose tensors it may keep and change. Returns False and adds nothing if it is not
        finite."""
        if not all_finite(update.values()):
            return False
        for key in update:
            self.counts[key] = self.counts.get(key, 0) + 1
        self._add(update, weight)
        return True

    @abstractmethod
    def _add(self, update: Weights, weight: float) -> None:
        """Adds a finite update."""

    @abstractmethod
    def result(self) -> Weights:
        """The combined updates, by name. Empty if there was none."""


class RunningMean(Accumulator):
    """The weighted mean of updates as they arrive, so that they never pile up in memory.

    Tensors under `control:` count equally, whatever a center's weight, because SCAFFOLD's c is the mean of
    all c_i.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mean: Weights = {}
        self._totals: dict[str, float] = {}

    def _add(self, update: Weights, weight: float) -> None:
        shares: dict[float, list[str]] = {}  # nearly always one group: names that were sent equally often
        for key, value in update.items():
            own = 1.0 if key.startswith("control:") else weight
            total = self._totals[key] = self._totals.get(key, 0.0) + own
            if key not in self._mean:
                self._mean[key] = value
            else:
                shares.setdefault(own / total, []).append(key)
        for share, keys in shares.items():
            means, values = [self._mean[k] for k in keys], [update[k] for k in keys]
            torch._foreach_sub_(values, means)
            torch._foreach_add_(means, values, alpha=share)

    def result(self) -> Weights:
        return self._mean


@dataclass(frozen=True)
class Strategy(Named, ABC):
    """Base class of the strategies. By itself, it is plain averaging.

        f <- f + rate * direction(mean_c (f_c - f))

    The mean is over the centers that trained; `accumulator` determines the kind of mean.
    """

    keeps_batch_norm: ClassVar[bool] = False
    """Whether batch-norm layers stay at their center."""
    corrects: ClassVar[bool] = False
    """Whether centers correct their gradients (`correction`) and measure their mean (`controls`)."""
    needs_single_updates: ClassVar[bool] = False
    """Whether it looks at each center's own update, which secure aggregation hides."""

    rate: float = 1.0
    """Server learning rate: how far the model moves along the combined update. For FedAdam and FedYogi, it is
    the step size of the adaptive server."""

    def __post_init__(self) -> None:
        positive("aggregation.rate", self.rate)

    @property
    def proximal(self) -> float:
        """mu of the term `mu / 2 |w - f|^2` in every center's loss."""
        return 0.0

    def accumulator(self) -> Accumulator:
        """What collects the updates of one round. A new one is made for each round."""
        return RunningMean()

    def broadcast(self, server: Mapping[str, Tensor]) -> Weights:
        """The part of the server's memory that centers need in addition to the model. `correction`
        reads it."""
        return {}

    def correction(self, server: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Weights:
        """What a center adds to its gradients, by parameter. Parameters without an entry are unchanged."""
        return {}

    def controls(self, own: Mapping[str, Tensor], mean_gradient: Weights) -> tuple[Weights, Weights]:
        """After training: what the center keeps, and what it sends with its update."""
        return {}, {}

    def direction(
        self, update: Weights, server: Weights, participation: Mapping[str, float]
    ) -> tuple[Weights, Weights]:
        """The step to take for the mean update of the parameters, and the server's new memory.

        `update` also has what `controls` sent. participation: for each parameter's name, the share of the
        centers with this parameter that trained (a head belongs to one label space); 1 by default.
        """
        return update, server

    @torch.no_grad()
    def aggregate(
        self,
        received: Mapping[str, Tensor],
        mean: Mapping[str, Tensor],
        server: Mapping[str, Tensor],
        parameters: Collection[str],
        participation: Mapping[str, float] | None = None,
    ) -> tuple[Weights, Weights]:
        """The next global weights, and what the server remembers. Without any update both are unchanged.

        Only `parameters` follow `direction`; buffers (batch-norm statistics) use the plain mean, because an
        overshoot could make a variance negative. Tensors without a mean (counters, names that no center sent)
        are unchanged.
        """
        if not mean:
            return dict(received), dict(server)
        buffers = {k for k in received if k in mean and k not in parameters}
        step, server = self.direction(
            {k: v for k, v in mean.items() if k not in buffers}, dict(server), participation or {}
        )
        weights = {}
        for key, value in received.items():
            if key in buffers:
                weights[key] = value + mean[key]
            else:
                weights[key] = value + self.rate * step[key] if key in step else value
        return weights, server
