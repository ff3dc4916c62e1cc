"""The paper's generalization error: its bounds, and a simulation that measures what they bound."""

from __future__ import annotations

from fedmt.theory.bounds import (
    bound_estimated,
    bound_known,
    coarse_bound,
    confidence,
    deviation,
    empirical_loss,
    inverse_correspondence,
)
from fedmt.theory.simulation import Row, World, example_world, plot_simulation, simulate

__all__ = [
    "Row",
    "World",
    "bound_estimated",
    "bound_known",
    "coarse_bound",
    "confidence",
    "deviation",
    "empirical_loss",
    "example_world",
    "inverse_correspondence",
    "plot_simulation",
    "simulate",
]
