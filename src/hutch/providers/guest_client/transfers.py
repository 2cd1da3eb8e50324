"""Who watches a copy: a listener is told of the bytes of a tree's stream while they go to a box or come from it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int], None]
"""Gets the number of bytes of each piece; a thread may call it."""

_listener: ContextVar[Listener | None] = ContextVar("transfer_listener", default=None)


@contextmanager
def observed(listener: Listener) -> Iterator[None]:
    """Tell `listener` of the copies that are begun in this block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Listener:
    """Return the listener of a copy that begins now."""
    return _listener.get() or _ignore


def _ignore(count: int) -> None:
    return None
