"""FedAvg (McMahan et al. 2017), and with server momentum FedAvgM (Hsu et al. 2019; SemiFL uses 0.5).

The paper prints `f - eta * sum(f_c - f)`, whose sign and scale cannot be intended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedmt.aggregation.base import Strategy, Weights, packed, unpacked
from fedmt.core.errors import share


@dataclass(frozen=True)
class FedAvg(Strategy):
    """f <- f + rate * mean_c (f_c - f)"""

    name: ClassVar[str] = "fedavg"


@dataclass(frozen=True)
class FedAvgM(Strategy):
    """
    velocity <- momentum * velocity + mean_c (f_c - f)
    f        <- f + rate * velocity
    """

    name: ClassVar[str] = "fedavgm"

    momentum: float = 0.5
    """Server momentum. Lower it if the accuracy oscillates from round to round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        share("aggregation.momentum", self.momentum)

    def direction(
        self, update: Weights, server: Weights, participation: Mapping[str, float]
    ) -> tuple[Weights, Weights]:
        before = unpacked("velocity", server)
        velocity = {
            key: value + self.momentum * before[key] if key in before else value
            for key, value in update.items()
        }
        return velocity, {**server, **packed("velocity", velocity)}
