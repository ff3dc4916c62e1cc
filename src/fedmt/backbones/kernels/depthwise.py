"""Depthwise 3x3 convolutions (padding 1, stride 1 or 2): each channel has a filter of its own.

cuDNN compiles kernels for each new shape of such a layer, which takes MobileNetV2 half a minute. Here, one
kernel serves all shapes, both strides and the gradients of the inputs, and two more compute the gradients of
the filters. Sums are added up in a fixed order, so results are the same in every run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedmt.backbones.kernels.normalizing import laid_out, table, vector
from fedmt.core.kernels import jit, tl

ROWS, CHANNELS, WARPS = 128, 32, 4
"""The size of a tile of the results, and the number of warps of a program."""

SUMMED_ROWS, PARTS, NUMBERS = 64, 64, 64
"""The size of a tile for the filters' gradients: rows, then parts and numbers that are added up at once."""


@jit()
def _source(row, height, width, source_height, source_width, up, sign, bits, down, i, j):  # type: ignore[no-untyped-def]
    """The row that place (i, j) of a filter reads for a row of the result, and whether it exists."""
    image, place = row // (height * width), row % (height * width)
    h = ((place // width) << up) + sign * (i - 1)
    w = ((place % width) << up) + sign * (j - 1)
    exists = ((h | w) & bits) == 0
    h, w = h >> down, w >> down
    exists = exists & (h >= 0) & (h < source_height) & (w >= 0) & (w < source_width)
    return (image * source_height + h) * source_width + w, exists


@jit(
    counts=(
        "rows",
        "groups",
        "height",
        "width",
        "source_height",
        "source_width",
        "up",
        "sign",
        "bits",
        "down",
    ),
    unaligned=("weight",),
)
def _filter(  # type: ignore[no-untyped-def]
    x, weight, y, rows, groups, height, width, source_height, source_width, up, sign, bits, down,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """y [rows, channels]: the sum of nine rows of x, times the filter. height, width: those of y.

    A row's place (h, w) is read at (h << up) + sign * (i - 1), then >> down if no `bits` are lost.
    """
    channels = groups * VECTOR
    column = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    kept = column < channels
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for i in range(3):  # a loop for the lines, because all nine places at once need too many registers
        for j in tl.static_range(3):
            source, exists = _source(
                row, height, width, source_height, source_width, up, sign, bits, down, i, j
            )
            inside = (exists & (row < rows))[:, None] & kept[None, :]
            value = tl.load(x + source[:, None] * channels + column[None, :], mask=inside, other=0.0)
            factor = tl.load(weight + column * 9 + i * 3 + j, mask=kept, other=0.0).to(tl.float32)
            total += value.to(tl.float32) * factor[None, :]
    inside = (row < rows)[:, None] & kept[None, :]
    at = row[:, None] * channels + column[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


@jit(counts=("rows", "groups", "height", "width", "source_height", "source_width", "up", "span"))
def _filter_gradient(  # type: ignore[no-untyped-def]
    x, dy, partial, rows, groups, height, width, source_height, source_width, up, span,
    VECTOR: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradients of one line of the filters from `span` rows of dy: partial [parts, channels, 9]."""
    channels = groups * VECTOR
    line = tl.program_id(0)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    part = tl.program_id(2)
    kept = column < channels
    last = tl.minimum(part * span + span, rows)
    left = tl.zeros([ROWS, CHANNELS], tl.float32)
    middle = tl.zeros([ROWS, CHANNELS], tl.float32)
    right = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in range(part * span, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & kept[None, :]
        at = row[:, None] * channels + column[None, :]
        gradient = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        for j in tl.static_range(3):
            source, exists = _source(row, height, width, source_height, source_width, up, 1, 0, 0, line, j)
            at = source[:, None] * channels + column[None, :]
            value = tl.load(x + at, mask=inside & exists[:, None], other=0.0).to(tl.float32)
            if j == 0:
                left += gradient * value
            elif j == 1:
                middle += gradient * value
            else:
                right += gradient * value
    at = (part * channels + column) * 9 + line * 3
    tl.store(partial + at, tl.sum(left, 0), mask=kept)
    tl.store(partial + at + 1, tl.sum(middle, 0), mask=kept)
    tl.store(partial + at + 2, tl.sum(right, 0), mask=kept)


@jit(counts=("parts", "size"))
def _add_up(partial, total, parts, size, PARTS: tl.constexpr, NUMBERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of [parts, size] over the parts."""
    number = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    found = tl.zeros([NUMBERS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & (number < size)[None, :]
        found += tl.sum(tl.load(partial + part[:, None] * size + number[None, :], inside, other=0.0), 0)
    tl.store(total + number, found.to(total.dtype.element_ty), mask=number < size)


def filtered(x: Tensor, weight: Tensor, y: Tensor, stride: int, transposed: bool) -> Tensor:
    """Writes y, the convolution of x. transposed: x is the gradient of a result, and y that of its input."""
    rows, channels = table(y)
    per, shift = vector(channels), stride - 1
    reading = (0, -1, shift, shift) if transposed else (shift, 1, 0, 0)
    _filter[(-(-channels // CHANNELS), -(-rows // ROWS))](
        x, weight, y, rows, channels // per, *y.shape[2:], *x.shape[2:], *reading,
        VECTOR=per, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return y


def filter_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    rows, channels = table(dy)
    per, columns = vector(channels), -(-channels // CHANNELS)
    tiles = -(-rows // SUMMED_ROWS)
    parts = min(tiles, max(tiles // 8, 16), max(512 // columns, 16), 256)
    span = -(-tiles // parts) * SUMMED_ROWS
    parts = -(-rows // span)
    partial = torch.empty(parts, channels, 9, dtype=torch.float32, device=x.device)
    _filter_gradient[(3, columns, parts)](
        x, dy, partial, rows, channels // per, *dy.shape[2:], *x.shape[2:], stride - 1, span,
        VECTOR=per, ROWS=SUMMED_ROWS, CHANNELS=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    total = torch.empty_like(weight)
    size = weight.numel()
    _add_up[(-(-size // NUMBERS),)](partial, total, parts, size, PARTS=PARTS, NUMBERS=NUMBERS, num_warps=4)
    return total


def depthwise(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """x [N, C, H, W] in `channels_last` layout and weight [C, 1, 3, 3] of the same type to
    [N, C, H/stride, W/stride], rounded up."""
    y: Tensor = _Depthwise.apply(x, weight, stride)  # type: ignore[no-untyped-call]
    return y


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        height, width = ((size - 1) // stride + 1 for size in x.shape[2:])
        y = x.new_empty((len(x), height, width, x.shape[1])).permute(0, 3, 1, 2)
        with torch.cuda.device_of(x):
            return filtered(x, weight, y, stride, transposed=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x, dy = laid_out(x), laid_out(dy)  # a hook may have stored x in another layout
        dx = found = None
        with torch.cuda.device_of(x):
            if ctx.needs_input_grad[0]:
                dx = filtered(dy, weight, torch.empty_like(x), ctx.stride, transposed=True)
            if ctx.needs_input_grad[1]:
                found = filter_gradient(dy, x, weight, ctx.stride)
        return dx, found, None
