"""Requests to a server: headers, JSON both ways, errors as their original classes, retries, and lease heartbeats."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from hutch.client.transport.connections import Address, ConnectionPool, HeartbeatConnection
from hutch.client.transport.heartbeat import ConnectionListener, Heartbeat, Rhythm
from hutch.client.transport.http import Body, ConnectionBroken, NotConnected, Response
from hutch.errors import HeldElsewhere, HutchError, Invalid, Unavailable
from hutch.model.boxes import Lease
from hutch.model.compatibility import convert_newer, decode_newer
from hutch.model.record import encode_json

T = TypeVar("T")

JSON = "application/json"
BYTES = "application/octet-stream"
NDJSON = "application/x-ndjson"
BOXES_PER_BEAT = 1000
"""Most boxes that a server accepts in one heartbeat. More boxes need several."""


class Repeat(Enum):
    """Whether a request is sent again after its connection broke."""

    ALWAYS = "always"
    """The request is idempotent and is sent again."""
    UNSENT = "unsent"
    """The request is sent again only if the server cannot have seen it."""
    NEVER = "never"
    """The request is never sent again, because the caller wants to know now."""


class Server:
    """One server, with the connections and the heartbeat that all sessions of this process share."""

    def __init__(
        self, address: Address, key: str = "", *, rhythm: Rhythm | None = None,
        on_change: ConnectionListener | None = None, expected: bool = False,
        elsewhere: "Callable[[HeldElsewhere], Server] | None" = None,
    ) -> None:  # fmt: skip
        self.address = address
        self.elsewhere = elsewhere
        """Finds the server of another process that keeps a box, where processes share boxes."""
        self.home: Server | None = None
        """The server that the client was made for, if this one was only found through it."""
        self.held_leases: dict[tuple[str, str], HeldLease] = {}
        """Leases that heartbeats keep alive, by session and box id."""
        self._pool = ConnectionPool(address)
        self._heartbeat_connection = HeartbeatConnection(address)
        self.key = key
        self._fixed_headers = f"Host: {address.host_header}\r\nHutch-Client: {secrets.token_hex(8)}\r\n"
        if key:
            if not (key.isascii() and key.isprintable()):
                raise Invalid("the key has characters that no key has", remedy="check it")
            self._fixed_headers += f"Authorization: Bearer {key}\r\n"
        self._was_reached = expected
        """The server has answered before or is known to exist, so requests wait for it to come back."""
        self._closed = False
        self.heartbeat = Heartbeat(
            rhythm or Rhythm(), self._beat, lambda: self._heartbeat_connection.gone, self._pool.dispose, on_change
        )  # fmt: skip

    # --- one request ---------------------------------------------------------------------------------------

    async def ask(
        self, kind: type[T], method: str, path: str, /, *, headers: Mapping[str, str], body: object = None,
        content: Body | None = None, repeat: Repeat = Repeat.ALWAYS, seconds: float | None = None, part: str = "",
        **query: object,
    ) -> T:  # fmt: skip
        """Return the JSON answer, or the named `part` of it, as `kind`. Errors are raised as their original class."""
        data, _ = await self.get(
            method, path, headers=headers, body=body, content=content, repeat=repeat, seconds=seconds, **query
        )
        op = f"{method} {path}"
        if part:
            return convert_answer(decode_answer(data, dict[str, Any], op).get(part), kind, op)
        return decode_answer(data or b"null", kind, op)

    async def get(
        self, method: str, path: str, /, *, headers: Mapping[str, str], body: object = None,
        content: Body | None = None, repeat: Repeat = Repeat.ALWAYS, seconds: float | None = None,
        **query: object,
    ) -> tuple[bytes, Mapping[str, str]]:  # fmt: skip
        """Return body and headers of a successful answer. `seconds` bounds the wait for a lost server."""
        sent = encode_json(body) if body is not None else content
        outage = OutageTimer(self.heartbeat.rhythm.outage_timeout_sec if seconds is None else seconds)
        while True:
            outage.start_attempt()
            try:
                response = await self._send(method, path, headers, sent, query)
                return await self._checked_body(response), response.headers
            except Unavailable as error:
                await self._wait_to_retry(error, repeat, outage.remaining())

    @asynccontextmanager
    async def open(
        self, method: str, path: str, /, *, headers: Mapping[str, str], content: Body | None = None,
        repeat: Repeat = Repeat.ALWAYS, **query: object,
    ) -> AsyncIterator[Response]:  # fmt: skip
        """Open a successful answer for reading piece by piece. Leaving early aborts the rest."""
        outage = OutageTimer(self.heartbeat.rhythm.outage_timeout_sec)
        while True:
            outage.start_attempt()
            try:
                response = await self._send(method, path, headers, content, query)
                if response.status >= 300:
                    await self._checked_body(response)
                break
            except Unavailable as error:
                await self._wait_to_retry(error, repeat, outage.remaining())
        try:
            yield response
        finally:
            response.close()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, query: Mapping[str, object]
    ) -> Response:
        if self._closed:
            raise Unavailable("this Hutch is closed", retryable=False, remedy="make a new one")
        self.heartbeat.start()
        response = await self._pool.ask(self._head(method, path, headers, body, query), body)
        self._was_reached = True
        return response

    def _head(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None, query: Mapping[str, object]
    ) -> bytes:
        lines = [f"{method} {path}{_query(query)} HTTP/1.1\r\n", self._fixed_headers]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items() if value]
        if isinstance(body, bytes | bytearray | memoryview):
            lines.append(f"Content-Length: {len(body)}\r\n")
        elif body is not None:
            lines.append("Transfer-Encoding: chunked\r\n")
        elif method not in ("GET", "HEAD"):
            lines.append("Content-Length: 0\r\n")
        return "".join([*lines, "\r\n"]).encode("ascii")

    async def _checked_body(self, response: Response) -> bytes:
        data = await response.read_all()
        if response.status < 300:
            return data
        raise _error(response.status, data)

    async def _wait_to_retry(self, error: Unavailable, repeat: Repeat, left: float) -> None:
        """Return when the same request may be sent again, or raise its error."""
        met = isinstance(error, NotConnected | ConnectionBroken)
        if met:
            self.heartbeat.report_failure()
        elif not error.details.get("draining"):
            raise error
        sent = not isinstance(error, NotConnected)
        if repeat is Repeat.NEVER or not self._was_reached or left <= 0 or (repeat is Repeat.UNSENT and sent):
            raise error
        if not met:
            await asyncio.sleep(min(left, error.retry_after or 1.0))
        elif not await self.heartbeat.wait_until_up(left):
            raise error

    # --- the heartbeat --------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Send the held leases to the server. Any answer shows that it is up."""
        held = [(*name, each.acquired_at) for name, each in self.held_leases.items()]
        for first in range(0, len(held) or 1, BOXES_PER_BEAT):
            await self._renew_leases(held[first : first + BOXES_PER_BEAT])

    async def _renew_leases(self, held: Sequence[tuple[str, str, float]]) -> None:
        sessions: dict[str, dict[str, float]] = {}
        for session, box_id, acquired_at in held:
            sessions.setdefault(session, {})[box_id] = acquired_at
        body = encode_json({"sessions": sessions})
        status, answer = await self._heartbeat_connection.ask(
            self._head("POST", "/v1/session/presence", {}, body, {}), body
        )
        self._was_reached = True
        if status != 200:
            return
        for session, lost in decode_answer(answer, Presence).lost.items():
            for box_id in lost:
                known = self.held_leases.get((session, box_id))
                if known is not None and known.acquired_at == sessions.get(session, {}).get(box_id):
                    del self.held_leases[session, box_id]

    def add_handle(self, session: str, box_id: str, lease: Lease, grant: int = 0) -> None:
        """Register one more handle on a box, whose lease is kept alive from now on."""
        held = self.held_leases.get((session, box_id))
        if held is None:
            held = self.held_leases[session, box_id] = HeldLease()
        held.acquired_at = lease.acquired_at
        held.count += 1
        held.grant = max(held.grant, grant)
        if lease.seconds and lease.seconds / 3 < self.heartbeat.interval_sec:
            self.heartbeat.interval_sec = lease.seconds / 3
        self.heartbeat.start()
        self.heartbeat.beat_now()

    def drop_handle(self, session: str, box_id: str) -> "HeldLease | None":
        """Remove one handle. Return the lease if it was the last handle of this session."""
        held = self.held_leases.get((session, box_id))
        if held is None:
            return None
        held.count -= 1
        if held.count:
            return None
        return self.held_leases.pop((session, box_id))

    async def close_handles(self, session: str) -> None:
        """Notify the server that this session has no open handles here any more. Its leases stay until they expire."""
        await self.heartbeat.stop()
        names = [name for name in self.held_leases if name[0] == session]
        boxes = [(box_id, self.held_leases.pop((session, box_id)).acquired_at) for _, box_id in names]
        for first in range(0, len(boxes), BOXES_PER_BEAT):
            body = {"sessions": {session: dict(boxes[first : first + BOXES_PER_BEAT])}, "closing": True}
            await self.get("POST", "/v1/session/presence", headers={}, body=body, repeat=Repeat.NEVER)

    async def close(self) -> None:
        self._closed = True
        await self.heartbeat.stop()
        self._heartbeat_connection.close()
        self._pool.dispose()


