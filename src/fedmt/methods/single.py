"""Single: only the reference center's data. This is what every federated method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedmt.aggregation import FedAvgM, Strategy
from fedmt.core.errors import FedmtError
from fedmt.data.center import Center
from fedmt.methods.base import Method, Presets
from fedmt.methods.schedules import Alone, Schedule
from fedmt.methods.training import PAPER_TRAINING
from fedmt.methods.work import CenterRound, Tensors


@dataclass(frozen=True)
class Single(Method):
    """The reference center's training of the base class, round after round. The other centers do not take
    part."""

    name: ClassVar[str] = "single"
    schedule: ClassVar[Schedule] = Alone()
    private: ClassVar[bool] = True
    presets: ClassVar[Presets] = {"paper": {"training": PAPER_TRAINING}}

    def center_round(
        self, center: Center, predictions: Tensor, kept: Tensors, round: int, rng: np.random.Generator
    ) -> CenterRound:
        return CenterRound(None, reason="Single trains at the reference center alone")

    def check_strategy(self, strategy: Strategy) -> None:
        if strategy != FedAvgM():  # the default, which a config has without setting it
            raise FedmtError(
                f"aggregation.name: '{strategy.name}' with method 'single', which trains only at the "
                "reference center and averages nothing. Remove [aggregation]."
            )
