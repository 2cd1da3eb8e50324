"""Allowances: how many bytes from guests this process may hold for the requests that asked for them.

A program that embeds Hutch holds what it asked for in its own memory. A server holds it for strangers: it sets an
allowance around each request, and every channel that is opened inside counts what it holds against it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

FREE = 64 << 10
"""The bytes of one result that are not counted: most results are smaller, and a socket's buffers hold as much."""


LARGE = 1 << 20
"""A result that has more bytes is counted until the request has ended. A smaller one is counted only until it is
handed over, because the code that sends it on counts it again."""


class Allowance(Protocol):
    """The bytes that one request may hold in memory."""

    def take(self, size: int) -> None:
        """Count bytes that are here already. Raises QuotaExceeded if they are too many; they must then be dropped."""

    def give(self, size: int) -> None:
        """Stop counting bytes that are no longer held."""

    async def reserve(self, size: int) -> None:
        """Wait until so many bytes may come, and count them. Raises QuotaExceeded if that takes too long."""


_current: ContextVar[Allowance | None] = ContextVar("hutch_allowance", default=None)


@contextmanager
def allowed(allowance: Allowance) -> Iterator[None]:
    """Count channels that are opened inside, also by tasks begun inside, against `allowance`."""
    token = _current.set(allowance)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Allowance | None:
    """Return the allowance of the request that is being answered, or None if nobody counts."""
    return _current.get()
