"""Work that is launched once and then replayed: a CUDA graph of a function's kernels."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

Pool = Any
"""The result of `torch.cuda.graph_pool_handle`. torch has no public type for it."""


def captured(function: Callable[[], object], stream: torch.cuda.Stream, pool: Pool) -> torch.cuda.CUDAGraph:
    """The graph of what the function launches. The function must have been called before and must never wait.

    `torch.cuda.graph` would empty the caches of memory every time, which waits for all running work. Here
    they are emptied only if memory may run out, because a capture cannot reclaim cached memory.
    """
    free, total = torch.cuda.mem_get_info(stream.device)
    if free < total / 4:
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    # If an older engine's graphs were garbage-collected right now, they would end the capture.
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


@contextmanager
def never_waiting() -> Iterator[None]:
    """Within this context, waiting for the device is an error, because a captured function could not wait
    either."""
    with warnings.catch_warnings(action="ignore"):  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
