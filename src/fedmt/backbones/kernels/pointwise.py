"""1x1 convolutions as matrix products: in `channels_last` layout, the images are a table already.

cuDNN prepares a plan for each new shape of a convolution, which takes longer than choosing a matrix product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedmt.backbones.kernels.normalizing import laid_out


def _table(images: Tensor) -> Tensor:
    """[N, C, H, W] in `channels_last` layout as [N H W, C], without a copy."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])


def _images(table: Tensor, like: Tensor) -> Tensor:
    """[N H W, C] as [N, C, H, W], with the other sizes of `like`."""
    return table.view(len(like), *like.shape[2:], -1).permute(0, 3, 1, 2)


def pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, C, H, W] in `channels_last` layout and weight [K, C, 1, 1] of the same type to [N, K, H, W].

    The gradient of the weight has the weight's strides, as cuDNN's has. torch copies gradients with other
    strides one by one (`FlatModel.take`).
    """
    y: Tensor = _Pointwise.apply(x, weight)  # type: ignore[no-untyped-call]
    return y


class _Pointwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _images(_table(x) @ weight.flatten(1).t(), x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = _table(laid_out(dy))
        dx = found = None
        if ctx.needs_input_grad[0]:
            dx = _images(rows @ weight.flatten(1), x)
        if ctx.needs_input_grad[1]:
            found = (rows.t() @ _table(x)).as_strided(weight.shape, weight.stride())
        return dx, found
