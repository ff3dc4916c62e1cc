"""Measures where a round's time goes, by phase."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

log = logging.getLogger(__name__)


@contextmanager
def logged(what: str) -> Iterator[None]:
    """Logs what was done within this context and how long it took, to analyze start-up time
    (benchmarks/startup.py)."""
    if not log.isEnabledFor(logging.DEBUG):
        yield
        return
    begin = time.perf_counter()
    yield
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    log.debug("%.3f s  %s", time.perf_counter() - begin, what)


class Clock:
    """Seconds by phase since `restart`. The time of a nested phase does not count for the outer one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def restart(self) -> None:
        self.seconds, self._inner = {}, [0.0]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the seconds spent within this context."""
        begin = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            if self.device.type == "cuda":
                # Only this stream, because others may be training centers at the same time.
                torch.cuda.current_stream(self.device).synchronize()
            spent = time.perf_counter() - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner.pop()
            self._inner[-1] += spent
