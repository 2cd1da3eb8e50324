"""Streamable HTTP. A protocol session lasts from the handshake until it is deleted, is idle for too long, or the server
ends. Requests of the era without handshakes come one by one without a session.

The application that mounts this has authenticated the caller and puts it into the ASGI scope (`MCP_CALLER`).
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

MAX_EVENTS = 512
MAX_EVENT_BYTES = 8 << 20


class RecentEvents(EventStore):
    """The latest messages of one session, so that a broken stream can be resumed. They live as long as the server."""

    def __init__(self) -> None:
        self._last = 0
        self._events: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        """Tuples of number, stream, message and size. A message of None marks the beginning of a stream."""
        self._bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._last += 1
        size = len(message.model_dump_json()) if message is not None else 0
        self._events.append((self._last, stream_id, message, size))
        self._bytes += size
        while len(self._events) > MAX_EVENTS or self._bytes > MAX_EVENT_BYTES:
            self._bytes -= self._events.popleft()[3]
        return str(self._last)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Replay later events of the same stream only, since each answer belongs to the stream of its request."""
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

MCP_CALLER = "hutch.mcp_caller"
IDLE_SECONDS = 1800.0
"""A session without requests and open streams ends after this time."""
MAX_PER_OWNER = 64
"""Most concurrent sessions of one owner."""
MAX_BODY = 1 << 40
"""The HTTP server has already bounded the body."""

_log = log("mcp")


@dataclass(frozen=True)
class McpCaller:
    """The authenticated caller of a request."""

    owner: str
    key_id: str
    role: str
    key: str = field(repr=False)
    """The API key. All work for the caller uses it, so the caller gets no further rights. It is empty on the Unix
    socket, where the kernel identifies the peer."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Variables of the request's path."""
    query: Mapping[str, str] = field(default_factory=dict)


class OpenedServer(NamedTuple):
    """The MCP server of one session, and a function that closes it."""

    server: Server[Any]
    close: Callable[[], Awaitable[None]]


OpenServer = Callable[[McpCaller], Awaitable[OpenedServer]]


class _Session:
    def __init__(self, caller: McpCaller) -> None:
        self.caller = caller
        self.transport = StreamableHTTPServerTransport(
            mcp_session_id=secrets.token_hex(16), event_store=RecentEvents(), idle_timeout=IDLE_SECONDS
        )
        self.open_requests = 0
        """Number of running requests. Streams that only listen do not count."""
        self.task: asyncio.Task[None] | None = None


class HttpSessions:
    """The ASGI application of one mount point.

    `open` creates the MCP server of a session. `sessionless` answers requests without a session and finds the caller
    in the ASGI scope.
    """

    def __init__(self, open: OpenServer, sessionless: Server[Any]) -> None:
        self._open = open
        self._sessions: dict[str, _Session] = {}
        self._stateless = StreamableHTTPSessionManager(
            app=sessionless, stateless=True, max_request_body_size=MAX_BODY
        )  # fmt: skip
        self._ending = asyncio.Event()
        self._stateless_task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        version = headers.get("mcp-protocol-version")
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._start_stateless()
            await self._stateless.handle_request(scope, receive, send)
            return
        caller: McpCaller = scope[MCP_CALLER]
        session_id = headers.get(MCP_SESSION_ID_HEADER)
        if session_id is None:
            await self._start_session(caller, scope, receive, send)
            return
        session = self._sessions.get(session_id)
        # A session of another key is not found.
        if session is None or (session.caller.owner, session.caller.key_id) != (caller.owner, caller.key_id):
            await _not_found()(scope, receive, send)
            return
        if scope["method"] == "DELETE":
            # Answered after the session has ended, so that a client that reconnects finds its slot and box free.
            await self._end_session(session_id, session)
            await Response(status_code=200)(scope, receive, send)
            return
        await self._forward(session, scope, receive, send)

    async def _forward(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> None:
        counts = scope["method"] == "POST"
        session.open_requests += counts
        try:
            await session.transport.handle_request(scope, receive, send)
        finally:
            session.open_requests -= counts

    # --- with a handshake -----------------------------------------------------------------------------------------

    async def _start_session(self, caller: McpCaller, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(each.caller.owner == caller.owner for each in self._sessions.values()) >= MAX_PER_OWNER:
            raise QuotaExceeded(
                f"{MAX_PER_OWNER} MCP sessions of one owner are open",
                op="mcp",
                remedy="end one with DELETE",
                retry_after=5,
            )
        session = _Session(caller)
        session_id = session.transport.mcp_session_id
        assert session_id is not None
        status = 0

        async def capture_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        opened = await self._open(caller)
        ready = asyncio.Event()
        self._sessions[session_id] = session
        session.task = asyncio.create_task(self._run_session(session_id, session, opened, ready))
        await ready.wait()
        try:
            await self._forward(session, scope, receive, capture_status)
        finally:
            if not 200 <= status < 300:  # The request was no handshake.
                await self._end_session(session_id, session)

    async def _run_session(
        self, session_id: str, session: _Session, opened: OpenedServer, ready: asyncio.Event
    ) -> None:
        transport = session.transport
        try:
            async with transport.connect() as (reading, writing):
                ready.set()
                with transport.idle_scope or anyio.CancelScope():
                    await opened.server.run(reading, writing, options_of(opened.server))
        except Exception as error:  # The boundary of one session: log the defect, and let the others continue.
            _log.error("an MCP session broke", session=session_id[:8], error=error)
        finally:
            ready.set()
            self._sessions.pop(session_id, None)
            with anyio.CancelScope(shield=True):
                await transport.terminate()
                await opened.close()

    async def _end_session(self, session_id: str, session: _Session) -> None:
        self._sessions.pop(session_id, None)
        await session.transport.terminate()
        if session.task is not None:
            await asyncio.wait({session.task})

    # --- without a handshake ------------------------------------------------------------------------------------------

    async def _start_stateless(self) -> None:
        if self._stateless_task is not None:
            return
        ready = asyncio.Event()

        async def run() -> None:
            async with self._stateless.run():
                ready.set()
                await self._ending.wait()

        self._stateless_task = asyncio.create_task(run())
        await ready.wait()

    # --- the end --------------------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """End idle sessions now, and the others when their requests are done or the time is over."""
        end = asyncio.get_running_loop().time() + seconds
        while self._sessions:
            late = asyncio.get_running_loop().time() >= end
            for session_id, session in list(self._sessions.items()):
                if late or not session.open_requests:
                    await self._end_session(session_id, session)
            if self._sessions:
                await asyncio.sleep(0.05)
        self._ending.set()
        if self._stateless_task is not None:
            await asyncio.wait({self._stateless_task})


def _not_found() -> Response:
    body = JSONRPCError(
        jsonrpc="2.0", id=None, error=ErrorData(code=INVALID_REQUEST, message="no such session: initialize again")
    )
    return Response(body.model_dump_json(by_alias=True), status_code=404, media_type="application/json")
