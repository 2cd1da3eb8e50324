"""Errors of an engine's package in our words."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hutch.errors import HutchError


@asynccontextmanager
async def translated(op: str, told: Callable[[Exception, str], HutchError]) -> AsyncIterator[None]:
    """Whatever the package raises inside comes out as the HutchError that `told` makes of it."""
    try:
        yield
    except HutchError:
        raise
    except Exception as error:
        raise told(error, op) from error
