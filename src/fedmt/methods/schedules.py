"""Round schedules: who trains when, and what happens with the reference center's training.

By the procedures of Algorithm 1: A is the reference center's training, B the other centers', C averaging.

    Alternate    A, then in each round  B, C, A            FedMT, SemiFL
    Joint        in each round          A with B, C        FedRep
    FineTune     in each round          B, C; finally A    FedTrans
    Alone        A, then in each round  A                  Single

Alternate is the paper's order A, B, C, shifted by its first A (round 0, the warm-up), so that every round
ends with the model that is tested. A schedule only answers questions; an engine asks them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class Schedule(ABC):
    """Base of the schedules."""

    centers_train: ClassVar[bool] = True
    """Whether the centers take part at all."""
    reference_counts_in_mean: ClassVar[bool] = False
    """Whether the reference center trains with the others, from the same model, and counts in the mean."""
    keeps_shared_model: ClassVar[bool] = False
    """Whether the averaged model is kept in addition to the one that the reference center trains from it."""

    @abstractmethod
    def reference_trains_after(self, round: int, rounds: int) -> bool:
        """Whether the reference center trains the averaged model in round `round` of `rounds`. Round 0 is
        the warm-up, before any average exists."""


class Alternate(Schedule):
    """The reference center trains the averaged model, and its result is the next model."""

    def reference_trains_after(self, round: int, rounds: int) -> bool:
        return True


class Joint(Schedule):
    """The reference center is one of the centers. There is no warm-up."""

    reference_counts_in_mean: ClassVar[bool] = True

    def reference_trains_after(self, round: int, rounds: int) -> bool:
        return False


class FineTune(Schedule):
    """The reference center trains once, after the last round, and its result is a separate model."""

    keeps_shared_model: ClassVar[bool] = True

    def reference_trains_after(self, round: int, rounds: int) -> bool:
        return round >= rounds


class Alone(Alternate):
    """Like `Alternate`, but without the other centers: nothing is averaged."""

    centers_train: ClassVar[bool] = False
