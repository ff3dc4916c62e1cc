"""The first convolution of a network for images: few input channels, a 3x3 or 7x7 filter, stride 1 or 2.

cuDNN fills the three channels of an image up with zeros, and then takes as long as for a layer with twenty
times the work. Here, a program gathers the pixels under the filter as the rows of a matrix product. There are
no gradients of the images, because nobody needs them in training. Sums are added up in a fixed order, so
results are the same in every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedmt.backbones.kernels.depthwise import NUMBERS, PARTS, _add_up
from fedmt.backbones.kernels.normalizing import laid_out, vector
from fedmt.core.kernels import jit, tl

ROWS, OUTPUTS, WARPS = 128, 64, 4
"""The size of a tile of the results, in places and channels, and the number of warps of a program."""

MOST_PARTS = 256
"""The number of parts that are added up for the gradient of the filters."""

MOST_INPUTS = 4
"""From more channels on, cuDNN is as fast."""

KIND = None if tl is None else tl.bfloat16
"""What is multiplied. Triton's interpreter cannot multiply this type, so tests with it set another."""

_SIZES = ("groups", "down", "across", "height", "width", "source_height", "source_width", "stride")


@jit()
def _tap(number, SIZE: tl.constexpr, INPUTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Line, column and channel of a number of the filter. They follow each other as in an image."""
    return number // (SIZE * INPUTS), number // INPUTS % SIZE, number % INPUTS


@jit()
def _places(tile, down, across, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The image of a tile, and the line and column of its places. down, across: the tiles of an image.

    A tile is several lines of one image, `WIDTH` places wide, so that no place has to be divided.
    """
    place = tl.arange(0, ROWS)
    image, rest = tile // (down * across), tile % (down * across)
    line = rest // across * (ROWS // WIDTH) + place // WIDTH
    return image, line, rest % across * WIDTH + place % WIDTH


@jit()
def _pixels(  # type: ignore[no-untyped-def]
    x, image, line, column, inside, tap, height, width, stride, SIZE: tl.constexpr, INPUTS: tl.constexpr
):
    """What each number of the filter is multiplied by at each place of the result, 0 outside the image."""
    i, j, channel = _tap(tap, SIZE, INPUTS)
    h, w = line * stride + i - SIZE // 2, column * stride + j - SIZE // 2
    exists = inside & (i < SIZE) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    at = ((image * height + h) * width + w) * INPUTS + channel
    return tl.load(x + at, mask=exists, other=0.0).to(tl.bfloat16)


@jit(counts=(*_SIZES, "s0", "s1", "s2", "s3"), unaligned=("x", "weight"))
def _filter(  # type: ignore[no-untyped-def]
    x, weight, y, groups, down, across, height, width, source_height, source_width, stride, s0, s1, s2, s3,
    VECTOR: tl.constexpr, SIZE: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """y [N, height, width, outputs]. s0 to s3: the strides of the weight."""
    outputs = groups * VECTOR
    image, line, column = _places(tl.program_id(0), down, across, ROWS, WIDTH)
    inside = ((line < height) & (column < width))[:, None]
    output = (tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS))[None, :]
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, SIZE * SIZE * INPUTS, TAPS):
        tap = start + tl.arange(0, TAPS)
        pixels = _pixels(
            x, image, line[:, None], column[:, None], inside, tap[None, :], source_height, source_width,
            stride, SIZE, INPUTS,
        )  # fmt: skip
        i, j, channel = _tap(tap[:, None], SIZE, INPUTS)
        at = output * s0 + channel * s1 + i * s2 + j * s3
        factor = tl.load(weight + at, mask=(i < SIZE) & (output < outputs), other=0.0)
        total = tl.dot(pixels.to(KIND), factor.to(KIND), total)
    at = ((image * height + line) * width + column)[:, None] * outputs + output
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside & (output < outputs))


