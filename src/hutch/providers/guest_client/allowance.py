"""How much of what a guest sends may wait in this process, for whoever asked for it.

A program that embeds Hutch holds what it asked for in its own memory. A server holds it for strangers: it sets an
allowance around each request, and every channel that is opened inside counts what it holds against it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

FREE = 64 << 10
"""Bytes of one result that are not counted: most results are smaller, and a connection's buffers hold as much."""


LARGE = 1 << 20
"""A result that has more is counted until the request has ended; a smaller one only until it is handed over, because
whoever sends it on counts it again."""


class Allowance(Protocol):
    """What one request may hold."""

    def take(self, size: int) -> None:
        """Count bytes that are here already. QuotaExceeded if there are too many; then they must be dropped."""

    def give(self, size: int) -> None:
        """These bytes are not held any more."""

    async def reserve(self, size: int) -> None:
        """Wait until so many bytes may come, and count them. QuotaExceeded if that takes too long."""


_current: ContextVar[Allowance | None] = ContextVar("hutch_allowance", default=None)


@contextmanager
def allowed(allowance: Allowance) -> Iterator[None]:
    """Channels that are opened inside, also by tasks begun inside, count against `allowance`."""
    token = _current.set(allowance)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Allowance | None:
    """The allowance of the request that is being answered; None: nobody counts."""
    return _current.get()
