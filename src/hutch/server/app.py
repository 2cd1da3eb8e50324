"""The ASGI application: find the route, authenticate the caller, call the handler, send its answer or its error."""

import asyncio
import math
import secrets
import time
import traceback
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from hutch import logs, telemetry
from hutch.errors import HeldElsewhere, HutchError, Unauthenticated
from hutch.keeper.access.callers import called_by
from hutch.logs import log
from hutch.model.record import Record
from hutch.model.record import encode_json as as_json
from hutch.providers.guest_client.allowance import LARGE, allowed
from hutch.server.auth import Authenticator
from hutch.server.dashboard.sign_ins import cookie_of
from hutch.server.doors import Door, Doors
from hutch.server.error_status import error_to_wire, status_of
from hutch.server.handlers.mcp_endpoint import Mounts, serve_mount
from hutch.server.handlers.receipts import who_of
from hutch.server.handlers.websockets import Sockets
from hutch.server.request import ANONYMOUS, JSON, Call, ClientDisconnected, Message, Receive, Reply, Scope, Send
from hutch.server.routes import May, Route, RouteTable, WrongMethod, check_role
from hutch.server.service import Service
from hutch.server.state.budget import Account
from hutch.server.wire import PIECE_BYTES, StreamedResult

CLIENT_DISCONNECTED = 499
"""The status in logs and metrics of a request whose client disconnected before it was answered."""
_COMMON_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class App:
    """The application of one listening socket."""

    def __init__(
        self, service: Service, auth: Authenticator, mounts: Mounts | None = None, doors: Doors | None = None
    ) -> None:
        self._service = service
        self.doors = doors or Doors()
        self._auth = auth
        self._table = RouteTable()
        self._mounts = mounts or Mounts()
        self._sockets = Sockets(service, auth)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        active, kind = self._service.metrics.active, scope["type"]
        active[kind] += 1
        try:
            with logs.operation(secrets.token_hex(6)) as request:
                if kind in ("http", "websocket") and (door := self.doors.find(scope)) is not None:
                    await self._through(door, scope, receive, send)
                elif kind == "http":
                    exchange = Exchange(self._service, self._auth, self._table, self._mounts, request, send)
                    await exchange.serve(scope, receive)
                elif kind == "websocket":
                    await self._sockets.serve(scope, receive, send)
        finally:
            active[kind] -= 1

    async def _through(self, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a door serve the request, and count it under the door's name."""
        started, status = time.monotonic(), 101 if scope["type"] == "websocket" else 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await door(scope, receive, counted)
        except ClientDisconnected:
            status = status or CLIENT_DISCONNECTED
        except Exception as error:  # The boundary of a request: a defect is reported, and the server keeps running.
            log("server").error("defect", operation=door.name, error=error, trace=traceback.format_exc())
            if scope["type"] == "http" and not status:
                status = 500
                headers = [*_COMMON_HEADERS, (b"content-length", b"0")]
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._service.metrics.count_request(door.name, status, time.monotonic() - started)


class Exchange:
    """One request and its answer."""

    def __init__(
        self, service: Service, auth: Authenticator, table: RouteTable, mounts: Mounts, request: str, send: Send
    ) -> None:
        self._service = service
        self._auth = auth
        self._table = table
        self._mounts = mounts
        self._request = request
        self._send_raw = send
        self._status = 0
        """The status that was sent; 0 until then."""
        self._cors_headers: Mapping[str, str] = {}
        """The CORS headers of every answer to this request."""

    async def serve(self, scope: Scope, receive: Receive) -> None:
        started = time.monotonic()
        call = Call(self._service, ANONYMOUS, scope, receive, {})
        call.op = "?"
        self._cors_headers = self._auth.cors_headers(call.headers)
        with telemetry.request(call.headers) as span:
            try:
                await self._handle(call, scope, receive)
            finally:
                if call.account is not None:
                    call.account.close()
            telemetry.served(span, call.op, self._status, self._request)
        seconds = time.monotonic() - started
        self._service.metrics.count_request(call.op, self._status, seconds)
        log("server").debug(
            "served", operation=call.op, status=self._status, ms=round(seconds * 1000, 2), by=call.caller.key_id
        )

    async def _handle(self, call: Call, scope: Scope, receive: Receive) -> None:
        try:
            await self._dispatch(call, scope, receive)
        except ClientDisconnected:
            self._status = self._status or CLIENT_DISCONNECTED
        except HutchError as error:
            await self._fail(call, error)
        except Exception as error:  # The boundary of a request: a defect is reported, and the server keeps running.
            log("server").error("defect", operation=call.op, error=error, trace=traceback.format_exc())
            await self._fail(call, HutchError("internal error", details={"request": self._request}))

    async def _dispatch(self, call: Call, scope: Scope, receive: Receive) -> None:
        if scope["method"] == "OPTIONS":
            preflight = self._auth.preflight_headers(call.headers, self._table.methods)
            if preflight is not None:
                self._auth.check_origin(call.headers, scope["scheme"])
                await self._send(Reply(status=204, headers=preflight))
                return
        if mounted := self._mounts.find(scope["path"]):
            mount, call.params = mounted
            call.op = mount.op
            await self._authenticate(call, scope)
            await serve_mount(mount, call, scope, receive, self._send_mounted, self._request)
            return
        try:
            route, call.params = self._table.find(scope["method"], scope["path"])
        except HutchError:
            await self._authenticate(call, scope)  # Only authenticated callers learn which paths exist.
            raise
        call.op = route.op
        if route.may is May.ANYBODY:
            if route.method != "GET":  # Foreign pages must not sign a browser in.
                self._auth.check_origin(call.headers, scope["scheme"])
            self._auth.count_anonymous(scope["client"])
        else:
            await self._authenticate(call, scope)
            check_role(route.may, call.caller, route.op)
            if call.caller.over_all and "{box}" not in route.path:  # access.py logs routes of a box, with the owner.
                log("server").warning("admin looks past owners", operation=call.op, by=call.caller.key_id)
        account = call.account = call.account or self._service.budget.account("")
        with called_by(who_of(call.caller, self._request), call.caller.rights), allowed(account):
            arguments = await route.parse(call)
            if route.long:
                await call.until_disconnect(self._run_handler(call, route, arguments))
            else:
                await self._run_handler(call, route, arguments)

    async def _authenticate(self, call: Call, scope: Scope) -> None:
        self._auth.check_origin(call.headers, scope["scheme"])
        call.caller = await self._auth.authenticate(call.headers, scope["client"], scope)
        call.admit(scope)

    async def _run_handler(self, call: Call, route: Route, arguments: dict[str, Any]) -> None:
        await self._send(await route.handler(call, **arguments), call.account)

    # --- sending --------------------------------------------------------------------------------------------

    async def _send(self, reply: Reply, account: Account | None = None) -> None:
        body = reply.body
        if isinstance(body, AsyncGenerator):
            async with aclosing(body) as pieces:
                await self._send_pieces(reply, pieces)
            return
        if isinstance(body, StreamedResult):
            if body.size > PIECE_BYTES:
                await self._send_result(reply, body, account)
                return
            data = b"".join(body.pieces())
        else:
            data = encode_json(body)
        if len(data) > PIECE_BYTES and account is not None:
            account.take(len(data))
        headers = reply.headers if reply.status in (204, 416) else {"content-length": str(len(data)), **reply.headers}
        await self._start(reply.status, "" if body is None else reply.type, headers)
        await self._body(data, more=False)

    async def _send_result(self, reply: Reply, result: StreamedResult, account: Account | None) -> None:
        """Send a large result piece by piece, and let other requests run in between."""
        if result.size <= LARGE and account is not None:
            account.take(result.size)
        reply.readers += 1
        try:
            await self._start(reply.status, reply.type, reply.headers)
            for piece in result.pieces():
                await self._body(piece, more=True)
                await asyncio.sleep(0)
            await self._body(b"", more=False)
        finally:
            reply.readers -= 1
        if reply.on_sent is not None:
            reply.on_sent()

    async def _send_pieces(self, reply: Reply, pieces: AsyncGenerator[bytes, None]) -> None:
        """Send a stream; its first piece is awaited before the status, so an early error still gets its own status."""
        first = await anext(pieces, None)
        await self._start(reply.status, reply.type, reply.headers)
        if first is not None:
            await self._body(first, more=True)
        async for piece in pieces:
            await self._body(piece, more=True)
        await self._body(b"", more=False)

    async def _fail(self, call: Call, error: HutchError) -> None:
        status = 405 if isinstance(error, WrongMethod) else status_of(error.code)
        self._service.record_failure(
            error, status=status, op=call.op, request=self._request, box=call.params.get("box", ""),
            owner=call.caller.owner,
        )  # fmt: skip
        report = log("server").warning if status >= 500 else log("server").info
        report("refused", operation=call.op, status=status, code=error.code, why=error.message, by=call.caller.key_id)
        if self._status:  # It is too late for a status: uvicorn cuts the connection, so the answer is incomplete.
            return
        headers: dict[str, str] = {}
        if isinstance(error, WrongMethod):
            headers["allow"] = ", ".join(error.allowed)
        if isinstance(error, Unauthenticated):
            headers["www-authenticate"] = "Bearer"
        if error.retry_after is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after))
        if isinstance(error, HeldElsewhere) and (url := error.details.get("url")) and not cookie_of(call.headers):
            # 307 keeps method and body. The answer is the same error, for clients that know how to follow it. A page
            # would be sent to a server where it is not signed in, and could not read the error.
            status, headers["location"] = 307, f"{url}{call.target}"
        body = encode_json(error_to_wire(error, call.op))
        await self._start(status, JSON, {"content-length": str(len(body)), **headers})
        await self._body(body, more=False)

    async def _send_mounted(self, message: Message) -> None:
        """Send an answer of the MCP SDK with the headers that every answer of Hutch has."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            ours = [*_COMMON_HEADERS, (b"hutch-request", self._request.encode())]
            ours += [(name.encode(), value.encode("latin-1", "replace")) for name, value in self._cors_headers.items()]
            named = {name for name, _ in ours}
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in named]
            message = {**message, "headers": [*kept, *ours]}
        await self._send_raw(message)

    async def _start(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self._status = status
        listed = [*_COMMON_HEADERS, (b"hutch-request", self._request.encode())]
        if kind:
            listed.append((b"content-type", kind.encode()))
        both = {**headers, **self._cors_headers}
        listed += [(name.encode(), value.encode("latin-1", "replace")) for name, value in both.items()]
        await self._send_raw({"type": "http.response.start", "status": status, "headers": listed})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send_raw({"type": "http.response.body", "body": data, "more_body": more})


def encode_json(body: Record | Mapping[str, object] | bytes | None) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if body is None else as_json(body)
