"""The one HTTP proxy into a box: a request goes in on a connection to the port, its answer comes out as it arrives.

The server's own parser has read the request, so what goes in is written again: one request, with one length. The answer
is read by the same parser (llhttp), strictly. Redirects are the visitor's business. The caller has decided that
the visitor may reach the port.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import httptools

from hutch.errors import HutchError, PortClosed
from hutch.logs import log
from hutch.server.previews.headers import Headers, Visit, as_written, is_valid
from hutch.server.request import ClientDisconnected, Receive, Scope, Send


class Stream(Protocol):
    """A connection to whoever answers. It raises PortClosed where the other end has closed it."""

    async def receive(self) -> bytes: ...

    async def send(self, data: bytes | memoryview) -> None: ...

    def close_now(self) -> None: ...


S = TypeVar("S", bound=Stream)


class Reuse(Protocol[S]):
    """Connections of the same visitor to the same port that wait for the next request."""

    def take(self) -> S | None: ...

    def give(self, stream: S) -> None: ...


MAX_HEAD_BYTES = 256 << 10
MAX_INTERIM = 16
"""Most interim answers (1xx) before the final one."""
_LENGTHS = (b"content-length", b"transfer-encoding")
_METHOD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
_NOT_IN_TARGET = frozenset(range(0x21)) | {0x7F}


class NotProxied(Exception):
    """A request that cannot go in as exactly one request, or an answer that is no HTTP/1.1. `status` says which."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


async def proxy_http(
    connect: Callable[[], Awaitable[S]], visit: Visit, scope: Scope, receive: Receive, send: Send,
    reuse: Reuse[S] | None = None,
) -> None:  # fmt: skip
    """Pass one request to a box and its answer back. A GET without a body may use a connection again.

    Raises:
        NotProxied: The request or its answer cannot be passed on.
        PortClosed: Nothing listens, or the program closed the connection before it answered.
        ClientDisconnected: The visitor is gone.

    After the first byte of an answer nothing is raised for it: the visitor's connection is cut instead.
    """
    chunked = _is_chunked(scope)
    if reuse is not None and (scope["method"] != "GET" or chunked or _lengths(scope)):
        reuse = None
    head, has_body = _request_head(scope, visit, last=reuse is None)
    if reuse is not None and (waiting := reuse.take()) is not None:
        try:
            await _exchange(waiting, head, Answer(waiting, visit, send), receive, reuse)
            return
        except UnusedConnection:
            pass  # The program closed it meanwhile, and has not seen the request.
    stream = await connect()
    answer = Answer(stream, visit, send, is_head=scope["method"] == "HEAD")
    await _exchange(stream, head, answer, receive, reuse, chunked=chunked, has_body=has_body)


class UnusedConnection(PortClosed):
    """The connection ended before a byte of an answer came."""


async def _exchange(
    stream: S, head: bytes, answer: "Answer", receive: Receive, reuse: Reuse[S] | None, *, chunked: bool = False,
    has_body: bool = False,
) -> None:  # fmt: skip
    """Send a request and relay its answer; the connection is closed then, or waits for the next request."""
    upload = reply = None
    kept = False
    try:
        await answer.send_request(head)
        upload = asyncio.ensure_future(_upload(stream, receive, chunked=chunked, has_body=has_body))
        reply = asyncio.ensure_future(answer.relay())
        await asyncio.wait({upload, reply}, return_when=asyncio.FIRST_COMPLETED)
        # After the last byte of an answer the server reports a disconnection too.
        if not reply.done() and upload.done() and isinstance(upload.exception(), ClientDisconnected):
            raise ClientDisconnected
        # The program may have answered although it did not read all of the request.
        await reply
        if reuse is not None and answer.may_have_another:
            reuse.give(stream)
            kept = True
    finally:
        running = {task for task in (upload, reply) if task is not None}
        for task in running:
            task.cancel()
        if not kept:
            stream.close_now()
        if running:
            await asyncio.wait(running)


def _lengths(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name.lower() == b"content-length"]


