"""What a guard is: how the updates of a round are combined if one of them may be wrong or malicious."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from fedmt.aggregation.base import Accumulator, Weights
from fedmt.aggregation.guards.geometry import control_names, norm, weight_names
from fedmt.core.errors import at_least
from fedmt.core.registry import Named


@dataclass(frozen=True, eq=False)
class Update:
    """What a center sent, and its weight in a mean (`training.weights`).

    tensors: they may be stored elsewhere and are then read when needed (`shelf`).
    """

    center: str
    tensors: Mapping[str, Tensor]
    weight: float = 1.0

    @cached_property
    def norm(self) -> float:
        """Norm of the changes of weights. It is measured once, before an accumulator can change them."""
        return norm(self.tensors, weight_names(self.tensors))

    @cached_property
    def control_norm(self) -> float:
        """Norm of what SCAFFOLD sends in addition."""
        return norm(self.tensors, control_names(self.tensors))

    def stored(self, tensors: Mapping[str, Tensor]) -> Update:
        """The same update with tensors that are stored elsewhere now. What was measured is kept."""
        found = Update(self.center, tensors, self.weight)
        vars(found).update(norm=self.norm, control_norm=self.control_norm)
        return found


@dataclass(frozen=True, eq=False)
class Guarded:
    """accumulator: what the updates were combined in. facts: what is recorded about centers, by name."""

    accumulator: Accumulator
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Guard(Named, ABC):
    """Base of the guards."""

    leaves_out: ClassVar[bool] = True
    """Whether implausible updates are left out before (`Received`)."""
    needs_single_updates: ClassVar[bool] = True
    """Whether it looks at each center's own update, which secure aggregation hides."""
    needs_root: ClassVar[bool] = False
    """Whether it compares with the reference center's own update of the same model."""

    mix: int = 0
    """Number of bad centers to expect. Above 0, each update is first replaced by the mean of the updates
    nearest to it, leaving out this number of the farthest ones. It is an option of every guard."""

    def __post_init__(self) -> None:
        at_least("aggregation.guard.mix", self.mix, 0)

    @abstractmethod
    def combine(self, updates: Sequence[Update], mean: Accumulator, root: Weights | None) -> Guarded:
        """All plausible updates of a round, in the order of the names. mean: the strategy's own accumulator,
        still empty.
        root: the reference center's update, if it is needed.
        """


def averaged(updates: Iterable[Update], mean: Accumulator) -> Accumulator:
    """The accumulator with all updates in it."""
    for update in updates:
        mean.add(dict(update.tensors), update.weight)
    return mean
