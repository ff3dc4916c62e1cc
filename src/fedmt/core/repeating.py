"""A short computation that is repeated many times, as in expectation maximization."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

SMALL = 1 << 22
"""Number of values up to which the host limits a step. A captured step keeps its memory."""

_last: dict[torch.device, torch.cuda.CUDAGraph] = {}
"""The last captured step on each device. While it lives, the next capture reuses its memory."""


def repeated(step: Callable[[], None], times: int, largest: Tensor) -> None:
    """Calls `step` several times. It must change its tensors in place and never wait for the device.

    On a GPU, the host takes longer to launch a dozen small operations than the GPU to finish them. So they
    are launched once, captured once as a CUDA graph, and then replayed as one operation.

    largest: the largest tensor that the step reads.
    """
    device = largest.device
    if device.type != "cuda" or times < 3 or largest.numel() > SMALL:
        for _ in range(times):
            step()
        return
    step()
    outside, graph = torch.cuda.current_stream(device), torch.cuda.CUDAGraph()
    pool = _last[device].pool() if device in _last else None
    # If other graphs were garbage-collected right now, they would end the capture.
    collecting = gc.isenabled()
    gc.disable()
    inside = torch.cuda.Stream(device)  # the default stream cannot be captured
    inside.wait_stream(outside)
    try:
        with torch.cuda.stream(inside):
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    for _ in range(times - 1):
        graph.replay()
    _last[device] = graph
