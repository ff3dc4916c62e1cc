"""Could ten centers train as one network, with grouped convolutions?

Each center has its own weights, so ten centers in one network are ten groups of channels. The benchmark times
the convolutions of a step (100 views in bfloat16, with cuDNN's search for the fastest algorithm): one center
alone, ten centers as one grouped convolution, and, as the best case, one center with ten times the batch.

    python benchmarks/grouped_convolutions.py

Measured 2026-11-18 on one NVIDIA H200, torch 2.11.0, in microseconds (forward, gradient of the input, and
gradient of the weight):

    channels, pixels    one center          ten as groups         batch x 10
     64, 16             13.1  11.7  18.8     50.6  49.7  51.8     50.8  47.5  51.0
    128,  8              9.7  12.3  15.5     35.1  33.3  37.2     33.8  33.8  44.0
    256,  4             13.2  11.9  10.5     51.9  40.8  33.4     30.2  29.8  42.5
    512,  2             13.3  16.2  11.3     97.3  70.7 105.2     37.7  41.0  36.2
     64, 32             25.8  24.9  31.2    157.2 155.8 185.8    160.4 158.4 158.7
    128, 16             19.4  18.9  28.4    111.7 110.9 124.8    107.1 107.3 114.8

So in ResNet18 (the first four rows), ten convolutions take 97 to 188 us one after the other, and 33 to 105 us
as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from graphed import graphed

SHAPES = ((64, 16), (128, 8), (256, 4), (512, 2), (64, 32), (128, 16))
"""Channels and pixels of the 3 x 3 convolutions of ResNet18 at 32 pixels, and of larger ones."""


def microseconds(function: Callable[[], object], times: int = 20) -> float:
    def step() -> None:
        function()

    replay = graphed(step)
    replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times * 1e6


def measured(batch: int, channels: int, pixels: int, groups: int) -> list[float]:
    """Forward, gradient of the input, gradient of the weight."""

    def made(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return values.contiguous(memory_format=torch.channels_last)

    x = made(batch, channels * groups, pixels, pixels)
    weight = made(channels * groups, channels, 3, 3)
    dy = torch.randn_like(x)

    def backward(wanted: list[bool]) -> object:
        options = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups, wanted)
        return torch.ops.aten.convolution_backward(dy, x, weight, None, *options)

    functions = (
        lambda: F.conv2d(x, weight, padding=1, groups=groups),
        lambda: backward([True, False, False]),
        lambda: backward([False, True, False]),
    )
    return [microseconds(function) for function in functions]


def main() -> None:
    torch.backends.cudnn.benchmark = True
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for channels, pixels in SHAPES:
        cases = (100, 1), (100, 10), (1000, 1)
        times = [measured(batch, channels, pixels, groups) for batch, groups in cases]
        shown = "   ".join(" ".join(f"{t:6.1f}" for t in each) for each in times)
        print(f"{channels:4d} channels, {pixels:2d} pixels   {shown}", flush=True)


if __name__ == "__main__":
    main()
