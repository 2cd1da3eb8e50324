"""Calls to an engine's SDK: its errors become ours, and a creation that was given up is undone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hutch.errors import HutchError
from hutch.providers.base import Instance

Created = TypeVar("Created", bound=Instance)


@asynccontextmanager
async def translate_errors(op: str, to_hutch_error: Callable[[Exception, str], HutchError]) -> AsyncIterator[None]:
    """Raise what `to_hutch_error` makes of any error that the SDK raises inside."""
    try:
        yield
    except HutchError:
        raise
    except Exception as error:
        raise to_hutch_error(error, op) from error


async def create_or_undo(creation: Coroutine[Any, Any, Created], undo: Callable[[], Awaitable[None]]) -> Created:
    """Create a box on a remote engine. If that fails or the caller is cancelled, undo it before the error is raised.

    A request that is given up half-way may still be carried out there, so the creation always runs to its end.
    """
    task = asyncio.ensure_future(creation)
    try:
        return await asyncio.shield(task)
    except BaseException:
        await asyncio.shield(_undo(task, undo))
        raise


async def _undo(creation: "asyncio.Future[Created]", undo: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(HutchError, asyncio.CancelledError):  # the caller gets the error, or has gone
        await (await creation).close()
    await undo()
