"""MCP endpoints behind our door: key, Host, Origin, role, size and time are checked here; then the SDK has the word.

    mounts.mount("/mcp/servers/{name}", make, may=May.CHANGE)

`make` is called at the first request, in a thread, because the SDK takes a second to import; it returns an ASGI
application with `drain(seconds)`, such as `hutch.mcp.serving.http.HttpSessions`. The scope it gets holds the `Visitor`.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hutch.errors import Unavailable
from hutch.keeper.access.callers import called_by
from hutch.server.auth import key_text
from hutch.server.handlers import mcp_sdk
from hutch.server.handlers.questions import asked
from hutch.server.handlers.receipts import who_of
from hutch.server.request import Call, Message, Receive, Scope, Send
from hutch.server.routes import May, WrongMethod, check_role, match
from hutch.server.service import Service

if TYPE_CHECKING:
    from hutch.api import Hutch
    from hutch.mcp.serving.http import McpCaller
    from hutch.policy.profiles import Profile
    from hutch.tools.gate import Ask

METHODS = ("GET", "POST", "DELETE")
FAREWELL_SECONDS = 2.0


class Mounted(Protocol):
    """An ASGI application that can be told that the end is near."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def drain(self, seconds: float) -> None: ...


Make = Callable[[], Mounted]


class Mount:
    """One place, made when somebody comes."""

    def __init__(self, path: str, make: Make, may: May) -> None:
        self.path = path
        self.parts = tuple(path.strip("/").split("/"))
        self.may = may
        self.op = ".".join(part for part in self.parts if not part.startswith("{"))
        self._make = make
        self._made: asyncio.Task[Mounted] | None = None

    async def app(self) -> Mounted:
        if self._made is None or (self._made.done() and self._made.exception() is not None):
            self._made = asyncio.create_task(self._import_and_make())
        return await asyncio.shield(self._made)

    async def _import_and_make(self) -> Mounted:
        await mcp_sdk.load()
        return self._make()

    async def drain(self, seconds: float) -> None:
        if self._made is not None and self._made.done() and self._made.exception() is None:
            await self._made.result().drain(seconds)


class Mounts:
    """All of one server; both of its doors lead to them."""

    def __init__(self) -> None:
        self._mounts: list[Mount] = []

    def mount(self, path: str, make: Make, may: May = May.READ) -> None:
        self._mounts.append(Mount(path, make, may))

    def find(self, path: str) -> tuple[Mount, dict[str, str]] | None:
        parts = path.strip("/").split("/")
        for mount in self._mounts:
            if len(mount.parts) == len(parts) and (params := match(mount.parts, parts)) is not None:
                return mount, params
        return None

    async def drain(self, seconds: float) -> None:
        """What has not ended a while after its time is let fall: the server's own end must not wait for it."""
        parting = [asyncio.ensure_future(mount.drain(seconds)) for mount in self._mounts]
        if not parting:
            return
        done, late = await asyncio.wait(parting, timeout=seconds + FAREWELL_SECONDS)
        for each in late:
            each.cancel()
        for each in done:
            each.result()


async def enter(mount: Mount, call: Call, scope: Scope, receive: Receive, send: Send, request: str) -> None:
    """For a caller whom the door has let in. The body is read here, within its bounds."""
    if call.service.draining.is_set():
        raise Unavailable("the server is about to end", retry_after=1.0, remedy="try again when it is back")
    check_role(mount.may, call.caller, call.op)
    if scope["method"] not in METHODS:
        raise WrongMethod(scope["method"][:20], scope["path"][:200], list(METHODS))
    body = await call.whole_body() if scope["method"] == "POST" else b""
    app = await mount.app()
    from hutch.mcp.serving.http import MCP_CALLER

    with called_by(who_of(call.caller, request), call.caller.rights):
        await app({**scope, MCP_CALLER: _mcp_caller(call)}, _again(body, receive), send)


def _mcp_caller(call: Call) -> "McpCaller":
    from hutch.mcp.serving.http import McpCaller

    caller = call.caller
    return McpCaller(
        owner=caller.owner, key_id=caller.key_id, role=str(caller.role), key=key_text(call.headers),
        params=call.params, query=call.query(dict[str, str]),
    )  # fmt: skip


def _again(body: bytes, receive: Receive) -> Receive:
    """The body that was read, and then whatever comes: that the client leaves."""
    told = False

    async def next_message() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


# --- Hutch's own tools ------------------------------------------------------------------------------------------------


class OwnTools:
    """`/mcp`: every visitor works at this server's own API, by its Unix socket and with the key it came with. So there
    is one place that knows what a key may do, and a revoked one can do nothing from then on."""

    def __init__(self, service: Service, socket: Path) -> None:
        from hutch.mcp.serving.http import HttpSessions
        from hutch.mcp.serving.http_sessions import HttpClientSessions

        def profile(spec: Mapping[str, str]) -> "Profile":
            return service.config.resolve_profile(spec.get("profile"))

        def ask(mcp_caller: "McpCaller") -> "Ask | None":
            return partial(asked, service, mcp_caller.owner) if service.config.server.answer_sec else None

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
