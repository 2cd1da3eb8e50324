"""The ASGI application: find the route, ask the door, call the handler, send its answer or its error."""

import asyncio
import math
import secrets
import time
import traceback
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from hutch import logs, telemetry
from hutch.errors import HutchError, Unauthenticated
from hutch.keeper.access.callers import called_by
from hutch.logs import log
from hutch.model.record import Record
from hutch.model.record import encoded as as_json
from hutch.providers.guest_client.allowance import LARGE, allowed
from hutch.server.auth import Door
from hutch.server.budget import Account
from hutch.server.error_status import status_of, wire_of
from hutch.server.handlers.mcp_endpoint import Mounts, enter
from hutch.server.handlers.receipts import who_of
from hutch.server.handlers.websockets import Sockets
from hutch.server.request import JSON, NOBODY, Call, ClientLeft, Message, Receive, Reply, Scope, Send
from hutch.server.routes import May, Route, Table, WrongMethod, check_role
from hutch.server.service import Service
from hutch.server.views import SMALL, WrittenResult

CLIENT_LEFT = 499
"""The client left before there was an answer: a number for logs and metrics only."""
_ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class App:
    """One for each door."""

    def __init__(self, service: Service, door: Door, mounts: Mounts | None = None) -> None:
        self._service = service
        self._door = door
        self._table = Table()
        self._mounts = mounts or Mounts()
        self._sockets = Sockets(service, door)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        active, kind = self._service.metrics.active, scope["type"]
        active[kind] += 1
        try:
            with logs.operation(secrets.token_hex(6)) as request:
                if kind == "http":
                    exchange = Exchange(self._service, self._door, self._table, self._mounts, request, send)
                    await exchange.serve(scope, receive)
                elif kind == "websocket":
                    await self._sockets.serve(scope, receive, send)
        finally:
            active[kind] -= 1


