"""Serves a client over a WebSocket with one JSON message in each frame."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from pydantic import ValidationError

from hutch.errors import Invalid
from hutch.mcp.hosting.gateway import NOTIFICATIONS

Receive = Callable[[], Awaitable[bytes | str | None]]
Send = Callable[[str], Awaitable[None]]


async def serve(server: Server[Any], receive: Receive, send: Send) -> None:
    """Serve until the client leaves, which `receive` reports by None.

    Raises:
        Invalid: A frame is not a message of JSON-RPC.
    """
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    wrong: list[Invalid] = []

    async def read_frames() -> None:
        async with to_server:
            while (frame := await receive()) is not None:
                try:
                    message = jsonrpc_message_adapter.validate_json(frame, by_name=False)
                except ValidationError:
                    wrong.append(Invalid("a frame is one message of JSON-RPC 2.0"))
                    break
                await to_server.send(SessionMessage(message))
        group.cancel_scope.cancel()

    async def write_frames() -> None:
        async with from_server:
            async for item in from_server:
                await send(item.message.model_dump_json(by_alias=True, exclude_unset=True))

    async with anyio.create_task_group() as group:
        group.start_soon(read_frames)
        group.start_soon(write_frames)
        await server.run(from_client, to_client, server.create_initialization_options(NOTIFICATIONS))
    if wrong:
        raise wrong[0]
