"""Ports of a box: the same in every form of Hutch (see conftest.py)."""

import asyncio

import pytest

from hutch.api import Box
from hutch.errors import Invalid, NotFound, PortClosed, Timeout, Unsupported
from tests.both.forms import TIMEOUT, Open

ECHO = """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
        self.request.sendall(b"end")
socketserver.ThreadingTCPServer(("127.0.0.1", 7000), Echo).serve_forever()
"""


async def start_echo(box: Box) -> None:
    await box.start(["python3", "-c", ECHO])
    async with asyncio.timeout(TIMEOUT):
        while 7000 not in {each.port for each in await box.ports()}:
            await asyncio.sleep(0.05)


async def test_a_connection_to_a_port_carries_bytes_both_ways(open_hutch: Open) -> None:
    """The way in is the guest, so it works with network off, and each side ends by itself."""
    async with open_hutch() as hutch, hutch.box(network="off") as box:
        with pytest.raises(PortClosed) as closed:
            await box.connect(7000)
        assert isinstance(closed.value, ConnectionRefusedError)
        with pytest.raises(Invalid):
            await box.connect(70000)
        await start_echo(box)
        async with await box.connect(7000) as connection:
            sent = bytes(range(256)) * 8000
            sending = asyncio.create_task(connection.send(sent))
            received = b""
            while len(received) < len(sent):
                received += await connection.receive()
            await sending
            assert received == sent
            await connection.end()
            assert await connection.receive() == b"end"
            assert await connection.receive() == b""


async def test_what_listens_is_listed(open_hutch: Open) -> None:
    async with open_hutch() as hutch, hutch.box(ports=[7000]) as box:
        assert await box.ports() == ()
        with pytest.raises(Timeout):
            await box.ports(wait=0.2)
        await start_echo(box)
        (found,) = await box.ports(wait=TIMEOUT)
        assert (found.port, found.address, found.process) == (7000, "127.0.0.1", "python3")
        assert found.pid > 1


async def test_previews_are_made_and_revoked(open_hutch: Open) -> None:
    """Only a server serves previews; without one the error says so."""
    async with open_hutch() as hutch, hutch.box() as box:
        try:
            preview = await box.url(7000, ttl_sec=60)
        except Unsupported as error:
            assert "hutch serve" in error.remedy
            assert await box.previews() == ()
            return
        assert preview.url.startswith(f"http://7000-{box.id}.localhost:")
        assert preview.token in preview.url
        assert preview.token in preview.path_url
        public = await box.url(7001, public=True, ttl_sec=0)
        assert (public.token, public.expires_at) == ("", 0)
        assert [each.id for each in await box.previews()] == [preview.id, public.id]
        await box.revoke(preview.id)
        with pytest.raises(NotFound):
            await box.revoke(preview.id)
        assert [each.id for each in await box.previews()] == [public.id]
