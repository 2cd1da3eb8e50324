"""Connections to ports and the list of listeners, by a real guest that shares the test's loopback."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.guest.guest_process import TIMEOUT, instance_of, running_guest

from hutch.errors import Invalid, PortClosed
from hutch.providers.guest_client.ports import STREAM_WINDOW

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A program that listens; yields its port."""
    server = await asyncio.start_server(serve, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_bytes_pass_both_ways_until_each_side_ends(host: str) -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box, listening(echo, host) as port:
            stream = await box.connect(port)
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"
            stream.end()
            assert await stream.receive() == b""
            assert await stream.receive() == b""


async def test_a_half_closed_connection_still_answers() -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(str(len(await reader.read())).encode())
        await writer.drain()
        writer.close()

    with running_guest() as guest:
        async with instance_of(guest) as box, listening(count) as port:
            stream = await box.connect(port)
            await stream.send(bytes(3_000_000))
            stream.end()
            received = b""
            while piece := await stream.receive():
                received += piece
    assert received == b"3000000"


async def test_a_port_on_which_nobody_listens_is_closed() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with running_guest() as guest:
            async with instance_of(guest) as box:
                with pytest.raises(PortClosed) as caught:
                    await box.connect(bound.getsockname()[1])
                assert isinstance(caught.value, ConnectionRefusedError)
                assert caught.value.remedy
                for wrong in (0, -1, 65536):
                    with pytest.raises(Invalid):
                        await box.connect(wrong)


async def test_a_reader_that_waits_makes_the_program_wait() -> None:
    """What a program sends and nobody reads stays in the box; other connections keep working."""
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                sent += 1 << 16
                await writer.drain()

    with running_guest() as guest:
        async with instance_of(guest) as box, listening(flood) as port, listening(echo) as other:
            stream = await box.connect(port)
            await stream.receive()
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.3)
            # The windows of channel and sockets, not more: 6 MB is what Linux lets a loopback socket grow to.
            assert sent < STREAM_WINDOW + (16 << 20)
            quick = await box.connect(other)
            await quick.send(b"x")
            assert await quick.receive() == b"x"
            stream.close()


async def test_a_reset_connection_says_so() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()

    with running_guest() as guest:
        async with instance_of(guest) as box, listening(reset) as port:
            stream = await box.connect(port)
            await stream.send(b"xx")
            with pytest.raises(PortClosed):
                while await stream.receive():
                    continue
            with pytest.raises(PortClosed):
                await stream.send(b"more")


async def test_an_answer_before_a_reset_is_received_although_more_was_sent() -> None:
    """A program may answer and close without reading all of a request, and the guest may see the reset first."""
    reached, stopped, reset = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        reached.set()
        await stopped.wait()
        writer.write(b"too large")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()
        await writer.wait_closed()
        reset.set()

    with running_guest() as guest:
        async with instance_of(guest) as box, listening(refuse) as port:
            stream = await box.connect(port)
            await stream.send(b"x")
            await reached.wait()
            os.kill(guest.pid, signal.SIGSTOP)
            try:
                await stream.send(b"more")
                stopped.set()
                await reset.wait()
            finally:
                os.kill(guest.pid, signal.SIGCONT)
            assert await stream.receive() == b"too large"
            with pytest.raises(PortClosed):
                await stream.receive()


async def test_closed_streams_leave_no_descriptor() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box, listening(echo) as port:
            await box.ports()
            before = len(guest.descriptors())
            streams = [await box.connect(port) for _ in range(50)]
            assert len(guest.descriptors()) == before + 50
            for stream in streams:
                stream.close()
            await box.check()
            assert len(guest.descriptors()) == before


async def test_listeners_are_listed_with_their_process() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box, listening(echo) as port:
            found = {each.port: each for each in await box.ports()}
    assert found[port].address == "127.0.0.1"
    assert found[port].pid == os.getpid()
    assert found[port].process


async def test_a_watch_reports_ports_that_appear_and_go() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box, asyncio.timeout(TIMEOUT):
            changes = box.watch_ports()
            await anext(changes)
            async with listening(echo) as port:
                while port not in {each.port for each in await anext(changes)}:
                    continue
            while port in {each.port for each in await anext(changes)}:
                continue