def _request_head(scope: Scope, visit: Visit, *, last: bool) -> tuple[bytes, bool]:
    """Return the request line and headers, and whether a body follows. `last` announces the end of the connection."""
    method: str = scope["method"]
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    target = target[len(visit.prefix) :] or b"/"
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    if method in ("CONNECT", "TRACE") or not method or not set(method.encode("latin-1")) <= _METHOD:
        raise NotProxied(405, f"{method[:20]} cannot be passed on to a preview")
    if not target.startswith(b"/") or set(target) & _NOT_IN_TARGET:
        raise NotProxied(400, "the address of the request cannot be passed on")
    headers = visit.request_headers(scope["headers"])
    length = _lengths(scope)
    chunked = _is_chunked(scope)
    if len(length) > 1 or (length and chunked) or (length and not length[0].isdigit()):
        raise NotProxied(400, "the request has no single length")
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    elif length:
        headers.append((b"content-length", length[0]))
    headers.append((b"connection", b"close" if last else b"keep-alive"))
    lines = [
        method.encode() + b" " + target + b" HTTP/1.1",
        *(as_written(name) + b": " + value for name, value in headers),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n", chunked or bool(length and int(length[0]))


def _is_chunked(scope: Scope) -> bool:
    """Whether the body came in chunks; any other transfer coding is refused."""
    codings = [value.strip().lower() for name, value in scope["headers"] if name.lower() == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        raise NotProxied(501, "only the transfer coding chunked can be passed on")
    return bool(codings)


async def _upload(stream: Stream, receive: Receive, *, chunked: bool, has_body: bool) -> None:
    """Send the body as it arrives, then wait until the visitor disconnects, which raises ClientDisconnected."""
    more = has_body
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        more = message.get("more_body", False)
        body: bytes = message.get("body", b"")
        if body:
            await stream.send(b"%x\r\n%b\r\n" % (len(body), body) if chunked else body)
    if chunked:
        await stream.send(b"0\r\n\r\n")
    while (await receive())["type"] != "http.disconnect":
        continue
    raise ClientDisconnected


class Answer:
    """Reads the answer of a program, and passes it on in the pieces in which it arrives."""

    def __init__(self, stream: Stream, visit: Visit, send: Send, *, is_head: bool = False) -> None:
        self._stream = stream
        self._visit = visit
        self._send = send
        self._is_head = is_head
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._problem = ""
        self._status = 0
        self._interim = 0
        self._in_body = False
        self._complete = False
        self._has_length = False
        self._left = 0
        """Bytes of the body that are still to come and need no parser, because the answer has announced its length."""
        self._keeps_open = False
        self._surplus = False
        """More came than one answer."""
        self._pieces: list[bytes] = []

    @property
    def may_have_another(self) -> bool:
        """Whether the answer was whole, nothing followed it, and its connection stays open."""
        return self._complete and not self._surplus and self._keeps_open

    async def send_request(self, head: bytes) -> None:
        try:
            await self._stream.send(head)
        except PortClosed as error:
            raise UnusedConnection(error.message) from error

    async def relay(self) -> None:
        try:
            async with asyncio.timeout(self._visit.answer_seconds):
                await self._read_head()
        except TimeoutError as error:
            seconds = self._visit.answer_seconds
            raise NotProxied(504, f"the program in the box did not answer within {seconds:g} s") from error
        headers = self._visit.response_headers(self._headers)
        await self._send({"type": "http.response.start", "status": self._status, "headers": headers})
        without_body = self._is_head or self._status in (204, 304)
        if self._left and not (self._complete or without_body):
            self._left -= sum(map(len, self._pieces))
            receive_more = self._receive_body
        else:
            receive_more = self._feed
        while not (self._complete or without_body):
            await self._pass_on(more=True)
            try:
                if not await receive_more():
                    break
            except (HutchError, NotProxied) as error:
                log("previews").info("answer cut off", port=self._visit.port, why=str(error))
                return
        if self._complete or without_body or not self._has_length:
            await self._pass_on(more=False)
        # Else the answer was cut off: without its last piece the server cuts the visitor's connection too.

    async def _read_head(self) -> None:
        received = 0
        while not self._in_body:
            before = received
            size = await self._feed()
            received += size
            if not size:
                if not before:
                    raise UnusedConnection("the program in the box closed the connection without an answer")
                raise PortClosed("the program in the box closed the connection within its answer")
            if received > MAX_HEAD_BYTES and not self._in_body:
                raise NotProxied(502, "the headers of the program's answer do not end")

    async def _feed(self) -> int:
        """Parse the next bytes, and return how many they were."""
        data = await self._stream.receive()
        if data:
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                # What follows a complete answer belongs to nobody, so the connection ends with it.
                if self._complete:
                    self._surplus = True
                else:
                    self._problem = self._problem or str(error)
            if self._problem:
                raise NotProxied(502, f"the program in the box does not speak HTTP/1.1: {self._problem}")
        return len(data)

    async def _receive_body(self) -> int:
        """Take the next bytes of a body with a length as they are: the parser would only copy them."""
        data = await self._stream.receive()
        self._surplus = len(data) > self._left
        if data:
            self._pieces.append(data[: self._left] if self._surplus else data)
        self._left = max(0, self._left - len(data))
        self._complete = not self._left
        return len(data)

    async def _pass_on(self, *, more: bool) -> None:
        pieces, self._pieces = self._pieces, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if body or not more:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    # --- the parser's callbacks ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._surplus = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._complete or self._in_body:
            return  # A trailer, or a second answer.
        if not is_valid(name, value):
            self._problem = f"it has a header {name[:40]!r} that is none"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            self._headers.clear()
            self._interim += 1
            if self._interim > MAX_INTERIM or self._status == 101:
                self._problem = "its interim answers do not end"
            return
        lengths = {name.lower(): value.lower() for name, value in self._headers if name.lower() in _LENGTHS}
        if self._status > 599:
            self._problem = f"status {self._status} does not exist"
        if lengths.get(b"transfer-encoding", b"chunked") != b"chunked":
            self._problem = "only the transfer coding chunked can be passed on"
        self._has_length = bool(lengths)
        if b"transfer-encoding" not in lengths:
            self._left = int(lengths.get(b"content-length", b"0"))  # The parser has refused what is no number.
        self._keeps_open = self._parser.should_keep_alive()
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._complete = self._in_body
