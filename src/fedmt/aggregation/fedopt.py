"""FedAdam and FedYogi (Reddi et al. 2021): an adaptive server uses the mean update as a gradient.

    d = mean_c (f_c - f)
    m <- beta_1 m + (1 - beta_1) d
    v <- beta_2 v + (1 - beta_2) d^2                          FedAdam
    v <- v - (1 - beta_2) d^2 sign(v - d^2)                   FedYogi
    f <- f + rate * m / (sqrt(v) + tau)

m begins at 0 and v at tau^2, as in their experiments; there is no bias correction.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmt.aggregation.base import Strategy, Weights, packed, unpacked
from fedmt.core.errors import positive, share


@dataclass(frozen=True)
class FedOpt(Strategy):
    """Base of the strategies with an adaptive server."""

    rate: float = 0.01
    """Server learning rate: how far the model moves along the combined update. For FedAdam and FedYogi, it is
    the step size of the adaptive server."""
    beta_1: float = 0.9
    """Decay of the running mean of updates."""
    beta_2: float = 0.99
    """Decay of the running mean of squared updates."""
    tau: float = 1e-3
    """Added to the denominator; a smaller value makes the server more adaptive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("aggregation.tau", self.tau)
        share("aggregation.beta_1", self.beta_1)
        share("aggregation.beta_2", self.beta_2)

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v from the last and d^2."""

    def direction(
        self, update: Weights, server: Weights, participation: Mapping[str, float]
    ) -> tuple[Weights, Weights]:
        m, v = unpacked("m", server), unpacked("v", server)
        step = {}
        for key, d in update.items():
            first = (1 - self.beta_1) * d
            m[key] = first + self.beta_1 * m[key] if key in m else first
            v[key] = self.second_moment(v.get(key, torch.full_like(d, self.tau**2)), d.square())
            step[key] = m[key] / (v[key].sqrt() + self.tau)
        return step, {**server, **packed("m", m), **packed("v", v)}


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """v is a moving mean of d^2."""

    name: ClassVar[str] = "fedadam"

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta_2 * v + (1 - self.beta_2) * square


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """v moves toward d^2 by steps that do not depend on the distance between them."""

    name: ClassVar[str] = "fedyogi"

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta_2) * square * (v - square).sign()
