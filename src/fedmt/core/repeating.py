"""A short computation that is repeated many times, as in expectation maximization: on a GPU, a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

Pool = Any
"""The result of `torch.cuda.graph_pool_handle`. torch has no public type for it."""

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
    inside = torch.cuda.Stream(device)  # the default stream cannot be captured
    inside.wait_stream(torch.cuda.current_stream(device))
    graph = graph_of(step, inside, _last[device].pool() if device in _last else None)
    for _ in range(times - 1):
        graph.replay()
    _last[device] = graph


def graph_of(function: Callable[[], object], stream: torch.cuda.Stream, pool: Pool) -> torch.cuda.CUDAGraph:
    """The graph of what the function launches. The function must have been called before and must never wait.

    pool: where its memory comes from; None for a new pool.
    """
    graph = torch.cuda.CUDAGraph()
    # If other graphs were garbage-collected right now, they would end the capture.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            # Only for this thread, because another may wait for the device in the meantime.
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                function()
            except Exception:
                with suppress(Exception):  # the function's own error is more informative
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    return graph
