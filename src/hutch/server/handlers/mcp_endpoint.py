"""MCP endpoints: Hutch checks key, host, origin, role, size and time of a request, then the MCP SDK serves it.

    mounts.mount("/mcp/servers/{name}", make, may=May.CHANGE)

`make` is called at the first request, after the SDK was imported in a thread. It returns an ASGI application with
`drain(seconds)`, such as `hutch.mcp.serving.http.HttpSessions`, which finds the `Visitor` in its scope.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hutch.errors import Unavailable
from hutch.keeper.access.callers import called_by
from hutch.mcp.sdk import load_sdk
from hutch.server.auth import key_text
from hutch.server.handlers.questions import ask_people
from hutch.server.handlers.receipts import who_of
from hutch.server.request import Call, Message, Receive, Scope, Send
from hutch.server.routes import May, WrongMethod, check_role, match_path
from hutch.server.service import Service

if TYPE_CHECKING:
    from hutch.api import Hutch
    from hutch.mcp.serving.http import McpCaller
    from hutch.policy.profiles import Profile
    from hutch.tools.gate import Ask

METHODS = ("GET", "POST", "DELETE")
DRAIN_MARGIN_SECONDS = 2.0
"""Time beyond the drain period after which an application is no longer waited for."""


class Mounted(Protocol):
    """An ASGI application that can be drained."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def drain(self, seconds: float) -> None: ...


Make = Callable[[], Mounted]


class Mount:
    """The application at one path, created at its first request."""

    def __init__(self, path: str, make: Make, may: May) -> None:
        self.path = path
        self.parts = tuple(path.strip("/").split("/"))
        self.may = may
        self.op = ".".join(part for part in self.parts if not part.startswith("{"))
        self._make = make
        self._app: asyncio.Task[Mounted] | None = None

    async def app(self) -> Mounted:
        if self._app is None or (self._app.done() and self._app.exception() is not None):
            self._app = asyncio.create_task(self._create_app())
        return await asyncio.shield(self._app)

    async def _create_app(self) -> Mounted:
        await load_sdk()
        return self._make()

    async def drain(self, seconds: float) -> None:
        if self._app is not None and self._app.done() and self._app.exception() is None:
            await self._app.result().drain(seconds)


class Mounts:
    """All mounted applications of one server, reached through each of its sockets."""

    def __init__(self) -> None:
        self._mounts: list[Mount] = []

    def mount(self, path: str, make: Make, may: May = May.READ) -> None:
        self._mounts.append(Mount(path, make, may))

    def find(self, path: str) -> tuple[Mount, dict[str, str]] | None:
        parts = path.strip("/").split("/")
        for mount in self._mounts:
            if len(mount.parts) == len(parts) and (params := match_path(mount.parts, parts)) is not None:
                return mount, params
        return None

    async def drain(self, seconds: float) -> None:
        """Drain every application; one that takes much longer is cancelled, so that the server can stop."""
        draining = [asyncio.ensure_future(mount.drain(seconds)) for mount in self._mounts]
        if not draining:
            return
        done, late = await asyncio.wait(draining, timeout=seconds + DRAIN_MARGIN_SECONDS)
        for each in late:
            each.cancel()
        for each in done:
            each.result()


async def serve_mount(mount: Mount, call: Call, scope: Scope, receive: Receive, send: Send, request: str) -> None:
    """Serve an authenticated caller; the body is read here, within its limits."""
    if call.service.draining.is_set():
        raise Unavailable("the server is stopping", retry_after=1.0, remedy="retry when it is back")
    check_role(mount.may, call.caller, call.op)
    if scope["method"] not in METHODS:
        raise WrongMethod(scope["method"][:20], scope["path"][:200], list(METHODS))
    body = await call.whole_body() if scope["method"] == "POST" else b""
    app = await mount.app()
    from hutch.mcp.serving.http import MCP_CALLER

    with called_by(who_of(call.caller, request), call.caller.rights):
        await app({**scope, MCP_CALLER: _mcp_caller(call)}, _replay(body, receive), send)


def _mcp_caller(call: Call) -> "McpCaller":
    from hutch.mcp.serving.http import McpCaller

    caller = call.caller
    return McpCaller(
        owner=caller.owner, key_id=caller.key_id, role=str(caller.role), key=key_text(call.headers),
        params=call.params, query=call.query(dict[str, str]),
    )  # fmt: skip


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body that was already read, and then what follows: the disconnect."""
    replayed = False

    async def next_message() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


# --- Hutch's own tools ------------------------------------------------------------------------------------------------


class OwnTools:
    """`/mcp`: Hutch's own tools, which call this server's API through its Unix socket with the client's key.

    The rights of a key are thereby checked in one place, and a revoked key can do nothing from then on. The SDK's
    sessions serve each request as it is; this object makes them, and ends them together with the agents' leases.
    """

    def __init__(self, service: Service, socket: Path) -> None:
        from hutch.mcp.serving.http import HttpSessions
        from hutch.mcp.serving.http_sessions import HttpClientSessions

        def profile(spec: Mapping[str, str]) -> "Profile":
            return service.config.resolve_profile(spec.get("profile"))

        def ask(mcp_caller: "McpCaller") -> "Ask | None":
            return partial(ask_people, service, mcp_caller.owner) if service.config.server.answer_sec else None

        self._socket = socket
        self._client_sessions = HttpClientSessions(self._hutch, service.config.permissions, profile, ask)
        self._sessions = HttpSessions(self._client_sessions.open, self._client_sessions.sessionless())

    def _hutch(self, mcp_caller: "McpCaller") -> "Hutch":
        from hutch.client.remote import RemoteHutch

        return RemoteHutch(f"unix:{self._socket}", key=mcp_caller.key, session="mcp", expected=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._sessions(scope, receive, send)

    async def drain(self, seconds: float) -> None:
        await self._sessions.drain(seconds)
        await self._client_sessions.close()