@jit(counts=(*_SIZES, "tiles", "span", "s0", "s1", "s2", "s3"), unaligned=("x",))
def _filter_gradient(  # type: ignore[no-untyped-def]
    x, dy, partial, groups, down, across, height, width, source_height, source_width, stride, tiles, span,
    s0, s1, s2, s3, VECTOR: tl.constexpr, SIZE: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The gradient of the weight from `span` tiles of dy: partial [parts, numbers of the weight]."""
    outputs = groups * VECTOR
    tap = (tl.program_id(0) * TAPS + tl.arange(0, TAPS))[:, None]
    output = (tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS))[None, :]
    part = tl.program_id(2)
    total = tl.zeros([TAPS, OUTPUTS], tl.float32)
    for tile in range(part * span, tl.minimum(part * span + span, tiles)):
        image, line, column = _places(tile, down, across, ROWS, WIDTH)
        inside = (line < height) & (column < width)
        pixels = _pixels(
            x, image, line[None, :], column[None, :], inside[None, :], tap, source_height, source_width,
            stride, SIZE, INPUTS,
        )  # fmt: skip
        at = ((image * height + line) * width + column)[:, None] * outputs + output
        gradient = tl.load(dy + at, mask=inside[:, None] & (output < outputs), other=0.0)
        total = tl.dot(pixels.to(KIND), gradient.to(KIND), total)
    i, j, channel = _tap(tap, SIZE, INPUTS)
    at = part * outputs * SIZE * SIZE * INPUTS + output * s0 + channel * s1 + i * s2 + j * s3
    tl.store(partial + at, total, mask=(i < SIZE) & (output < outputs))


class Division(NamedTuple):
    """How a result y [N, K, H, W] is divided into tiles."""

    tiles: int
    numbers: tuple[int, ...]
    options: dict[str, Any]


def division(weight: Tensor, y: Tensor, x: Tensor, stride: int) -> Division:
    (count, outputs, height, width), (_, inputs, size, _) = y.shape, weight.shape
    across = min(1 << (width - 1).bit_length(), ROWS)
    columns, lines = -(-width // across), -(-height * across // ROWS)
    per = vector(outputs)
    numbers = (outputs // per, lines, columns, height, width, *x.shape[2:], stride)
    options = {"VECTOR": per, "SIZE": size, "INPUTS": inputs, "ROWS": ROWS, "WIDTH": across}
    options |= {"OUTPUTS": 32 if outputs <= 32 else OUTPUTS, "TAPS": 16 if inputs * size * size <= 16 else 32}
    return Division(count * lines * columns, numbers, {**options, "KIND": KIND, "num_warps": WARPS})


def filtered(x: Tensor, weight: Tensor, y: Tensor, stride: int) -> Tensor:
    """Writes y, the convolution of x."""
    tiles, numbers, options = division(weight, y, x, stride)
    _filter[(tiles, -(-len(weight) // options["OUTPUTS"]))](
        x, weight, y, *numbers, *weight.stride(), **options
    )
    return y


def filter_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    tiles, numbers, options = division(weight, dy, x, stride)
    outputs, size = len(weight), weight.numel()
    span = -(-tiles // MOST_PARTS)
    parts = -(-tiles // span)
    partial = torch.empty(parts, size, dtype=torch.float32, device=x.device)
    grid = -(-size // (outputs * options["TAPS"])), -(-outputs // options["OUTPUTS"]), parts
    _filter_gradient[grid](x, dy, partial, *numbers, tiles, span, *weight.stride(), **options)
    total = torch.empty_like(weight)
    _add_up[(-(-size // NUMBERS),)](partial, total, parts, size, PARTS=PARTS, NUMBERS=NUMBERS, num_warps=4)
    return total


def stem(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """x [N, C, H, W] in `channels_last` layout, of any type, and weight [K, C, 3, 3] or [K, C, 7, 7] in
    bfloat16, in one piece of memory, to [N, K, H/stride, W/stride] in bfloat16, rounded up."""
    y: Tensor = _Stem.apply(x, weight, stride)  # type: ignore[no-untyped-call]
    return y


class _Stem(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        height, width = ((size - 1) // stride + 1 for size in x.shape[2:])
        y = weight.new_empty((len(x), height, width, len(weight))).permute(0, 3, 1, 2)
        with torch.cuda.device_of(x):
            return filtered(x, weight, y, stride)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x = laid_out(x)  # a hook may have stored it in another layout
        with torch.cuda.device_of(x):
            return None, filter_gradient(laid_out(dy), x, weight, ctx.stride), None
