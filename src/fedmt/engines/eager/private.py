"""DP-SGD (Abadi et al. 2016): the gradient of each single record is clipped, summed, and hidden in noise.

    g = ( sum_i g_i min(1, C / |g_i|)  +  sigma C xi ) / B,        xi standard normal

g_i is the gradient of the loss of record i alone, over all of its views together. One record therefore
changes the sum by at most C, whatever it contains and however it is augmented. B, the expected size of a
batch, is public. The number of records actually drawn is not used. Each record passes through the network
separately (`vmap`), so nothing, such as batch normalization, can mix it with another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedmt.core.errors import FedmtError
from fedmt.methods.work import LocalWork, Tensors

AT_ONCE = 1 << 26
"""Number of gradient values in memory at once. Each record has as many as the model has weights."""


@dataclass(frozen=True, eq=False)
class Noising:
    """clip: C. noise: sigma, the noise multiplier. expected: B. normal: returns the given number of standard
    normal numbers."""

    clip: float
    noise: float
    expected: float
    normal: Callable[[int], Tensor]


RecordLoss = Callable[[Tensors, Tensor, Tensors], Tensor]
"""Takes (parameters, the views [V, ...] of one record, its inputs) and returns the loss."""


def record_loss(model: nn.Module, work: LocalWork, tables: Tensors) -> RecordLoss:
    """The loss of one record alone, as a function of the model's trainable parameters."""

    def loss(parameters: Tensors, views: Tensor, step: Tensors) -> Tensor:
        logits: Tensor = functional_call(model, dict(parameters), (views,))
        return work.loss(logits.float(), step, tables)["loss"]

    return loss


def clipped_sum(loss: RecordLoss, parameters: Tensors, views: Tensor, steps: Tensors, clip: float) -> Tensors:
    """For each parameter, sum_i g_i min(1, C / |g_i|) over the records [n, ...] of a step."""
    totals = {name: torch.zeros_like(value) for name, value in parameters.items()}
    gradient = vmap(grad(loss), in_dims=(None, 0, 0))
    at_once = max(1, AT_ONCE // sum(value.numel() for value in parameters.values()))
    for first in range(0, len(views), at_once):
        part = slice(first, first + at_once)
        try:
            found = gradient(dict(parameters), views[part], {k: v[part] for k, v in steps.items()})
        except (RuntimeError, NotImplementedError) as error:  # the user's own network may do anything
            raise FedmtError(
                "[privacy]: the network does not support gradients of single records with torch.func.vmap "
                f"({type(error).__name__}: {error}). Use another model.backbone."
            ) from error
        for name, value in scaled_sum(found, clip).items():
            totals[name] += value
    return totals


def scaled_sum(gradients: Mapping[str, Tensor], clip: float) -> dict[str, Tensor]:
    """The same from the gradients [n, ...] of the records.

    A gradient whose length is not finite adds nothing. Otherwise a model could be designed so that a certain
    record overflows, and NaN in the update would reveal its presence.
    """
    lengths = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    finite = lengths.isfinite()
    factors = torch.where(finite, (clip / (lengths + 1e-6)).clamp_max(1.0), 0.0)
    if not bool(finite.all()):
        gradients = {
            k: torch.where(finite.view(-1, *(1,) * (g.dim() - 1)), g, 0.0) for k, g in gradients.items()
        }
    return {k: torch.tensordot(factors, g, dims=([0], [0])) for k, g in gradients.items()}


def check_apart(work: LocalWork) -> Tensor:
    """The sizes of the steps. Rejects work in which one record could see another."""
    index = work.steps["index"].flatten(1)
    if work.sizes is None or work.trainable or bool((index != index[:, :1]).any()):
        raise FedmtError(
            "[privacy]: the method's steps mix records, or train more than the model's weights. Use another "
            "method."
        )
    return work.sizes
