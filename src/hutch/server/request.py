"""One request as its handler sees it (`Call`), and the answer that the handler returns (`Reply`)."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from hutch.errors import FileTooLarge, Invalid, Timeout
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.keeper import Keeper
from hutch.keeper.keys import Role
from hutch.keeper.owner_view import OwnerView
from hutch.model.record import Record, decode_json
from hutch.policy.rights import Rights
from hutch.server.auth import Caller
from hutch.server.http.connections import CONNECTION, Connection
from hutch.server.service import Service
from hutch.server.state.budget import Account
from hutch.server.wire import PIECE_BYTES, StreamedResult

T = TypeVar("T")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
PATH_PARAMETERS = frozenset({"path", "into"})
"""Query parameters that are paths of files, whose names may contain any byte."""
ANONYMOUS = Caller(key_id="", role=Role.OBSERVER, owner="", session="", rights=Rights(profiles=(), actions=frozenset()))
"""The caller of a request that is not authenticated yet."""
MIN_BODY_RATE = 64 << 10
"""Bytes per second of a body: each such amount received extends the time for the whole body by a second."""


class ClientDisconnected(Exception):
    """The client has closed its connection and gets no answer."""


@dataclass(slots=True)
class Reply:
    """An answer: a record, plain data or bytes sent at once, a result sent in pieces, or a stream of bytes."""

    body: Record | Mapping[str, object] | bytes | StreamedResult | AsyncGenerator[bytes, None] | None = None
    status: int = 200
    type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    on_sent: Callable[[], None] | None = None
    """Called when the whole answer was sent."""
    readers: int = 0
    """The number of clients to which it is being sent now."""


class Call:
    """One request and its caller. The body can be read once, as a whole or in pieces."""

    def __init__(
        self, service: Service, caller: Caller, scope: Scope, receive: Receive, params: Mapping[str, str]
    ) -> None:
        self.service = service
        self.caller = caller
        self.params = params
        self.headers = headers_of(scope)
        self.op = ""
        self.account: Account | None = None
        """Counts the bytes held for this request; None until the caller is authenticated."""
        self._scope = scope
        self._receive = receive
        self._disconnected = False

    def admit(self, scope: Scope) -> Account:
        """Count the connection, and from now on the bytes held for this request, as the authenticated caller's."""
        owner = self.caller.owner
        connection: Connection | None = scope.get(CONNECTION)
        if connection is not None and connection.owner != owner:
            self.service.connections.admit(connection, owner)
        if connection is not None:
            connection.key = self.caller.key_id
        self.account = self.service.budget.account(self.caller.key_id)
        return self.account

    def end_key(self, key: str) -> None:
        """End what was begun with a key that is revoked now; the answer to this request is still sent."""
        self.service.connections.end_key(key, but=self._scope.get(CONNECTION))

    @property
    def keeper(self) -> Keeper:
        return self.service.keeper

    @property
    def own(self) -> OwnerView:
        """The keeper's services, limited to what the caller may see and change."""
        caller = self.caller
        # Only a caller without a key, who is this user on this machine, gets to see host paths.
        return OwnerView(
            self.keeper, caller.owner, caller.session, all_owners=caller.over_all,
            show_paths=caller.key_id == LOCAL_OWNER,
        )  # fmt: skip

    @property
    def target(self) -> str:
        """Path and query as the client sent them."""
        query = self._scope["query_string"].decode("ascii", "replace")
        path = self._scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        return f"{path}?{query}" if query else path

    @property
    def has_query(self) -> bool:
        return bool(self._scope["query_string"])

    @property
    def secure(self) -> bool:
        """Whether the client came over TLS."""
        return str(self._scope["scheme"]) in ("https", "wss")

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def accepts(self, kind: str) -> bool:
        """Whether Accept names this media type; `*/*` names none."""
        return kind in self.header("accept").lower()

    def query(self, kind: type[T]) -> T:
        """The query string as a record; each name may occur once."""
        values: dict[str, Any] = {}
        try:
            text = self._scope["query_string"].decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
            for name, value in pairs:
                if name not in PATH_PARAMETERS:
                    value.encode()
        except ValueError as error:
            raise Invalid(f"the query string cannot be read: {error}") from error
        for name, value in pairs:
            if name in values:
                raise Invalid(f"{name} occurs twice in the query string")
            values[name] = value
        try:
            return msgspec.convert(values, type=kind, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(f"query: {error}") from error

    async def body(self, kind: type[T]) -> T:
        """The JSON body as a record; a missing body counts as an empty object."""
        data = await self.whole_body()
        try:
            if getattr(kind, "odd_names", False):
                return decode_json(data or b"{}", kind)
            return msgspec.json.decode(data or b"{}", type=kind)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"body: {error}") from error
        except RecursionError as error:
            raise Invalid("body: it is nested too deeply") from error

    async def whole_body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for piece in self.pieces(self.service.config.server.max_body_mb << 20):
            parts.append(piece)
            size += len(piece)
            if size > PIECE_BYTES and self.account is not None:
                self.account.take(len(piece))
        return b"".join(parts)

    async def pieces(self, limit: int) -> AsyncIterator[bytes]:
        """The body in pieces as they arrive; FileTooLarge after `limit` bytes."""
        declared = self.header("content-length")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        total = 0
        more = True
        begun = time.monotonic()
        while more:
            message = await self._next_message()
            self._check_rate(total, time.monotonic() - begun)
            more = message.get("more_body", False)
            piece: bytes = message.get("body", b"")
            total += len(piece)
            if total > limit:
                raise _too_large(limit)
            if piece:
                yield piece

    def _check_rate(self, received: int, seconds: float) -> None:
        """Raise Timeout for a body that is sent too slowly to end, even if each piece arrives in time."""
        allowed = self.service.config.server.body_total_sec
        if allowed and seconds > allowed + received / MIN_BODY_RATE:
            raise Timeout(f"the body took more than {allowed:g} s", remedy="send it faster, or in parts")

    async def _next_message(self) -> Message:
        seconds = self.service.config.server.body_timeout_sec
        try:
            async with asyncio.timeout(seconds or None):
                message = await self._receive()
        except TimeoutError:
            raise Timeout(f"no part of the body arrived for {seconds:g} s", remedy="send it without pauses") from None
        if message["type"] == "http.disconnect":
            self._disconnected = True
            raise Invalid("the client disconnected before its body was complete")
        return message

    async def until_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`, and cancel it when the client disconnects: a command is killed, a new box is removed.

        The body must have been read, because a disconnect is received only after it. Raises ClientDisconnected.
        """
        disconnect = asyncio.ensure_future(self._wait_for_disconnect())
        working = True
        try:
            async with asyncio.timeout(None) as scope:

                def cancel(_: object) -> None:
                    if working:  # The end of an answer counts as a disconnect too, and both may come in one turn.
                        scope.reschedule(0.0)

                disconnect.add_done_callback(cancel)
                try:
                    return await work
                finally:
                    working = False
                    disconnect.remove_done_callback(cancel)
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            disconnect.cancel()
        raise ClientDisconnected

    async def _wait_for_disconnect(self) -> None:
        """Return when the client has disconnected; the body must have been read."""
        while not self._disconnected:
            self._disconnected = (await self._receive())["type"] == "http.disconnect"


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers by lower-case name; of two with one name the first counts, as the second may be smuggled in."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


def _too_large(limit: int) -> FileTooLarge:
    return FileTooLarge(f"the body is larger than {limit >> 20} MB", details={"limit": limit})
