"""Limits how long the coordinator waits for the rest of an answer whose upload has begun.

A node announces an answer and then uploads its parts. `HttpGrid.pull_messages` of Flower 1.41 waits for all
of them, until minutes after the upload broke off. Meanwhile, answers of other centers would expire.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from flwr.superlink.grid import http_grid


@contextmanager
def arriving_by(deadline: float) -> Iterator[None]:
    """Within this context, an answer that is not complete at this time (`time.monotonic`) becomes an error
    message."""
    flower: Any = http_grid
    plain = flower.pull_objects
    flower.pull_objects = partial(plain, max_time=max(0.0, deadline - time.monotonic()))
    try:
        yield
    finally:
        flower.pull_objects = plain
