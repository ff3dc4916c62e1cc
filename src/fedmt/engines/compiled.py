"""The network of a training step, compiled by `torch.compile`, where a run asks for it.

The weights are arguments of what is compiled, so that all workers share one compilation, and torch keeps it
on disk for the next run. It fuses what lies between the convolutions: batch norm, activations, additions.
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


class Compiled:
    """model: the module whose code is compiled. The weights are those of each worker's own copy."""

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
                except Exception as error:  # torch's compiler raises many kinds of errors
                    self.give_up(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
            plain: Tensor = model(views)
            return plain

        return run

    def give_up(self, reason: object) -> None:
        """Switches to the uncompiled network from now on."""
        self.failed = True
        warnings.warn(
            f"The network is not compiled ({reason}). Training is slower, with the same results.",
            stacklevel=2,
        )

    def _run(self, tensors: Mapping[str, Tensor], views: Tensor) -> Tensor:
        result: Tensor = functional_call(self._model, dict(tensors), (views,))
        return result


def compiled(model: nn.Module, training: Training, wanted: bool) -> Compiled | None:
    """What compiles the network, or None if it should run as it is.

    Not with running batch-norm averages, which a compiled network would write to the arguments.
    """
    return Compiled(model) if wanted and training.batch_norm != "running" else None
