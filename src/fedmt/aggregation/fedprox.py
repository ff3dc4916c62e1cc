"""FedProx (Li et al. 2020): FedAvg whose centers are held near the model they received.

each center minimizes   loss(w) + mu / 2 |w - f|^2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedmt.aggregation.base import Strategy
from fedmt.core.errors import at_least


@dataclass(frozen=True)
class FedProx(Strategy):
    """f_c is held near the received model; with mu = 0 this is FedAvg."""

    name: ClassVar[str] = "fedprox"

    mu: float = 0.01
    """How strongly centers are held near the model they received; 0 is FedAvg. Raise it if centers drift
    apart."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("aggregation.mu", self.mu, 0)

    @property
    def proximal(self) -> float:
        return self.mu
