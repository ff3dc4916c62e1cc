"""Batch norm, a residual sum and an activation, as two kernels each way.

torch passes over the memory once for each of the three, and several times for the first. Here, the first
kernel of a direction computes sums over parts of the rows, and the second adds up the parts and writes the
result. Up to 2048 rows, one kernel is enough, because a program holds all rows of a few channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedmt.backbones.kernels import normalizing_kernels as kernels

ROWS, CHANNELS, PARTS, WARPS = 128, 32, 64, 8
"""The size of a tile, the number of parts that are added up at once, and the number of warps of a program."""

WHOLE = {512: (16, 8), 2048: (8, 16)}
"""Tiles of one-kernel variants. For each number of rows: the number of channels, and of warps."""

LARGEST = 1 << 31
"""Tensors with this many numbers are too large: a place in them is a number of 32 bits."""

MOST_ROWS = 65_535 * ROWS
"""A device takes this many programs next to each other, each with the rows of at least one tile."""

Bounds = tuple[float, float]
UNBOUNDED: Bounds = (-math.inf, math.inf)


def table(tensor: Tensor) -> tuple[int, int]:
    """Number of rows and channels of a tensor [N, C, H, W] in `channels_last` layout, or [N, C]."""
    return tensor.numel() // tensor.shape[1], tensor.shape[1]


def laid_out(tensor: Tensor) -> Tensor:
    """The tensor in the layout of a table."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor.contiguous()


def vector(channels: int) -> int:
    """How many numbers can be loaded at once."""
    return 8 if channels % 8 == 0 else 1


def division(rows: int, columns: int) -> tuple[int, int, int]:
    """How many rows a program takes in the first kernel, how many parts that makes, and how many rows a
    program takes in the second kernel. columns: the number of tiles next to each other.

    Enough programs to fill the device, but the more parts there are, the more each program has to add up.
    """
    tiles = -(-rows // ROWS)
    parts = min(tiles, max(64, min(tiles // 8, 256)), max(512 // columns, 16))
    span = -(-tiles // parts) * ROWS
    parts = -(-rows // span)
    reach = max(-(-parts // 32), min(tiles * columns // 512, 16)) * ROWS
    return span, parts, reach


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float, bounds: Bounds
) -> tuple[Tensor, Tensor]:
    """bounded((x - mean) / deviation * weight + bias + residual), and [2, C]: mean and 1 / deviation."""
    rows, channels = table(x)
    y = torch.empty_like(x)
    saved = torch.empty(2, channels, dtype=torch.float32, device=x.device)
    other, adds = (x, 0) if residual is None else (residual, 1)
    per = vector(channels)
    groups = channels // per
    whole = next((size for size in WHOLE if rows <= size), None)
    if whole is not None:
        width, warps = WHOLE[whole]
        kernels.normalize_whole[(-(-channels // width),)](
            x, other, y, weight, bias, saved, rows, groups, adds, epsilon, *bounds,
            VECTOR=per, ROWS=whole, CHANNELS=width, num_warps=warps,
        )  # fmt: skip
        return y, saved
    columns = -(-channels // CHANNELS)
    span, parts, reach = division(rows, columns)
    partial = torch.empty(2, parts, channels, dtype=torch.float32, device=x.device)
    kernels.moments[(columns, parts)](
        x, partial, rows, groups, span, parts, VECTOR=per, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=WARPS
    )
    kernels.normalize[(columns, -(-rows // reach))](
        x, other, y, weight, bias, partial, saved, rows, groups, span, parts, reach, adds, epsilon, *bounds,
        VECTOR=per, ROWS=ROWS, CHANNELS=CHANNELS, PARTS=PARTS, num_warps=WARPS,
    )  # fmt: skip
    return y, saved


def backward(
    dy: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, saved: Tensor, bounds: Bounds
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and of the residual, and [2, C]: those of the weight and the bias.

    y: the result, if there was a residual before an activation. Without it, the mask follows from x.
    """
    rows, channels = table(x)
    dx = torch.empty_like(x)
    found = torch.empty(2, channels, dtype=torch.float32, device=x.device)
    masked = dy if y is None else torch.empty_like(x)
    seen, adds = (x, 0) if y is None else (y, 1)
    per = vector(channels)
    groups = channels // per
    whole = next((size for size in WHOLE if rows <= size), None)
    if whole is not None:
        width, warps = WHOLE[whole]
        kernels.gradient_whole[(-(-channels // width),)](
            dy, x, seen, masked, dx, weight, bias, saved, found, rows, groups, adds, *bounds,
            VECTOR=per, ROWS=whole, CHANNELS=width, num_warps=warps,
        )  # fmt: skip
        return dx, masked, found
    columns = -(-channels // CHANNELS)
    span, parts, reach = division(rows, columns)
    partial = torch.empty(2, parts, channels, dtype=torch.float32, device=x.device)
    kernels.gradient_sums[(columns, parts)](
        dy, x, seen, masked, weight, bias, saved, partial, rows, groups, span, parts, adds, *bounds,
        VECTOR=per, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    left = bounds if y is None else UNBOUNDED  # the gradient is already masked
    kernels.gradient[(columns, -(-rows // reach))](
        masked, x, dx, weight, bias, saved, partial, found, rows, groups, parts, reach, *left,
        VECTOR=per, ROWS=ROWS, CHANNELS=CHANNELS, PARTS=PARTS, num_warps=WARPS,
    )  # fmt: skip
    return dx, masked, found


def normalized(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float, bounds: Bounds
) -> tuple[Tensor, Tensor]:
    """`forward` with its gradients. x and residual are in the layout of a table and have the same type."""
    found: tuple[Tensor, Tensor] = _Normalized.apply(x, residual, weight, bias, epsilon, bounds)  # type: ignore[no-untyped-call]
    return found


def normalized_by(
    mean: Tensor,
    variance: Tensor,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    bounds: Bounds,
) -> Tensor:
    """The same by known statistics instead of those of the batch, and without gradients."""
    rows, channels = table(x)
    y = torch.empty_like(x)
    other, adds = (x, 0) if residual is None else (residual, 1)
    per, columns = vector(channels), -(-channels // CHANNELS)
    reach = division(rows, columns)[2]
    with torch.cuda.device_of(x):
        kernels.normalize_known[(columns, -(-rows // reach))](
            x, other, y, weight, bias, mean, variance, rows, channels // per, reach, adds, epsilon, *bounds,
            VECTOR=per, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=WARPS,
        )  # fmt: skip
    return y


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        bounds: Bounds,
    ) -> tuple[Tensor, Tensor]:
        with torch.cuda.device_of(x):
            y, saved = forward(x, residual, weight, bias, epsilon, bounds)
        needs_y = residual is not None and bounds != UNBOUNDED
        ctx.save_for_backward(x, y if needs_y else None, weight, bias, saved)
        ctx.bounds, ctx.added = bounds, residual is not None
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)  # or torch would fill a gradient of `saved` with zeros
        return y, saved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, saved = ctx.saved_tensors
        # A hook may have stored them elsewhere, and in another layout.
        x, y = laid_out(x), None if y is None else laid_out(y)
        with torch.cuda.device_of(x):
            dx, other, found = backward(laid_out(dy), x, y, weight, bias, saved, ctx.bounds)
        return (
            dx,
            other if ctx.added else None,
            found[0].to(weight.dtype),
            found[1].to(bias.dtype),
            None,
            None,
        )
