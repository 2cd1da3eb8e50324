"""Asking a server: headers, JSON both ways, errors as the classes they were, and what may be asked twice."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from hutch.client.connections import Address, Line, Pool
from hutch.client.heartbeat import Lifeline, Rhythm, Told
from hutch.client.http import Body, Broken, Response, Unreached
from hutch.errors import HeldElsewhere, HutchError, Invalid, Unavailable
from hutch.model.boxes import Lease
from hutch.model.compatibility import of_a_newer_release, of_a_newer_release_plain
from hutch.model.record import encoded

T = TypeVar("T")

JSON = "application/json"
BYTES = "application/octet-stream"
NDJSON = "application/x-ndjson"
BOXES_PER_BEAT = 1000
"""More are named by several heartbeats: a server takes no more at once."""


class Repeat(Enum):
    """What becomes of a request whose connection broke."""

    ALWAYS = "always"
    """Asked again: doing it twice is doing it once."""
    UNSENT = "unsent"
    """Asked again only if the server cannot have seen it."""
    NEVER = "never"
    """Not even that: the caller wants to know now."""


class Server:
    """One server, and everything that several sessions of this process share to reach it."""

    def __init__(
        self, address: Address, key: str = "", *, rhythm: Rhythm | None = None, told: Told | None = None,
        expected: bool = False, elsewhere: "Callable[[HeldElsewhere], Server] | None" = None,
    ) -> None:  # fmt: skip
        self.address = address
        self.elsewhere = elsewhere
        """How the process is reached that keeps a box which this one does not, where processes share boxes."""
        self.handles: dict[tuple[str, str], Held] = {}
        """Boxes whose leases are kept alive, by session and id."""
        self._pool = Pool(address)
        self._line = Line(address)
        self._fixed = f"Host: {address.named}\r\nHutch-Client: {secrets.token_hex(8)}\r\n"
        if key:
            if not (key.isascii() and key.isprintable()):
                raise Invalid("the key has characters that no key has", remedy="check it")
            self._fixed += f"Authorization: Bearer {key}\r\n"
        self._reached = expected
        """It has answered before, or is known to be there: then it is worth to wait for."""
        self._closed = False
        self.life = Lifeline(
            rhythm or Rhythm(), self._beat, lambda: self._line.gone, self._pool.dispose, told
        )  # fmt: skip

    # --- one question ---------------------------------------------------------------------------------------

    async def ask(
        self, kind: type[T], method: str, path: str, /, *, headers: Mapping[str, str], body: object = None,
        content: Body | None = None, repeat: Repeat = Repeat.ALWAYS, seconds: float | None = None, part: str = "",
        **query: object,
    ) -> T:  # fmt: skip
        """The JSON of a good answer, or the named part of it, as `kind`; an error answer is raised as what it was."""
        data, _ = await self.get(
            method, path, headers=headers, body=body, content=content, repeat=repeat, seconds=seconds, **query
        )
        op = f"{method} {path}"
        if part:
            return answered_plain(answered(data, dict[str, Any], op).get(part), kind, op)
        return answered(data or b"null", kind, op)

    async def get(
        self, method: str, path: str, /, *, headers: Mapping[str, str], body: object = None,
        content: Body | None = None, repeat: Repeat = Repeat.ALWAYS, seconds: float | None = None,
        **query: object,
    ) -> tuple[bytes, Mapping[str, str]]:  # fmt: skip
        """The body of a good answer, whole, and its headers. `seconds` bounds the patience with a lost server."""
        sent = encoded(body) if body is not None else content
        outage = Outage(self.life.rhythm.patience_sec if seconds is None else seconds)
        while True:
            outage.trying()
            try:
                response = await self._send(method, path, headers, sent, query)
                return await self._good(response), response.headers
            except Unavailable as error:
                await self._come_back(error, repeat, outage.left())

    @asynccontextmanager
    async def open(
        self, method: str, path: str, /, *, headers: Mapping[str, str], content: Body | None = None,
        repeat: Repeat = Repeat.ALWAYS, **query: object,
    ) -> AsyncIterator[Response]:  # fmt: skip
        """A good answer that is read piece by piece; leaving breaks off what was not read."""
        outage = Outage(self.life.rhythm.patience_sec)
        while True:
            outage.trying()
            try:
                response = await self._send(method, path, headers, content, query)
                if response.status >= 300:
                    await self._good(response)
                break
            except Unavailable as error:
                await self._come_back(error, repeat, outage.left())
        try:
            yield response
        finally:
            response.close()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, query: Mapping[str, object]
    ) -> Response:
        if self._closed:
            raise Unavailable("this Hutch is closed", retryable=False, remedy="make a new one")
        self.life.start()
        response = await self._pool.ask(self._head(method, path, headers, body, query), body)
        self._reached = True
        return response

    def _head(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, query: Mapping[str, object]
    ) -> bytes:
        lines = [f"{method} {path}{_query(query)} HTTP/1.1\r\n", self._fixed]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items() if value]
        if isinstance(body, bytes | bytearray | memoryview):
            lines.append(f"Content-Length: {len(body)}\r\n")
        elif body is not None:
            lines.append("Transfer-Encoding: chunked\r\n")
        elif method not in ("GET", "HEAD"):
            lines.append("Content-Length: 0\r\n")
        return "".join([*lines, "\r\n"]).encode("ascii")

    async def _good(self, response: Response) -> bytes:
        data = await response.whole()
        if response.status < 300:
            return data
        raise _error(response.status, data)

    async def _come_back(self, error: Unavailable, repeat: Repeat, left: float) -> None:
        """Returns when the same request may be sent again, else raises its error."""
        met = isinstance(error, Unreached | Broken)
        if met:
            self.life.suspect()
        elif not error.details.get("draining"):
            raise error
        sent = not isinstance(error, Unreached)
        if repeat is Repeat.NEVER or not self._reached or left <= 0 or (repeat is Repeat.UNSENT and sent):
            raise error
        if not met:
            await asyncio.sleep(min(left, error.retry_after or 1.0))
        elif not await self.life.there(left):
            raise error

    # --- the heartbeat --------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Tells which leases are to be kept; any answer is one."""
        held = [(*name, each.acquired_at) for name, each in self.handles.items()]
        for first in range(0, len(held) or 1, BOXES_PER_BEAT):
            await self._keep(held[first : first + BOXES_PER_BEAT])

    async def _keep(self, held: Sequence[tuple[str, str, float]]) -> None:
        sessions: dict[str, dict[str, float]] = {}
        for session, box_id, acquired_at in held:
            sessions.setdefault(session, {})[box_id] = acquired_at
        body = encoded({"sessions": sessions})
        status, told = await self._line.ask(self._head("POST", "/v1/session/presence", {}, body, {}), body)
        self._reached = True
        if status != 200:
            return
        for session, lost in answered(told, Presence).lost.items():
            for box_id in lost:
                known = self.handles.get((session, box_id))
                if known is not None and known.acquired_at == sessions.get(session, {}).get(box_id):
                    del self.handles[session, box_id]

    def hold(self, session: str, box_id: str, lease: Lease) -> None:
        """One more handle on a box: its lease is kept alive from now on."""
        held = self.handles.get((session, box_id))
        if held is None:
            held = self.handles[session, box_id] = Held()
        held.acquired_at = lease.acquired_at
        held.count += 1
        if lease.seconds and lease.seconds / 3 < self.life.every:
            self.life.every = lease.seconds / 3
        self.life.start()
        self.life.beat_now()

    def let_go(self, session: str, box_id: str) -> bool:
        """One handle less; whether that was the last of this session."""
        held = self.handles.get((session, box_id))
        if held is None:
            return False
        held.count -= 1
        if held.count:
            return False
        del self.handles[session, box_id]
        return True

    async def close(self) -> None:
        self._closed = True
        await self.life.stop()
        self._line.close()
        self._pool.dispose()


