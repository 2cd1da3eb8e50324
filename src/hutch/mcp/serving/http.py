"""Streamable HTTP: a session of the protocol is one client's connection, from its handshake until it is deleted, idle
for too long, or the server ends. Requests of the era without handshakes come without a session, one by one.

Whoever mounts this has checked who is calling, and says so in the ASGI scope (`VISITOR`).
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import (
    MCP_SESSION_ID_HEADER,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import Response

from hutch.errors import QuotaExceeded
from hutch.logs import log
from hutch.mcp.serving.server import options_of

MOST_EVENTS = 512
MOST_BYTES = 8 << 20


class RecentEvents(EventStore):
    """Of one session, in memory: when the server ends, its sessions end too."""

    def __init__(self) -> None:
        self._last = 0
        self._events: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        """Number, stream, message, size; a message of None only marks where a stream begins."""
        self._bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._last += 1
        size = len(message.model_dump_json()) if message is not None else 0
        self._events.append((self._last, stream_id, message, size))
        self._bytes += size
        while len(self._events) > MOST_EVENTS or self._bytes > MOST_BYTES:
            self._bytes -= self._events.popleft()[3]
        return str(self._last)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Only of the stream that the event belongs to: each answer goes to where it was asked for."""
        seen = int(last_event_id) if last_event_id.isdecimal() else 0
        stream = next((each[1] for each in self._events if each[0] == seen), None)
        if stream is None:
            return None
        for number, of, message, _ in list(self._events):
            if number > seen and of == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VISITOR = "hutch.visitor"
IDLE_SECONDS = 1800.0
"""A session without any request, and without an open stream, ends after this."""
MOST_EACH = 64
"""Sessions of one owner at once."""
MOST_BODY = 1 << 40
"""The door has bounded the body already."""

_log = log("mcp")


@dataclass(frozen=True)
class Visitor:
    """Who is calling, as the door has found out."""

    owner: str
    key_id: str
    role: str
    key: str = field(repr=False)
    """The key itself: what is done for the visitor is done with it, so that it can do no more. Empty on the Unix
    socket, where the kernel vouches."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Variables of the path it came by."""
    query: Mapping[str, str] = field(default_factory=dict)


class Opened(NamedTuple):
    """A server for one session, and what has to be done when that ends."""

    server: Server[Any]
    close: Callable[[], Awaitable[None]]


Open = Callable[[Visitor], Awaitable[Opened]]


class _Session:
    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self.transport = StreamableHTTPServerTransport(
            mcp_session_id=secrets.token_hex(16), event_store=RecentEvents(), idle_timeout=IDLE_SECONDS
        )
        self.asking = 0
        """Requests under way; streams that only listen do not count."""
        self.task: asyncio.Task[None] | None = None


class HttpSessions:
    """One for each place where it is mounted. `open` makes the server of a session; `sessionless` answers requests that
    come without one, and finds in the scope who is calling."""

    def __init__(self, open: Open, sessionless: Server[Any]) -> None:
        self._open = open
        self._sessions: dict[str, _Session] = {}
        self._modern = StreamableHTTPSessionManager(
            app=sessionless, stateless=True, max_request_body_size=MOST_BODY
        )  # fmt: skip
        self._ending = asyncio.Event()
        self._serving_modern: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        version = headers.get("mcp-protocol-version")
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._start_modern()
            await self._modern.handle_request(scope, receive, send)
            return
        visitor: Visitor = scope[VISITOR]
        session_id = headers.get(MCP_SESSION_ID_HEADER)
        if session_id is None:
            await self._begin(visitor, scope, receive, send)
            return
        session = self._sessions.get(session_id)
        # Another key's session is not there for this one.
        if session is None or (session.visitor.owner, session.visitor.key_id) != (visitor.owner, visitor.key_id):
            await _not_found()(scope, receive, send)
            return
        if scope["method"] == "DELETE":
            # Answered when all has ended: whoever comes back at once finds its place, and its box, free.
            await self._end(session_id, session)
            await Response(status_code=200)(scope, receive, send)
            return
        await self._pass(session, scope, receive, send)

    async def _pass(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["method"] == "POST"
        session.asking += asks
        try:
            await session.transport.handle_request(scope, receive, send)
        finally:
            session.asking -= asks

    # --- with a handshake -----------------------------------------------------------------------------------------

    async def _begin(self, visitor: Visitor, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(each.visitor.owner == visitor.owner for each in self._sessions.values()) >= MOST_EACH:
            raise QuotaExceeded(
                f"{MOST_EACH} MCP sessions of one owner are open", op="mcp", remedy="end one with DELETE", retry_after=5
            )
        session = _Session(visitor)
        session_id = session.transport.mcp_session_id
        assert session_id is not None
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        opened = await self._open(visitor)
        ready = asyncio.Event()
        self._sessions[session_id] = session
        session.task = asyncio.create_task(self._live(session_id, session, opened, ready))
        await ready.wait()
        try:
            await self._pass(session, scope, receive, watched)
        finally:
            if not 200 <= status < 300:  # it was no handshake
                await self._end(session_id, session)

    async def _live(self, session_id: str, session: _Session, opened: Opened, ready: asyncio.Event) -> None:
        transport = session.transport
        try:
            async with transport.connect() as (reading, writing):
                ready.set()
                with transport.idle_scope or anyio.CancelScope():
                    await opened.server.run(reading, writing, options_of(opened.server))
        except Exception as error:  # the boundary of a session: reported, and the others go on
            _log.error("an MCP session broke", session=session_id[:8], error=error)
        finally:
            ready.set()
            self._sessions.pop(session_id, None)
            with anyio.CancelScope(shield=True):
                await transport.terminate()
                await opened.close()

    async def _end(self, session_id: str, session: _Session) -> None:
        self._sessions.pop(session_id, None)
        await session.transport.terminate()
        if session.task is not None:
            await asyncio.wait({session.task})

    # --- without --------------------------------------------------------------------------------------------------

    async def _start_modern(self) -> None:
        if self._serving_modern is not None:
            return
        ready = asyncio.Event()

        async def run() -> None:
            async with self._modern.run():
                ready.set()
                await self._ending.wait()

        self._serving_modern = asyncio.create_task(run())
        await ready.wait()

    # --- the end --------------------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """Sessions that only listen end now, the others when what they asked for is done, or the time is over."""
        end = asyncio.get_running_loop().time() + seconds
        while self._sessions:
            late = asyncio.get_running_loop().time() >= end
            for session_id, session in list(self._sessions.items()):
                if late or not session.asking:
                    await self._end(session_id, session)
            if self._sessions:
                await asyncio.sleep(0.05)
        self._ending.set()
        if self._serving_modern is not None:
            await asyncio.wait({self._serving_modern})


def _not_found() -> Response:
    body = JSONRPCError(
        jsonrpc="2.0", id=None, error=ErrorData(code=INVALID_REQUEST, message="no such session: initialize again")
    )
    return Response(body.model_dump_json(by_alias=True), status_code=404, media_type="application/json")
