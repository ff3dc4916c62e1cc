"""Long work, such as decoding images, reports its progress here. A listener may display it, but none is
needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, how much there is)."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Within this context, `tell` calls the listener. The listener may raise an error to stop the work."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(what: str, done: int, total: int) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)
