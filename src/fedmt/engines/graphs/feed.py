"""Samples that stay in host memory. They are gathered ahead of their steps and sent when these are launched.

A worker's chunk of steps reads its samples from a slot on the device. While one chunk trains, threads gather
the samples of the next two, from memory or from a memory-mapped file, into pinned memory. The launching
thread then finds them ready, and the copy to the device does not involve the host. The copy is placed on the
worker's own stream. It takes about a hundredth of the time of the steps that follow, and the other workers'
steps run in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

AHEAD = 2
"""Number of chunks that are gathered ahead of the launched one."""


class Stage:
    """A place in host memory for the samples of one chunk. It is pinned if they are sent to a GPU."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.samples = torch.zeros(tuple(shape), dtype=dtype, pin_memory=device.type == "cuda")
        self._sent: torch.cuda.Event | None = None

    def gather(self, samples: Tensor, index: Tensor) -> None:
        """Runs in a separate thread: waits until the last samples have left, then takes the next.

        samples: [N, ...] of the center. index: [count, ...], positions among them.
        """
        if self._sent is not None:
            self._sent.synchronize()
        count = len(index)
        # numpy gathers on one thread and without the interpreter's lock, while torch would start a team of
        # threads for each of ours. With "raise", numpy copies once more, but `Feed` has already checked the
        # index.
        np.take(samples.numpy(), index.numpy(), axis=0, out=self.samples[:count].numpy(), mode="clip")

    def send(self, slot: Tensor, count: int) -> None:
        """Copies the gathered samples to the beginning of a slot, on the current stream."""
        slot[:count].copy_(self.samples[:count], non_blocking=True)
        if slot.is_cuda:
            self._sent = torch.cuda.Event(blocking=True)
            self._sent.record(torch.cuda.current_stream(slot.device))


class Feed:
    """The samples of one job, chunk by chunk. It begins to gather immediately."""

    def __init__(
        self, samples: Tensor, index: Tensor, chunk: int, stages: Sequence[Stage], threads: ThreadPoolExecutor
    ) -> None:
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(samples):
            raise IndexError(f"positions {int(index.min())} to {int(index.max())} of {len(samples)} samples")
        self._samples, self._stages, self._threads = samples, stages, threads
        self._chunks = index.cpu().split(chunk)
        self._gathered: dict[int, Future[None]] = {}
        self._next = 0
        for place in range(min(len(stages), len(self._chunks))):
            self._gather(place)

    def send(self, slot: Tensor) -> None:
        """Copies the next chunk's samples to their slot. The place they leave is filled again in the
        background."""
        place = self._next
        self._gathered.pop(place).result()
        self._stages[place % len(self._stages)].send(slot, len(self._chunks[place]))
        self._next += 1
        if place + len(self._stages) < len(self._chunks):
            self._gather(place + len(self._stages))

    def stop(self) -> None:
        """Waits for what is being gathered, so that the stages can be used by another job."""
        for future in self._gathered.values():
            if not future.cancel():
                future.result()
        self._gathered = {}

    def _gather(self, place: int) -> None:
        stage = self._stages[place % len(self._stages)]
        self._gathered[place] = self._threads.submit(stage.gather, self._samples, self._chunks[place])
