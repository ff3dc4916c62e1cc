"""FedRep (after Collins et al. 2021, as the paper uses it): one shared network, and a head for every center.

All centers, including the reference center, train the network with their own last layer: K classes at the
reference center, J at each other. The networks are averaged; the last layers never leave their center.

(The paper's objective prints W_Y and W_Y-tilde the wrong way round.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedmt.aggregation import unpacked
from fedmt.core.errors import at_least
from fedmt.data.center import Center
from fedmt.data.member import Roster
from fedmt.methods.base import Method, Presets
from fedmt.methods.schedules import Joint, Schedule
from fedmt.methods.training import PAPER_AGGREGATION, PAPER_TRAINING
from fedmt.methods.work import Answer, CenterRound, Tensors


@dataclass(frozen=True)
class FedRep(Method):
    """No options of its own."""

    name: ClassVar[str] = "fedrep"
    schedule: ClassVar[Schedule] = Joint()
    private: ClassVar[bool] = True
    guesses: ClassVar[bool] = False
    heads: ClassVar[Literal["shared", "kept"] | None] = "kept"
    presets: ClassVar[Presets] = {
        "paper": {
            "training": {**PAPER_TRAINING, "local_epochs": 1, "reference_epochs": 1},
            "aggregation": PAPER_AGGREGATION,
        }
    }

    def __post_init__(self) -> None:
        at_least("training.local_epochs", self.training.local_epochs, 1)
        at_least("training.reference_epochs", self.training.reference_epochs, 1)

    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        """Cross-entropy on the center's labels, with its own head."""
        return self.supervised_round(center, round, rng)

    def answers(self, roster: Roster, kept: Mapping[str, Tensors]) -> dict[str, list[Answer]]:
        """Every center's own head, once it has trained one."""
        found: dict[str, list[Answer]] = {}
        for center in roster.members:
            if center.space in (None, roster.wanted) or not unpacked("weights", kept.get(center.name, {})):
                continue
            assert center.space is not None
            found.setdefault(center.space.name, []).append(Answer("center", center.name))
        return found
