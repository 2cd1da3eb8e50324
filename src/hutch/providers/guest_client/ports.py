"""Connections to the ports of a box, carried by channels of its guest."""

import asyncio
from typing import Any, Self

from hutch.errors import BoxBroken, Invalid, PortClosed
from hutch.guest.protocol import DATA
from hutch.model.boxes import PortInfo
from hutch.model.record import Record
from hutch.providers.guest_client.answers import checked
from hutch.providers.guest_client.channel import PIECE, Channel
from hutch.providers.guest_client.link import Link
from hutch.providers.handles import PortStream

STREAM_WINDOW = 1 << 18
"""Bytes in flight in each direction of one connection. It bounds what a hundred slow readers cost."""
CONNECT_TIMEOUT = 15.0
MAX_PROCESS_NAME = 64


class _Listening(Record, frozen=True, kw_only=True):
    ports: tuple[PortInfo, ...]


class GuestPortStream(PortStream):
    """One connection. The channel's credit is its back-pressure."""

    def __init__(self, channel: Channel, port: int) -> None:
        self._channel = channel
        self._port = port
        self._read_end = False
        self._ended = False

    @classmethod
    async def open(cls, link: Link, port: int) -> Self:
        if not 1 <= port <= 65535:
            raise Invalid(f"a port is a number from 1 to 65535, not {port}", op="connect")
        channel = link.open("connect", window=STREAM_WINDOW, port=port)
        stream = cls(channel, port)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await stream._wait_until_connected()
        except TimeoutError as error:
            channel.abandon()
            raise PortClosed(f"port {port} of the box did not answer in {CONNECT_TIMEOUT:g} s") from error
        except BaseException:
            channel.abandon()
            raise
        return stream

    async def _wait_until_connected(self) -> None:
        try:
            _, event = await anext(self._channel)
        except StopAsyncIteration:
            event = None
        if not isinstance(event, dict) or not event.get("connected"):
            raise BoxBroken("the guest answered a connection to a port with something else")

    async def receive(self) -> bytes:
        if self._read_end:
            return b""
        try:
            kind, content = await anext(self._channel)
        except StopAsyncIteration:
            self._read_end = True
            return b""
        if kind == DATA:
            data: bytes = content
            return data
        if not isinstance(content, dict) or not content.get("end"):
            raise BoxBroken(f"the guest sent a frame of kind {kind} in a connection to a port")
        self._read_end = True
        return b""

    async def send(self, data: bytes | memoryview) -> None:
        # Sends pieces of half a window, so that the box reads one while the next is on its way.
        view = memoryview(data)
        for at in range(0, len(view), PIECE // 2):
            await self._channel.send(view[at : at + PIECE // 2])
        if self._channel.done:
            await self._channel.answer()  # This raises why the guest ended the connection.
            raise PortClosed(f"the connection to port {self._port} of the box was closed")

    def is_quiet(self) -> bool:
        return not (self._read_end or self._channel.done or self._channel.has_waiting)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._channel.end()

    def close(self) -> None:
        self._channel.abandon()


def listening_ports(answer: dict[str, Any]) -> tuple[PortInfo, ...]:
    """Return the ports that a guest reports, with what it says of itself checked and cut."""
    found = checked(answer, _Listening).ports
    if any(not 1 <= port.port <= 65535 for port in found):
        raise BoxBroken("the guest reports a port that cannot exist")
    return tuple(
        port.but(process=printable(port.process)[:MAX_PROCESS_NAME], address=printable(port.address)[:MAX_PROCESS_NAME])
        for port in found
    )


def printable(text: str) -> str:
    """Return the text without control characters: a program chooses its own name, and people see it in terminals."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
