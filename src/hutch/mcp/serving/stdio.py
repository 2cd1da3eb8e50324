"""`hutch mcp` on standard input and output: one client session until the client closes its pipe.

The SDK's own transport reads in a thread that no signal can end, and accepts lines of any length. This one runs on the
event loop, is bounded, and saves the switches between threads.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from pydantic import ValidationError

from hutch.logs import log
from hutch.mcp.serving.server import ConnectionSession, OpenSession, options_of, server_for

MAX_LINE = 64 << 20
"""Longer messages are skipped, since they could exhaust our memory."""

_log = log("mcp")

Incoming = SessionMessage | Exception
Write = Callable[[bytes], Awaitable[None]]


async def serve(make: OpenSession) -> None:
    """Serve until standard input ends."""
    session = ConnectionSession(make)
    server = server_for(session)
    lines, write = await _open_pipes()
    to_server, reading = anyio.create_memory_object_stream[Incoming](0)
    writing, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = (asyncio.create_task(_read(lines, to_server)), asyncio.create_task(_write(from_server, write)))
    try:
        await server.run(reading, writing, options_of(server))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await session.close()


async def _read(lines: AsyncIterator[bytes], to_server: MemoryObjectSendStream[Incoming]) -> None:
    async with to_server:
        async for line in lines:
            if not line.strip():
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except (ValidationError, ValueError, RecursionError) as error:
                await to_server.send(error)
                continue
            await to_server.send(SessionMessage(message))


async def _write(from_server: MemoryObjectReceiveStream[SessionMessage], write: Write) -> None:
    async with from_server:
        async for each in from_server:
            data = each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            try:
                await write(data)
            except (BrokenPipeError, ConnectionResetError):
                return  # The client is gone. The reader will see the end of its other pipe.


# --- the pipes --------------------------------------------------------------------------------------------------------


async def _open_pipes() -> tuple[AsyncIterator[bytes], Write]:
    """Return lines of standard input and a writer for standard output, both on descriptors of our own.

    Descriptors 0 and 1 are redirected, so that a child process or library that reads or prints cannot disturb the
    protocol.
    """
    own_in, own_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return await _lines(own_in), await _writer(own_out)


def _is_pollable(descriptor: int) -> bool:
    """Return whether epoll(7) accepts the descriptor. It refuses regular files and /dev/null, which never block."""
    mode = os.fstat(descriptor).st_mode
    return not stat.S_ISREG(mode) and (not stat.S_ISCHR(mode) or os.isatty(descriptor))


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=MAX_LINE)
    if not _is_pollable(descriptor):
        with os.fdopen(descriptor, "rb") as whole:
            reader.feed_data(await asyncio.to_thread(whole.read, MAX_LINE))
        reader.feed_eof()
    else:
        file = os.fdopen(descriptor, "rb", buffering=0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return _split(reader)


async def _split(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    too_long = False
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # The part that was read is dropped, and the rest follows.
            too_long = True
            continue
        if not line:
            return
        if too_long:
            _log.warning("a message was too long to be read", most=MAX_LINE)
            too_long = False
            continue
        yield line


async def _writer(descriptor: int) -> Write:
    if not _is_pollable(descriptor):

        async def into_file(data: bytes) -> None:
            with memoryview(data) as rest:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, rest[written:])

        return into_file
    loop = asyncio.get_running_loop()
    file = os.fdopen(descriptor, "wb", buffering=0)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), file
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def into_pipe(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return into_pipe
