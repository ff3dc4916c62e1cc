"""A step as one CUDA graph, for the ceilings that benchmarks compare with."""

from __future__ import annotations

from collections.abc import Callable

import torch


def graphed(step: Callable[[], None]) -> Callable[[], None]:
    """The step, to be replayed. It is called three times before, so that everything is made on first use."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
