"""What a federation is between two rounds. With it and the config, a run goes on exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class State:
    """round: the last finished one (0: the warm-up at the reference center).

    weights: the global model after the reference center's update, batch-norm statistics included.
    velocity: the server's momentum. kept: what each center remembers (M-hat), by center name.
    """

    round: int
    weights: Mapping[str, Tensor]
    velocity: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    def to(self, device: torch.device) -> State:
        """The same state with weights and velocity on a device; what centers keep stays on the CPU."""
        weights = {k: v.to(device) for k, v in self.weights.items()}
        velocity = {k: v.to(device) for k, v in self.velocity.items()}
        return State(self.round, weights, velocity, self.kept)
