"""`hutch mcp` on standard input and output: one client, one desk, until its end of the pipe is closed.

The SDK's own transport reads in a thread that no signal can end, and takes lines of any length. This one is the event
loop's, bounded, and faster by the switches between threads.
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
from hutch.mcp.serving.server import MakeDesk, OneDesk, options_of, server_on

LONGEST_LINE = 64 << 20
"""A longer message is not read: whoever sends it wants our memory."""

_log = log("mcp")

Incoming = SessionMessage | Exception
Write = Callable[[bytes], Awaitable[None]]


async def serve(make: MakeDesk) -> None:
    """Until standard input ends."""
    desk = OneDesk(make)
    server = server_on(desk)
    lines, write = await _wires()
    to_server, reading = anyio.create_memory_object_stream[Incoming](0)
    writing, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = (asyncio.create_task(_read(lines, to_server)), asyncio.create_task(_write(from_server, write)))
    try:
        await server.run(reading, writing, options_of(server))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await desk.close()


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
                return  # the client is gone; that its other pipe ends too will be seen


# --- the pipes --------------------------------------------------------------------------------------------------------


async def _wires() -> tuple[AsyncIterator[bytes], Write]:
    """Lines from standard input and a way to standard output, both on descriptors of our own. What anybody else here
    reads or prints, a child process or a library, goes past them: the protocol would not bear it."""
    own_in, own_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return await _lines(own_in), await _writer(own_out)


def _can_wait(descriptor: int) -> bool:
    """Whether the event loop can wait for it: epoll(7) takes no regular file and no /dev/null, which never block."""
    mode = os.fstat(descriptor).st_mode
    return not stat.S_ISREG(mode) and (not stat.S_ISCHR(mode) or os.isatty(descriptor))


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    if not _can_wait(descriptor):
        with os.fdopen(descriptor, "rb") as whole:
            reader.feed_data(await asyncio.to_thread(whole.read, LONGEST_LINE))
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
        except ValueError:  # what was read of it is dropped; the rest follows
            too_long = True
            continue
        if not line:
            return
        if too_long:
            _log.warning("a message was too long to be read", most=LONGEST_LINE)
            too_long = False
            continue
        yield line


async def _writer(descriptor: int) -> Write:
    if not _can_wait(descriptor):

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
