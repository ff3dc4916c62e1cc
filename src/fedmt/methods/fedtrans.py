"""FedTrans: learn the centers' own classes together, then a new last layer for the wanted ones.

The centers train a J-class model by federated averaging; no label of the reference center is used. After the
last round the reference center puts a new K-class layer on it and trains the whole on its own labels.
Centers that label in different spaces share the network, and their last layer with those of their space.

The accuracy in the wanted space is therefore chance until the last round. In the other spaces, the centers'
model answers itself, as it was before the fine-tuning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedmt.aggregation import Strategy
from fedmt.core.errors import FedmtError, at_least, positive
from fedmt.data.center import Center
from fedmt.data.member import Roster
from fedmt.methods.base import Method, Presets
from fedmt.methods.schedules import FineTune, Schedule
from fedmt.methods.training import PAPER_AGGREGATION, PAPER_TRAINING
from fedmt.methods.work import Answer, CenterRound, LocalWork, Tensors


@dataclass(frozen=True)
class FedTrans(Method):
    """FedTrans: the centers train on their own labels, and the reference center fine-tunes the result."""

    name: ClassVar[str] = "fedtrans"
    schedule: ClassVar[Schedule] = FineTune()
    private: ClassVar[bool] = True
    guesses: ClassVar[bool] = False
    heads: ClassVar[Literal["shared", "kept"] | None] = "shared"
    presets: ClassVar[Presets] = {
        "paper": {
            "method": {"fine_tune_epochs": 100, "fine_tune_rate": 0.01},
            "training": {**PAPER_TRAINING, "local_epochs": 1},
            "aggregation": PAPER_AGGREGATION,
        }
    }

    fine_tune_epochs: int = 100
    """Passes over the reference center's samples after the last round."""
    fine_tune_rate: float = 0.01
    """Learning rate of that fine-tuning."""

    def __post_init__(self) -> None:
        at_least("training.local_epochs", self.training.local_epochs, 1)
        at_least("method.fine_tune_epochs", self.fine_tune_epochs, 1)
        positive("method.fine_tune_rate", self.fine_tune_rate)

    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        """Cross-entropy on the center's labels, with the head of its space."""
        return self.supervised_round(center, round, rng)

    def reference_work(self, reference: Center, round: int, rng: np.random.Generator) -> LocalWork | None:
        """The fine-tuning, after the last round."""
        batch = self.reference_batch(reference)
        return self.supervised_work(reference, self.fine_tune_epochs, batch, self.fine_tune_rate, rng)

    def answers(self, roster: Roster, kept: Mapping[str, Tensors]) -> dict[str, list[Answer]]:
        """The shared model's own head for each space."""
        return {space.name: [Answer("shared")] for space in roster.spaces[1:]}

    def check_strategy(self, strategy: Strategy) -> None:
        super().check_strategy(strategy)
        if strategy.keeps_batch_norm:
            raise FedmtError(
                f"aggregation.name: '{strategy.name}' with method 'fedtrans': the reference center "
                "fine-tunes the model that the centers trained together, but their batch-norm layers would "
                "stay with them, and it has none of its own. Use another strategy."
            )
