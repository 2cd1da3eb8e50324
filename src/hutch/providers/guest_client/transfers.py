"""Listeners of a copy: each gets the byte counts of a tree's stream while it goes to a box or comes from it."""

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
