"""The largest of 2 x 2 pixels, as one kernel each way.

torch's own kernels store the place of every maximum as a number of 64 bits, which takes more memory than the
samples themselves. Here, the backward pass finds it again. Of equal pixels, the first wins, as in torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedmt.backbones.kernels.normalizing import laid_out, table, vector
from fedmt.core.kernels import jit, tl

ROWS, CHANNELS, WARPS = 16, 64, 4
"""The size of a tile of the results, and the number of warps of a program."""


@jit()
def _tile(rows, width, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The places of a tile of results, those of the first of their four pixels, and which of them exist.

    width: the number of results next to each other. An image of the inputs has twice as many columns.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    first = (row // width * 4 * width + row % width * 2) * channels + column
    return row * channels + column, first, (row < rows) & (column < channels)


@jit()
def _larger(most, winner, value, number: tl.constexpr):  # type: ignore[no-untyped-def]
    """The larger of two values and the number of its pixel. Not-a-number counts as the largest."""
    more = (value > most) | (value != value)
    return tl.where(more, value, most), tl.where(more, number, winner)


@jit()
def _largest(x, first, inside, width, channels):  # type: ignore[no-untyped-def]
    """The largest of four pixels, and which one it is: 0 and 1 above, 2 and 3 below."""
    below = first + 2 * width * channels
    most = tl.load(x + first, mask=inside).to(tl.float32)
    winner = tl.zeros(most.shape, tl.int32)
    most, winner = _larger(most, winner, tl.load(x + first + channels, mask=inside).to(tl.float32), 1)
    most, winner = _larger(most, winner, tl.load(x + below, mask=inside).to(tl.float32), 2)
    return _larger(most, winner, tl.load(x + below + channels, mask=inside).to(tl.float32), 3)


@jit(counts=("rows", "width", "groups"))
def _pool(  # type: ignore[no-untyped-def]
    x, y, rows, width, groups, VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    channels = groups * VECTOR
    at, first, inside = _tile(rows, width, channels, ROWS, CHANNELS)
    most, _ = _largest(x, first, inside, width, channels)
    tl.store(y + at, most.to(y.dtype.element_ty), mask=inside)


@jit(counts=("rows", "width", "groups"))
def _gradient(  # type: ignore[no-untyped-def]
    x, dy, dx, rows, width, groups, VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    channels = groups * VECTOR
    at, first, inside = _tile(rows, width, channels, ROWS, CHANNELS)
    _, winner = _largest(x, first, inside, width, channels)
    below = first + 2 * width * channels
    gradient = tl.load(dy + at, mask=inside)
    zero = tl.zeros_like(gradient)
    tl.store(dx + first, tl.where(winner == 0, gradient, zero), mask=inside)
    tl.store(dx + first + channels, tl.where(winner == 1, gradient, zero), mask=inside)
    tl.store(dx + below, tl.where(winner == 2, gradient, zero), mask=inside)
    tl.store(dx + below + channels, tl.where(winner == 3, gradient, zero), mask=inside)


def halved(x: Tensor) -> Tensor:
    """x [N, C, H, W] in `channels_last` layout, of even height and width, to [N, C, H/2, W/2]."""
    y: Tensor = _Halved.apply(x)  # type: ignore[no-untyped-call]
    return y


def _grid(rows: int, channels: int) -> tuple[int, int]:
    return -(-rows // ROWS), -(-channels // CHANNELS)


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        count, channels, height, width = x.shape
        y = x.new_empty((count, height // 2, width // 2, channels)).permute(0, 3, 1, 2)
        rows, per = table(y)[0], vector(channels)
        with torch.cuda.device_of(x):
            _pool[_grid(rows, channels)](
                x, y, rows, width // 2, channels // per,
                VECTOR=per, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=WARPS,
            )  # fmt: skip
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        x, dy = laid_out(x), laid_out(dy)  # a hook may have stored x in another layout
        dx = torch.empty_like(x)
        (rows, channels), per = table(dy), vector(x.shape[1])
        with torch.cuda.device_of(x):
            _gradient[_grid(rows, channels)](
                x, dy, dx, rows, dy.shape[3], channels // per,
                VECTOR=per, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=WARPS,
            )  # fmt: skip
        return dx
