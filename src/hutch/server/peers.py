"""Who is at the other end of the Unix socket: the kernel knows, and uvicorn's protocols pass it on."""

import asyncio
import socket
import struct
from typing import cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hutch.server.door import UNIX
from hutch.server.heads import BoundedHttp

_CREDENTIALS = struct.Struct("iII")
"""struct ucred of unix(7): pid, uid, gid, as they were when the peer connected."""


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """For `scope["client"]`."""
    given = cast(socket.socket, transport.get_extra_info("socket"))
    _, uid, _ = _CREDENTIALS.unpack(given.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return (UNIX, uid)


class UnixHttp(BoundedHttp):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client = peer_of(transport)


class UnixWebSocket(WebSocketsSansIOProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client = peer_of(transport)
