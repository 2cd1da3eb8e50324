"""One request as a handler sees it (`Call`) and its answer (`Reply`)."""

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
from hutch.model.record import Record, decoded
from hutch.policy.rights import Rights
from hutch.server.auth import Caller
from hutch.server.budget import Account
from hutch.server.http.connections import CONNECTION, Connection
from hutch.server.service import Service
from hutch.server.views import SMALL, WrittenResult

T = TypeVar("T")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
FILE_NAMES = frozenset({"path", "into"})
"""What a query says of files: their names may hold any byte."""
NOBODY = Caller(key_id="", role=Role.OBSERVER, owner="", session="", rights=Rights(profiles=(), actions=frozenset()))
"""Before the door was asked."""
SLOWEST = 64 << 10
"""Bytes of a body for which it gets one more second."""


class ClientLeft(Exception):
    """Nobody waits for an answer any more."""


@dataclass(slots=True)
class Reply:
    """A record, plain data or bytes at once, a result in pieces, or bytes as they come."""

    body: Record | Mapping[str, object] | bytes | WrittenResult | AsyncGenerator[bytes, None] | None = None
    status: int = 200
    type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    sent: Callable[[], None] | None = None
    """Called when the client has the whole of it, as far as can be known."""
    readers: int = 0
    """To how many it is being sent."""


class Call:
    """Who asks what. A body is read once: whole, or in pieces."""

    def __init__(
        self, service: Service, caller: Caller, scope: Scope, receive: Receive, params: Mapping[str, str]
    ) -> None:
        self.service = service
        self.caller = caller
        self.params = params
        self.headers = headers_of(scope)
        self.op = ""
        self.account: Account | None = None
        """What is held for this request; None before the door was asked."""
        self._scope = scope
        self._receive = receive
        self._left = False

    def let_in(self, scope: Scope) -> Account:
        """The door knows who calls: from here on his bytes are counted, and his connection is no stranger's."""
        key = self.caller.key_id
        connection: Connection | None = scope.get(CONNECTION)
        if connection is not None and connection.key != key:
            self.service.connections.admit(connection, key)
        self.account = self.service.budget.account(key)
        return self.account

    @property
    def keeper(self) -> Keeper:
        return self.service.keeper

    @property
    def own(self) -> OwnerView:
        """The keeper's services, limited to what the caller may see and change."""
        caller = self.caller
        # Host paths are shown only to whoever came in without a key: this user, on this machine.
        return OwnerView(
            self.keeper, caller.owner, caller.session, all_owners=caller.over_all,
            show_paths=caller.key_id == LOCAL_OWNER,
        )  # fmt: skip

    @property
    def has_query(self) -> bool:
        return bool(self._scope["query_string"])

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def accepts(self, kind: str) -> bool:
        """Named in Accept; `*/*` asks for nothing in particular."""
        return kind in self.header("accept").lower()

    def query(self, kind: type[T]) -> T:
        """The query string as a record. Each name at most once, or for a list as often as you like."""
        plain: dict[str, Any] = {}
        try:
            text = self._scope["query_string"].decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
            for name, value in pairs:
                if name not in FILE_NAMES:
                    value.encode()
        except ValueError as error:
            raise Invalid(f"the query string cannot be read: {error}") from error
        for name, value in pairs:
            if name in plain:
                raise Invalid(f"{name} stands twice in the query string")
            plain[name] = value
        try:
            return msgspec.convert(plain, type=kind, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(f"query: {error}") from error

    async def body(self, kind: type[T]) -> T:
        """The JSON body as a record; no body is an empty object."""
        data = await self.whole_body()
        try:
            if getattr(kind, "odd_names", False):
                return decoded(data or b"{}", kind)
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
            if size > SMALL and self.account is not None:
                self.account.take(len(piece))
        return b"".join(parts)

    async def pieces(self, limit: int) -> AsyncIterator[bytes]:
        """The body as it comes, at most `limit` bytes."""
        declared = self.header("content-length")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        total = 0
        more = True
        begun = time.monotonic()
        while more:
            message = await self._next_message()
            self._check_pace(total, time.monotonic() - begun)
            more = message.get("more_body", False)
            piece: bytes = message.get("body", b"")
            total += len(piece)
            if total > limit:
                raise _too_large(limit)
            if piece:
                yield piece

    def _check_pace(self, received: int, seconds: float) -> None:
        """Pieces that come one by one, each in time, must not hold a connection for ever."""
        allowed = self.service.config.server.body_total_sec
        if allowed and seconds > allowed + received / SLOWEST:
            raise Timeout(f"the body took more than {allowed:g} s", remedy="send it faster, or in parts")

    async def _next_message(self) -> Message:
        seconds = self.service.config.server.body_timeout_sec
        try:
            async with asyncio.timeout(seconds or None):
                message = await self._receive()
        except TimeoutError:
            raise Timeout(f"the body stood still for {seconds:g} s", remedy="send it without pauses") from None
        if message["type"] == "http.disconnect":
            self._left = True
            raise Invalid("the client left before its body had ended")
        return message

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that ends when the client leaves (ClientLeft): a command is killed, a stream closed, a new box undone.
        The body was read before, because the end of the connection is seen only behind it."""
        left = asyncio.ensure_future(self._leaving())
        try:
            async with asyncio.timeout(None) as there:

                def gone(_: object) -> None:
                    there.reschedule(0.0)

                left.add_done_callback(gone)
                try:
                    return await work
                finally:
                    left.remove_done_callback(gone)
        except TimeoutError:
            if not there.expired():
                raise
        finally:
            left.cancel()
        raise ClientLeft

    async def _leaving(self) -> None:
        """Returns when the client has gone. Only after the body was read."""
        while not self._left:
            self._left = (await self._receive())["type"] == "http.disconnect"


def headers_of(scope: Scope) -> dict[str, str]:
    """By lower-case name; of two with one name, the first: the second could have been smuggled in."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


def _too_large(limit: int) -> FileTooLarge:
    return FileTooLarge(f"the body is larger than {limit >> 20} MB", details={"limit": limit})