class OutageTimer:
    """Bounds how long a request waits for a lost server. A long request whose connection breaks gets the full time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = self._until = 0.0

    def start_attempt(self) -> None:
        self._begun = time.monotonic()

    def remaining(self) -> float:
        """Return the seconds that are left after a failed attempt."""
        now = time.monotonic()
        if not self._until or now - self._begun > self._seconds:
            self._until = now + self._seconds
        return self._until - now


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """The server's answer to a heartbeat."""

    lost: dict[str, list[str]]


class HeldLease:
    """The lease of one session on one box, and how many handles use it."""

    __slots__ = ("acquired_at", "count", "grant")

    def __init__(self) -> None:
        self.acquired_at = 0.0
        self.count = 0
        self.grant = 0
        """The number of the server's latest grant of the box, which a release names."""


def _query(given: Mapping[str, object]) -> str:
    parts = [f"{name}={_text(value)}" for name, value in given.items() if value is not None]
    return f"?{'&'.join(parts)}" if parts else ""


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A file name may hold any byte, so it is sent as raw bytes.
    return quote(str(value).encode("utf-8", "surrogateescape"), safe="/")


def _error(status: int, data: bytes) -> HutchError:
    try:
        fields = decode_answer(data, dict[str, Any])
    except HutchError:
        fields = {}
    if "code" in fields:
        return HutchError.of(fields)
    return Unavailable(
        f"the server answered {status} without saying why", retryable=status >= 500, remedy="is it a Hutch server?"
    )


def decode_answer(data: bytes | str, kind: type[T], op: str = "") -> T:
    """Decode an answer of a server that may be newer.

    Unknown fields are dropped and unknown states become `unknown`. Anything else raises an error with a remedy.
    """
    return _decode(lambda: decode_newer(data, kind), op)


def convert_answer(plain: object, kind: type[T], op: str = "") -> T:
    """Convert an answer that is already decoded from JSON."""
    return _decode(lambda: convert_newer(plain, kind), op)


def _decode(read: Callable[[], T], op: str) -> T:
    try:
        return read()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HutchError(
            f"the server's answer is not understood: {error}", op=op,
            remedy="use the server's version of Hutch here too: `hutch status` shows it",
        ) from error  # fmt: skip
