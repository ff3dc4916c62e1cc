"""Captures a step as one CUDA graph, for the ceilings in benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import torch


def graphed(step: Callable[[], None]) -> Callable[[], None]:
    """Returns the captured step for replay. Three calls before the capture create everything on first use."""
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
