"""Forward passes without gradients (pseudo-labels, tests, batch-norm statistics), replayed if they recur.

A GPU finishes such a pass faster than the host can launch its hundreds of kernels one by one. Each new shape
also costs a first use of its kernels, which takes a second or more for a deep network. So batches come in few
sizes (`eager.batches`), and each size is a captured graph from its second batch on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmt.engines.clock import logged
from fedmt.engines.graphs.capturing import captured, never_waiting

log = logging.getLogger(__name__)

Pass = Callable[[Tensor], Tensor]

SIZES = 32
"""Maximum number of captured passes. Others run kernel by kernel."""


@dataclass(frozen=True, eq=False)
class _Captured:
    batch: Tensor
    out: Tensor
    graph: torch.cuda.CUDAGraph


class Passes:
    """The passes of one model. On a CPU, nothing is captured."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: dict[Hashable, _Captured | None] = {}
        """None: seen once, or not to be captured."""
        self._refused: set[Hashable] = set()
        if device.type == "cuda":
            # All passes share memory: they run one after the other, and their results are copied.
            self._stream, self._pool = torch.cuda.Stream(device, priority=-1), torch.cuda.graph_pool_handle()

    def __call__(self, name: Hashable, function: Pass, batch: Tensor) -> Tensor:
        """function(batch). name: identifies what the function computes, and in which mode of the model."""
        key = (name, batch.shape, batch.dtype)
        found = self._known.get(key)
        if found is None:
            if key not in self._known or key in self._refused or self.device.type != "cuda":
                self._known[key] = None
                return function(batch)
            return self._capture(key, function, batch)
        found.batch.copy_(batch)
        found.graph.replay()
        return found.out.clone()

    def _capture(self, key: Hashable, function: Pass, batch: Tensor) -> Tensor:
        """Runs the pass. If it can be captured, the next passes of this shape are replays."""
        if len(self._known) - len(self._refused) > SIZES:
            self._refused.add(key)
            return function(batch)
        own, outs = batch.clone(), []
        try:
            with never_waiting():
                plain = function(own)
            with logged(f"captured a pass {key}"):
                torch.cuda.current_stream(self.device).synchronize()
                graph = captured(lambda: outs.append(function(own)), self._stream, self._pool)
                graph.replay()
            # A pass that depends on what only the host knows gives a different result when it is replayed.
            if not torch.allclose(outs[0], plain, rtol=0.05, atol=0.05, equal_nan=True):
                raise RuntimeError("a replay gives a different result")
        except Exception as error:  # the user's own network may do anything; this is only slower
            log.debug("not captured: %s: %s", key, error)
            self._refused.add(key)
            return function(batch)
        self._known[key] = _Captured(own, outs[0], graph)
        return plain
