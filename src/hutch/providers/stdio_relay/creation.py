"""Making a box on an engine elsewhere: a request that is given up half-way may still be carried out there."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from hutch.errors import HutchError
from hutch.providers.base import Instance

Made = TypeVar("Made", bound=Instance)


async def made_or_undone(making: Coroutine[Any, Any, Made], undo: Callable[[], Awaitable[None]]) -> Made:
    """The box. If it fails or its caller goes, it is seen to its end and undone before anybody hears of it."""
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except BaseException:
        await asyncio.shield(_retreat(task, undo))
        raise


async def _retreat(making: "asyncio.Future[Made]", undo: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(HutchError, asyncio.CancelledError):  # the caller is told, or has gone
        await (await making).close()
    await undo()
