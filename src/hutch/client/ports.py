"""A connection to a port of a box over a server's WebSocket."""

import json
from typing import Any, Self

from hutch.client.handle import Handle
from hutch.client.transport.http import NotConnected
from hutch.errors import HutchError, PortClosed, Unavailable, Unsupported

try:
    from websockets.asyncio.client import ClientConnection, connect, unix_connect
    from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidHandshake, InvalidStatus
except ImportError as error:
    raise Unsupported(
        "connections to ports of a box on a server need the package websockets", op="connect",
        remedy="pip install 'hutch[server]', or pip install websockets",
    ) from error  # fmt: skip

END_FRAME = "end"
PIECE = 1 << 18
MAX_FRAME_BYTES = 16 << 20


class RemoteConnection:
    """One connection, which ends with its WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._read_end = False
        self._ended = False

    @classmethod
    async def open(cls, handle: Handle, port: int) -> Self:
        """Connect, and raise what the server says if it refuses."""
        return await handle.follow_moves(lambda: cls._open(handle, port))

    @classmethod
    async def _open(cls, handle: Handle, port: int) -> Self:
        address, key = handle.server.address, handle.server.key
        headers = handle.headers() | ({"Authorization": f"Bearer {key}"} if key else {})
        path = f"{handle.path}/ports/{port}/connect"
        options: dict[str, Any] = {
            "additional_headers": headers, "max_size": MAX_FRAME_BYTES, "compression": None, "proxy": None,
        }  # fmt: skip
        try:
            if address.path:
                socket = await unix_connect(address.path, f"ws://localhost{path}", **options)
            else:
                scheme = "wss" if address.tls else "ws"
                if address.tls:
                    options["ssl"] = address.tls_context
                socket = await connect(f"{scheme}://{address.host_header}{path}", **options)
        except InvalidStatus as error:
            raise _error(error) from error
        except (OSError, InvalidHandshake) as error:
            raise NotConnected(f"no server answers at {address.url}: {error}") from error
        return cls(socket)

    async def receive(self) -> bytes:
        if self._read_end:
            return b""
        try:
            frame = await self._socket.recv()
        except ConnectionClosedOK:
            self._read_end = True
            return b""
        except ConnectionClosed as error:
            raise _lost(error) from error
        if isinstance(frame, bytes):
            return frame
        self._read_end = True
        return b""

    async def send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for at in range(0, len(view), PIECE):
            await self._send(bytes(view[at : at + PIECE]))

    async def _send(self, frame: str | bytes) -> None:
        try:
            await self._socket.send(frame)
        except ConnectionClosed as error:
            raise _lost(error) from error

    async def end(self) -> None:
        if not self._ended:
            self._ended = True
            await self._send(END_FRAME)

    async def close(self) -> None:
        self._socket.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _error(refusal: InvalidStatus) -> HutchError:
    try:
        wire = json.loads(refusal.response.body or b"")
        return HutchError.of(wire)
    except (ValueError, TypeError, AttributeError):
        return Unavailable(f"the server refused the connection with status {refusal.response.status_code}")


def _lost(error: ConnectionClosed) -> HutchError:
    reason = error.rcvd.reason if error.rcvd is not None else ""
    return PortClosed(reason or "the connection to the port was lost")
