"""Peers: the servers that share this one's store. Doors pass on to them the requests for boxes that they keep.

A client of Hutch's own API is redirected instead (`app.py`). Clients of other protocols would not follow, or leave
their key behind, and the host name of a sandbox leads to whichever server a load balancer chooses.
"""

import asyncio
import functools
import ssl
from urllib.parse import SplitResult, urlsplit

from hutch.errors import HeldElsewhere, PortClosed, Unavailable
from hutch.keeper.store.open_store import is_shared
from hutch.model.ids import BoxId, is_box_id
from hutch.server.auth import Authenticator
from hutch.server.previews.headers import PASSED_ON, Passage
from hutch.server.previews.proxy import NotProxied, proxy_http
from hutch.server.previews.websocket import proxy_websocket
from hutch.server.request import Message, Receive, Scope, Send, headers_of
from hutch.server.service import Service

ANSWER_SECONDS = 3600.0
"""Some calls answer only when their command has ended."""
_REPLAYED_BYTES = 1 << 20
_MESSAGE_BYTES = 200
"""What a message holds besides its content, so that empty ones are not kept without end."""
_CONNECT_SECONDS = 10.0
_PIECE_BYTES = 1 << 16


class Recorded:
    """A request's messages, of which a door may have read some before it learns that a peer keeps the box.

    Threat: bodies and WebSockets have no end, so that only the first messages are kept, and only where there are peers.
    """

    def __init__(self, receive: Receive, *, most_bytes: int) -> None:
        self._receive = receive
        self._read: list[Message] = []
        self._left = most_bytes

    async def __call__(self) -> Message:
        message = await self._receive()
        if self.is_whole:
            self._left -= _MESSAGE_BYTES + sum(len(message.get(part) or "") for part in ("body", "bytes", "text"))
            self._read.append(message)
            if not self.is_whole:
                self._read.clear()
        return message

    @property
    def is_whole(self) -> bool:
        """Whether all that was read is still there; of a long body only its reader holds more."""
        return self._left >= 0

    async def again(self) -> Message:
        """Return the messages, from the first one on."""
        return self._read.pop(0) if self._read else await self._receive()


class Peers:
    """Passes requests on to the servers whose addresses the store names."""

    def __init__(self, service: Service, auth: Authenticator) -> None:
        self._service = service
        self._auth = auth

    def recorded(self, receive: Receive) -> Recorded:
        """Return a request's messages, to be read by a door that may have to pass the request on."""
        return Recorded(receive, most_bytes=_REPLAYED_BYTES if is_shared(self._service.config) else -1)

    async def check_place(self, box_id: str, client: tuple[str, int] | None) -> None:
        """Raise HeldElsewhere if a peer keeps the box that a stranger names, who is then authenticated there.

        A token of a sandbox or a preview is made with its server's own key, so that no other server may know it.
        """
        held = self._service.keeper.held(BoxId(box_id))
        if held is None and is_box_id(box_id) and is_shared(self._service.config):
            self._auth.count_anonymous(client)
            await self._service.keeper.reconciler.check_place(BoxId(box_id))

    async def pass_on(self, elsewhere: HeldElsewhere, scope: Scope, received: Recorded, send: Send) -> None:
        """Let the server that the error names answer a request.

        The key goes along. Who sent it by TLS must not have it shown to everybody on the way to the other server.

        Raises:
            HeldElsewhere: The keeper of the box advertises no address, or the request may not be passed on.
            Unavailable: The other server does not answer.
        """
        url, headers = str(elsewhere.details.get("url") or ""), headers_of(scope)
        bare = scope["scheme"] in ("https", "wss") and not url.startswith("https:")
        if not url or bare or PASSED_ON.decode() in headers or not received.is_whole:
            raise elsewhere
        place = urlsplit(url)
        named = headers.get("host", "")
        host = named if self._service.previews.hosts.covers(named) else place.netloc
        visit = Passage(place.port or 0, host, place.scheme, answer_seconds=ANSWER_SECONDS)
        connect = functools.partial(_connect, place)
        try:
            if scope["type"] == "websocket":
                await proxy_websocket(connect, visit, scope, received.again, send)
            else:
                await proxy_http(connect, visit, scope, received.again, send)
        except (NotProxied, PortClosed) as error:
            raise Unavailable(
                f"the server that keeps this box does not answer: {error}", details={"url": url},
                remedy="try again: if that server has ended, another one takes its boxes",
            ) from error  # fmt: skip


class _Connection:
    """A connection to a peer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        try:
            return await self._reader.read(_PIECE_BYTES)
        except OSError as error:
            raise PortClosed(str(error)) from error

    async def send(self, data: bytes | memoryview) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise PortClosed(str(error)) from error

    def close_now(self) -> None:
        self._writer.close()


async def _connect(place: SplitResult) -> _Connection:
    tls = _tls() if place.scheme == "https" else None
    port = place.port or (443 if tls else 80)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            return _Connection(*await asyncio.open_connection(place.hostname, port, ssl=tls))
    except (OSError, TimeoutError) as error:
        raise PortClosed(str(error) or "no connection in time") from error


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
