"""SCAFFOLD (Karimireddy et al. 2020): centers correct the drift of their gradients by control variates.

    center's step   w <- w - lr * (g(w) - c_i + c)
    afterwards      c_i' = mean of g over the center's steps
    server          f <- f + rate * mean (f_i - f),      c <- c + |S| / N * mean_S (c_i' - c_i)

The paper's option II, `c_i' = c_i - c + (f - f_i) / (steps * lr)`, is that mean of gradients written in
another way, for plain SGD. Measured as a mean, it is also right with momentum, weight decay and clipping. c
is the plain mean of the c_i even if updates are weighted by samples (`training.weights`). Twice as much data
travels as with FedAvg: c with the model, and c_i' - c_i with each update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmt.aggregation.base import Strategy, Weights, packed, unpacked


@dataclass(frozen=True)
class Scaffold(Strategy):
    """c and c_i are stored under `control:`. Both begin at 0."""

    name: ClassVar[str] = "scaffold"
    corrects: ClassVar[bool] = True

    def broadcast(self, server: Mapping[str, Tensor]) -> Weights:
        return packed("control", unpacked("control", server))

    def correction(self, server: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Weights:
        """c - c_i"""
        mine = unpacked("control", own)
        return {k: c - mine[k].to(c) if k in mine else c for k, c in unpacked("control", server).items()}

    def controls(self, own: Mapping[str, Tensor], mean_gradient: Weights) -> tuple[Weights, Weights]:
        """c_i' to keep, c_i' - c_i to send."""
        before = unpacked("control", own)
        # At least a copy, because what is sent may be changed in place while it is averaged.
        change = {k: g - before[k].to(g) if k in before else g.clone() for k, g in mean_gradient.items()}
        return packed("control", mean_gradient), packed("control", change)

    def direction(
        self, update: Weights, server: Weights, participation: Mapping[str, float]
    ) -> tuple[Weights, Weights]:
        before = unpacked("control", server)
        control = dict(before)
        for key, change in unpacked("control", update).items():
            change = participation.get(key, 1.0) * change
            control[key] = before[key] + change if key in before else change
        return update, {**server, **packed("control", control)}
