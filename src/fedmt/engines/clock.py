"""Where a round's time goes, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds by phase since `restart`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def restart(self) -> None:
        self.seconds = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the seconds spent inside."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
