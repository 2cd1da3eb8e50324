"""Who is at the other end of the Unix socket: the kernel knows, and uvicorn's protocols pass it on."""

import asyncio
import socket
import struct
from typing import cast

from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.server.auth import UNIX
from hutch.server.http.protocol import BoundedHttp, BoundedWebSocket

_CREDENTIALS = struct.Struct("iII")
"""struct ucred of unix(7): pid, uid, gid, as they were when the peer connected."""


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """For `scope["client"]`."""
    given = cast(socket.socket, transport.get_extra_info("socket"))
    _, uid, _ = _CREDENTIALS.unpack(given.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return (UNIX, uid)


class UnixHttp(BoundedHttp):
    def _enter(self, descriptor: int) -> None:
        self.client = peer_of(self.transport)
        super()._enter(descriptor)
        self.all_connections.recognised(self.connection, LOCAL_OWNER)


class UnixWebSocket(BoundedWebSocket):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client = peer_of(transport)
