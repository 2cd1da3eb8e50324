"""A bot as its author would write it for several worker processes: `uvicorn tests.shared.bot:app --workers 2`."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from hutch import Hutch

Message = dict[str, Any]
hutch: Hutch | None = None


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] == "lifespan":
        await live(receive, send)
        return
    asked = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
    answer = json.dumps(await answered(asked["chat"], asked["command"])).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": answer})


async def live(receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
    global hutch
    await receive()
    async with Hutch() as hutch:
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def answered(chat: str, command: str) -> dict[str, object]:
    assert hutch is not None
    async with hutch.box_for("{chat}", chat=chat) as box:
        result = await box.exec(command)
        await asyncio.sleep(0.05)  # as long as a model thinks, so that two messages of one chat overlap
        return {"pid": os.getpid(), "box": box.id, "stdout": result.stdout, "cause": str(result.verdict.cause)}
