"""The state of a federation between two rounds. With it and the config, a run resumes exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class State:
    """round: the last finished round (0 is the warm-up at the reference center).

    weights: the model after the reference center's update, batch-norm statistics included. Layers that do not
        travel (local layers of a strategy or a method) are the reference center's own here.
    server: what the coordinating site remembers in addition, by `kind:name` (momentum, control variates, the
        shared model if the reference center has its own).
    kept: what each center remembers, by center name (M-hat; under `weights:` its local layers).
    """

    round: int
    weights: Mapping[str, Tensor]
    server: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    def to(self, device: torch.device) -> State:
        """The same state with weights and server memory on a device. What centers keep stays on the CPU."""
        weights = {k: v.to(device) for k, v in self.weights.items()}
        server = {k: v.to(device) for k, v in self.server.items()}
        return State(self.round, weights, server, self.kept)


def on_cpu(kept: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {k: v.cpu() for k, v in kept.items()}
