"""The network of a training step, compiled by `torch.compile`, for runs that are long enough to pay for it.

The weights are arguments of what is compiled, so that all workers share one compilation, and torch keeps it
on disk for the next run. It fuses what lies between the convolutions (batch norm, activations, additions),
which takes as long as they do for small images.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedmt.core import static_bn
from fedmt.methods.training import Training

LONG = 300
"""Rounds from which compiling pays for itself, even the first time
(docs/development/performance-diary.md)."""


class Compiled:
    """model: whose code is compiled; the weights are those of each worker's own copy."""

    def __init__(self, model: nn.Module) -> None:
        self._model = copy.deepcopy(model)
        static_bn.set_static(self._model, True)
        self._model.train()
        self._function = torch.compile(self._run, dynamic=False)
        self.failed = False

    def of(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """A copy of the model as a function of the views."""
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}

        def run(views: Tensor) -> Tensor:
            if not self.failed:
                try:
                    result: Tensor = self._function(tensors, views)
                    return result
                except Exception as error:  # torch's compiler has many
                    self.give_up(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
            plain: Tensor = model(views)
            return plain

        return run

    def give_up(self, reason: object) -> None:
        """From now on the network runs as it is."""
        self.failed = True
        warnings.warn(f"The network is not compiled ({reason}): slower, the same results.", stacklevel=2)

    def _run(self, tensors: Mapping[str, Tensor], views: Tensor) -> Tensor:
        result: Tensor = functional_call(self._model, dict(tensors), (views,))
        return result


def compiled(
    model: nn.Module, training: Training, device: torch.device, wanted: bool | None
) -> Compiled | None:
    """What compiles the network, or None. wanted: None means where it pays for itself.

    Not with running batch-norm averages, which a compiled network would write to the arguments, nor with
    several heads, of which the active one is not an argument.
    """
    if wanted is None:
        wanted = device.type == "cuda" and training.rounds >= LONG
    return Compiled(model) if wanted and training.batch_norm != "running" else None