class Outage:
    """How much patience is left with a server that does not answer. A request that had waited for long in good order
    when its connection broke has all of it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = self._until = 0.0

    def trying(self) -> None:
        self._begun = time.monotonic()

    def left(self) -> float:
        """After a try that failed."""
        now = time.monotonic()
        if not self._until or now - self._begun > self._seconds:
            self._until = now + self._seconds
        return self._until - now


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A server's answer to a heartbeat."""

    lost: dict[str, list[str]]


class Held:
    """Handles of one session on one box."""

    __slots__ = ("acquired_at", "count")

    def __init__(self) -> None:
        self.acquired_at = 0.0
        self.count = 0


def _query(given: Mapping[str, object]) -> str:
    parts = [f"{name}={_text(value)}" for name, value in given.items() if value is not None]
    return f"?{'&'.join(parts)}" if parts else ""


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A file's name may hold any byte: it goes as the bytes it is.
    return quote(str(value).encode("utf-8", "surrogateescape"), safe="/")


def _error(status: int, data: bytes) -> HutchError:
    try:
        told = answered(data, dict[str, Any])
    except HutchError:
        told = {}
    if "code" in told:
        return HutchError.of(told)
    return Unavailable(
        f"the server answered {status} without saying why", retryable=status >= 500, remedy="is it a Hutch server?"
    )


def answered(data: bytes | str, kind: type[T], op: str = "") -> T:
    """What the server said, as `kind`."""
    return _understood(lambda: of_a_newer_release(data, kind), op)


def answered_plain(plain: object, kind: type[T], op: str = "") -> T:
    """The same for what is decoded already."""
    return _understood(lambda: of_a_newer_release_plain(plain, kind), op)


def _understood(read: Callable[[], T], op: str) -> T:
    try:
        return read()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HutchError(
            f"the server's answer is not understood: {error}", op=op,
            remedy="use the server's version of Hutch here too: `hutch status` tells it",
        ) from error  # fmt: skip
