"""Sends batches to the device, ahead of their use if they come from host memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


def sent(batches: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Batches on a device. Those that go from host memory to a GPU are pinned ahead of time, while another
    one is used."""
    from_host = device.type == "cuda" and batches[0].device.type == "cpu"
    for batch in ahead(Tensor.pin_memory, batches) if from_host else batches:
        yield batch.to(device, non_blocking=from_host)


def ahead(function: Callable[[Item], Tensor], items: Sequence[Item]) -> Iterator[Tensor]:
    """The results of a function for each item, in order. A thread computes two ahead."""
    with ThreadPoolExecutor(1) as thread:
        coming: deque[Future[Tensor]] = deque()
        for place in range(len(items) + 2):
            if place < len(items):
                coming.append(thread.submit(function, items[place]))
            if place >= 2 and coming:
                yield coming.popleft().result()