class Exchange:
    """One request and its answer."""

    def __init__(self, service: Service, door: Door, table: Table, mounts: Mounts, request: str, send: Send) -> None:
        self._service = service
        self._door = door
        self._table = table
        self._mounts = mounts
        self._request = request
        self._send_raw = send
        self._status = 0
        """Of the answer that has begun; 0: none has."""
        self._page_headers: Mapping[str, str] = {}
        """On every answer to a page that may read it."""

    async def serve(self, scope: Scope, receive: Receive) -> None:
        begun = time.monotonic()
        call = Call(self._service, NOBODY, scope, receive, {})
        call.op = "?"
        self._page_headers = self._door.page_headers(call.headers)
        with telemetry.request(call.headers) as span:
            try:
                await self._attempt(call, scope, receive)
            finally:
                if call.account is not None:
                    call.account.close()
            telemetry.served(span, call.op, self._status, self._request)
        seconds = time.monotonic() - begun
        self._service.metrics.served(call.op, self._status, seconds)
        log("server").debug(
            "served", operation=call.op, status=self._status, ms=round(seconds * 1000, 2), by=call.caller.key_id
        )

    async def _attempt(self, call: Call, scope: Scope, receive: Receive) -> None:
        try:
            await self._answer(call, scope, receive)
        except ClientLeft:
            self._status = self._status or CLIENT_LEFT
        except HutchError as error:
            await self._fail(call, error)
        except Exception as error:  # the boundary of a request: a defect of ours is reported, and the server goes on
            log("server").error("defect", operation=call.op, error=error, trace=traceback.format_exc())
            await self._fail(call, HutchError("internal error", details={"request": self._request}))

    async def _answer(self, call: Call, scope: Scope, receive: Receive) -> None:
        asked = self._door.preflight(call.headers, self._table.methods) if scope["method"] == "OPTIONS" else None
        if asked is not None:
            self._door.check_place(call.headers, scope["scheme"])
            await self._send(Reply(status=204, headers=asked))
            return
        if mounted := self._mounts.find(scope["path"]):
            mount, call.params = mounted
            call.op = mount.op
            await self._let_in(call, scope)
            await enter(mount, call, scope, receive, self._send_foreign, self._request)
            return
        try:
            route, call.params = self._table.find(scope["method"], scope["path"])
        except HutchError:
            await self._let_in(call, scope)  # whether a path is there is told only to those who may come in
            raise
        call.op = route.op
        if route.may is May.ANYBODY:
            self._door.count_stranger(scope["client"])
        else:
            await self._let_in(call, scope)
            check_role(route.may, call.caller, route.op)
            if call.caller.over_all and "{box}" not in route.path:  # with a box, its owner is logged too: access.py
                log("server").warning("admin looks past owners", operation=call.op, by=call.caller.key_id)
        account = call.account = call.account or self._service.budget.account("")
        with called_by(who_of(call.caller, self._request), call.caller.rights), allowed(account):
            taken = await route.parse(call)
            if route.long:
                await call.while_there(self._work(call, route, taken))
            else:
                await self._work(call, route, taken)

    async def _let_in(self, call: Call, scope: Scope) -> None:
        self._door.check_place(call.headers, scope["scheme"])
        call.caller = await self._door.caller(call.headers, scope["client"])
        call.let_in(scope)

    async def _work(self, call: Call, route: Route, taken: dict[str, Any]) -> None:
        await self._send(await route.handler(call, **taken), call.account)

    # --- sending --------------------------------------------------------------------------------------------

    async def _send(self, reply: Reply, account: Account | None = None) -> None:
        body = reply.body
        if isinstance(body, AsyncGenerator):
            async with aclosing(body) as pieces:
                await self._send_pieces(reply, pieces)
            return
        if isinstance(body, WrittenResult):
            if body.size > SMALL:
                await self._send_result(reply, body, account)
                return
            data = b"".join(body.pieces())
        else:
            data = encoded(body)
        if len(data) > SMALL and account is not None:
            account.take(len(data))
        headers = reply.headers if reply.status in (204, 416) else {"content-length": str(len(data)), **reply.headers}
        await self._start(reply.status, "" if body is None else reply.type, headers)
        await self._body(data, more=False)

    async def _send_result(self, reply: Reply, result: WrittenResult, account: Account | None) -> None:
        """In turns with everybody else's work."""
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
        if reply.sent is not None:
            reply.sent()

    async def _send_pieces(self, reply: Reply, pieces: AsyncGenerator[bytes, None]) -> None:
        """The first piece is awaited before the status is sent: until then every error can still be told by it."""
        first = await anext(pieces, None)
        await self._start(reply.status, reply.type, reply.headers)
        if first is not None:
            await self._body(first, more=True)
        async for piece in pieces:
            await self._body(piece, more=True)
        await self._body(b"", more=False)

    async def _fail(self, call: Call, error: HutchError) -> None:
        status = 405 if isinstance(error, WrongMethod) else status_of(error.code)
        self._service.failed(
            error, status=status, op=call.op, request=self._request, box=call.params.get("box", ""),
            owner=call.caller.owner,
        )  # fmt: skip
        tell = log("server").warning if status >= 500 else log("server").info
        tell("refused", operation=call.op, status=status, code=error.code, why=error.message, by=call.caller.key_id)
        if self._status:  # too late for a status: the connection is broken off, which nobody takes for an end
            return
        headers: dict[str, str] = {}
        if isinstance(error, WrongMethod):
            headers["allow"] = ", ".join(error.allowed)
        if isinstance(error, Unauthenticated):
            headers["www-authenticate"] = "Bearer"
        if error.retry_after is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after))
        told = encoded(wire_of(error, call.op))
        await self._start(status, JSON, {"content-length": str(len(told)), **headers})
        await self._body(told, more=False)

    async def _send_foreign(self, message: Message) -> None:
        """An answer of the SDK, with what every answer of ours has."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            own = [*_ALWAYS, (b"hutch-request", self._request.encode())]
            own += [(name.encode(), value.encode("latin-1", "replace")) for name, value in self._page_headers.items()]
            named = {name for name, _ in own}
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in named]
            message = {**message, "headers": [*kept, *own]}
        await self._send_raw(message)

    async def _start(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self._status = status
        listed = [*_ALWAYS, (b"hutch-request", self._request.encode())]
        if kind:
            listed.append((b"content-type", kind.encode()))
        both = {**headers, **self._page_headers}
        listed += [(name.encode(), value.encode("latin-1", "replace")) for name, value in both.items()]
        await self._send_raw({"type": "http.response.start", "status": status, "headers": listed})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send_raw({"type": "http.response.body", "body": data, "more_body": more})


def encoded(body: Record | Mapping[str, object] | bytes | None) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if body is None else as_json(body)
