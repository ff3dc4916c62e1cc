"""The SGD step: its definition, `sgd_step`, and `FlatSGD`, which performs it in place on one flat vector.

Every other version is an optimization of `sgd_step` and is tested against it (tests/engines/test_sgd.py):

    FlatSGD.step        all parameters as one vector, in place             trainer.py, step by step
    flat.update         on the parts of such a vector, rate on the device  worker.py, side by side
    triton_sgd.update   the same as one kernel                             worker.py, on CUDA

It replaces `torch.optim.SGD` and `clip_grad_norm_` only for speed. These visit the parameters one by one,
which took 4% of a step of a small network on a CPU. In a `FlatSGD`, all parameters are views of one vector,
and so are all gradients. A step is a handful of operations for any number of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedmt.core.errors import FedmtError


class Step(NamedTuple):
    """The result of a step: the next weights and velocity, and the gradient after clipping."""

    weights: Tensor
    velocity: Tensor
    clipped: Tensor


def sgd_step(
    weights: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    rate: float | Tensor,
    momentum: float,
    nesterov: bool,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    norm: Tensor | None = None,
    correction: Tensor | None = None,
    proximal: float = 0.0,
    anchor: Tensor | None = None,
) -> Step:
    """Applies, in this order: clipping, the strategy's terms, weight decay, momentum (Nesterov or not), step.

        g <- g * min(1, clip / |g|)
        g <- g + correction + mu * (w - w_0) + weight_decay * w
        v <- momentum * v + g
        w <- w - rate * (g + momentum * v  if nesterov else  v)

    Without correction (SCAFFOLD) and mu (FedProx) it equals torch's. All tensors have one shape and type, and
    none is changed. clip: 0 means no clipping. norm: |g|, if the gradient is a part of a longer one.
    proximal, anchor: mu and w_0.
    """
    g = gradient
    if clip > 0:
        length = torch.linalg.vector_norm(g) if norm is None else norm
        g = g * (clip / (length + 1e-6)).clamp_max(1.0)
    clipped = g
    if correction is not None:
        g = g + correction
    if anchor is not None:
        g = g + proximal * (weights - anchor)
    if weight_decay > 0:
        g = g + weight_decay * weights
    velocity = momentum * velocity + g
    return Step(weights - rate * (g + momentum * velocity if nesterov else velocity), velocity, clipped)


class FlatSGD:
    """`sgd_step` in place. Rebinds the parameters to views of `weights`, in their own memory layout."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        if len({p.dtype for p in trained.values()}) != 1:
            raise FedmtError("model.backbone: it needs trainable parameters, all of one type.")
        size = sum(p.numel() for p in trained.values())
        like = next(iter(trained.values()))
        self.weights = torch.empty(size, dtype=like.dtype, device=like.device)
        self.gradient = torch.zeros_like(self.weights)
        self.velocity = torch.zeros_like(self.weights)
        self._places: dict[str, tuple[torch.Size, tuple[int, ...], int]] = {}
        offset = 0
        for name, parameter in trained.items():
            if parameter.dim() != 4:  # `channels_last` has already made tensors of four dimensions dense
                parameter.data = parameter.data.contiguous()
            # as_strided keeps the layout, which a plain reshape of the slice would lose.
            place = self._places[name] = (parameter.shape, parameter.stride(), offset)
            view = self.weights.as_strided(*place)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.gradient.as_strided(*place)
            offset += parameter.numel()
        self.restart()

    def restart(
        self, proximal: float = 0.0, correction: Mapping[str, Tensor] | None = None, measure: bool = False
    ) -> None:
        """Resets the momentum, because every center begins a round without it, and sets the strategy's terms.

        proximal: mu, with the current weights as w_0. correction: by parameter, 0 if there is none.
        measure: whether to sum the clipped gradients, for `mean_gradient`.
        """
        self.velocity.zero_()
        self._proximal = proximal
        self._anchor = self.weights.clone() if proximal > 0 else None
        self._correction: Tensor | None = None
        if correction:
            self._correction = torch.zeros_like(self.weights)
            for name, value in correction.items():
                self._correction.as_strided(*self._places[name]).copy_(value)
        self._sum = torch.zeros_like(self.weights) if measure else None
        self._steps = 0

    def mean_gradient(self) -> dict[str, Tensor]:
        """For each parameter, the mean of the clipped gradients over the steps since `restart`."""
        assert self._sum is not None
        mean = self._sum / max(self._steps, 1)
        return {name: mean.as_strided(*place).clone() for name, place in self._places.items()}

    @torch.no_grad()
    def step(self, rate: float, momentum: float, nesterov: bool, weight_decay: float, clip: float) -> None:
        """`sgd_step` with the gradient accumulated by backward, which is then reset to zero."""
        gradient, velocity = self.gradient, self.velocity
        if clip > 0:
            gradient.mul_((clip / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp_max(1.0))
        if self._sum is not None:
            self._sum.add_(gradient)
            self._steps += 1
        if self._correction is not None:
            gradient.add_(self._correction)
        if self._anchor is not None:
            gradient.add_(self.weights - self._anchor, alpha=self._proximal)
        gradient.add_(self.weights, alpha=weight_decay)
        velocity.mul_(momentum).add_(gradient)
        if nesterov:
            self.weights.add_(gradient.add_(velocity, alpha=momentum), alpha=-rate)
        else:
            self.weights.add_(velocity, alpha=-rate)
        gradient.zero_()
