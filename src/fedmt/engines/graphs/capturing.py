"""Work that is launched once and then replayed: a CUDA graph of a function's kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedmt.core.repeating import Pool, graph_of


def captured(function: Callable[[], object], stream: torch.cuda.Stream, pool: Pool) -> torch.cuda.CUDAGraph:
    """`graph_of` for large work.

    `torch.cuda.graph` would empty the caches of memory every time, which waits for all running work. Here
    they are emptied only if memory may run out, because a capture cannot reclaim cached memory.
    """
    free, total = torch.cuda.mem_get_info(stream.device)
    if free < total / 4:
        torch.cuda.empty_cache()
    return graph_of(function, stream, pool)


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
