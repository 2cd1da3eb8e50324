"""A small HTTP/1.1 client for an engine's API: one connection for each request, bodies both ways, hijacked streams.

A refusal of the engine is raised as `EngineRefused` with its status and its own words. If nobody answers, that is
`Unavailable`, which a keeper takes for "cannot say", never for "gone".
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from hutch import http1
from hutch.errors import EngineError, HutchError, Unavailable
from hutch.providers.docker.engine.endpoint import Endpoint

CONNECT_TIMEOUT = 10.0
TIMEOUT = 60.0
MAX_ANSWER = 64 << 20
MAX_LINE = 8 << 20
"""Bytes of one line of a streamed answer; lines of progress have a few hundred."""
"""The most bytes of an answer that are kept; engines answer with far less."""
_PIECE = 1 << 20

Speaker = TypeVar("Speaker", bound=asyncio.BaseProtocol)


class Upload(NamedTuple):
    """A body that is too large for memory."""

    size: int
    pieces: AsyncIterator[bytes]


class EngineRefused(EngineError):
    """The engine answered, and refused."""

    def __init__(self, status: int, message: str, op: str) -> None:
        super().__init__(message, op=op, details={"status": status})
        self.status = status


class _StreamSource:
    """Reads the bytes of an asyncio stream for `hutch.http1`."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._unread = b""

    async def receive(self) -> bytes:
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        return await self._reader.read(_PIECE)

    def unread(self, data: bytes) -> None:
        self._unread = data + self._unread


class EngineHttp:
    """Sends requests to one engine. `prefix` is the version of the API, such as /v1.40."""

    def __init__(self, endpoint: Endpoint, prefix: str = "") -> None:
        self.endpoint = endpoint
        self.prefix = prefix

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        timeout: float | None = TIMEOUT,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request and return its answer's JSON. A `body` of bytes, or an upload, is a tar; else it is JSON."""
        whole = await self._whole(method, path, query, body, timeout, headers)
        try:
            return json.loads(whole) if whole else None
        except ValueError:
            return None  # some answers are plain text, such as "OK"

    async def raw(
        self, method: str, path: str, *, query: Mapping[str, object] | None = None, timeout: float = TIMEOUT
    ) -> bytes:
        """Send a request and return its answer as it is (an archive, a log)."""
        return await self._whole(method, path, query, None, timeout, None)

    async def _whole(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: object,
        timeout: float | None,
        headers: Mapping[str, str] | None,
    ) -> bytes:
        collected = bytearray()
        async with self._asked(method, path, query, body, timeout, headers) as (head, source):
            async for piece in http1.read_body(source, head):
                collected += piece
                if len(collected) > MAX_ANSWER:
                    raise EngineError(f"the engine's answer to {method} {path} has no end", op=path)
        self._check(head.status, bytes(collected), method, path)
        return bytes(collected)

    async def pieces(
        self, method: str, path: str, *, query: Mapping[str, object] | None = None, timeout: float = 3600.0
    ) -> AsyncIterator[bytes]:
        """Send a request and yield its answer's bytes as they come."""
        async with self._asked(method, path, query, None, timeout, None) as (head, source):
            refusal = b""
            async for piece in http1.read_body(source, head):
                if head.status < 300:
                    yield piece
                elif len(refusal) < MAX_LINE:
                    refusal += piece
            self._check(head.status, refusal, method, path)

    @asynccontextmanager
    async def upgraded(self, path: str, body: object) -> AsyncIterator[tuple[http1.Source, asyncio.StreamWriter]]:
        """Send a request after which the connection carries the bytes of a program, both ways."""
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Connection": "Upgrade", "Upgrade": "tcp"}
        reader, writer = await self._connect()
        try:
            writer.write(self.head("POST", path, None, len(content), headers) + content)
            source = _StreamSource(reader)
            async with asyncio.timeout(TIMEOUT):
                # This is no `http1.read_head`, for which a switch of protocols (101) is never the last answer.
                raw = await reader.readuntil(b"\r\n\r\n")
            status = http1.parse_head(raw[:-4]).status
            if status not in (101, 200):
                self._check(status, await source.receive(), "POST", path)
            yield source, writer
        except HutchError:
            raise
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:  # a timeout is an OSError too
            raise _unreachable(self.endpoint, error) from error
        finally:
            writer.transport.abort()

    async def lines(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 3600.0,
    ) -> AsyncIterator[dict[str, Any]]:
        """Send a request and yield its answer's JSON objects as they come."""
        async with self._asked(method, path, query, None, timeout, headers) as (head, source):
            rest = b""
            async for piece in http1.read_body(source, head):
                rest += piece
                if head.status < 300:
                    *whole, rest = rest.split(b"\n")
                if len(rest) > MAX_LINE:
                    # Whoever answers at the socket must not fill this process's memory with a line that never ends.
                    raise EngineError(f"{method} {path}: the engine sent a line of over {MAX_LINE} bytes")
                if head.status < 300:
                    for line in filter(None, map(bytes.strip, whole)):
                        yield json.loads(line)
            self._check(head.status, rest, method, path)
            if rest.strip():
                yield json.loads(rest)

    async def open(self, speaker: Callable[[], Speaker]) -> tuple[asyncio.Transport, Speaker]:
        """Open a new connection. Raises Unavailable if nobody listens."""
        loop, end = asyncio.get_running_loop(), self.endpoint
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                if end.path:
                    return await loop.create_unix_connection(speaker, end.path)
                return await loop.create_connection(speaker, end.host, end.port, ssl=end.tls())
        except (OSError, TimeoutError) as error:
            if isinstance(error, HutchError):
                raise
            raise _unreachable(end, error) from error

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader(limit=_PIECE)
        transport, protocol = await self.open(lambda: asyncio.StreamReaderProtocol(reader))
        return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())

    def head(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        size: int | None,
        headers: Mapping[str, str] | None,
    ) -> bytes:
        """Return the request line and the headers of a request."""
        target = quote(f"{self.prefix}{path}", safe="/:@")
        if query:
            target += "?" + urlencode({key: _query_value(value) for key, value in query.items()})
        lines = {"Host": "engine", "User-Agent": "hutch", "Connection": "close", **(headers or {})}
        if size is not None:
            lines["Content-Length"] = str(size)
        return "".join(
            [f"{method} {target} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items()), "\r\n"]
        ).encode()

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: object,
        timeout: float | None,
        headers: Mapping[str, str] | None,
    ) -> AsyncIterator[tuple[http1.Head, http1.Source]]:
        """Send a request on a connection of its own, which stays open while the answer is read."""
        content, kind = (body, "application/x-tar") if isinstance(body, bytes) else (b"", "application/json")
        upload = body if isinstance(body, Upload) else None
        if body is not None and not content and upload is None:
            content = json.dumps(body).encode()
        size, kind = (upload.size, "application/x-tar") if upload is not None else (len(content), kind)
        sent = {"Content-Type": kind, **(headers or {})} if size else headers
        head = self.head(method, path, query, None if method == "GET" else size, sent)
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await self._connect()
                writer.write(head)
                for start in range(0, len(content), _PIECE):
                    writer.write(content[start : start + _PIECE])
                    await writer.drain()
                if upload is not None:
                    async for piece in upload.pieces:
                        writer.write(piece)
                        await writer.drain()
                source = _StreamSource(reader)
                yield await http1.read_head(source), source
        except HutchError:
            raise
        except TimeoutError as error:
            what = f"the engine at {self.endpoint} did not answer {method} {path} within {timeout or 0:g} s"
            raise Unavailable(what, op=path) from error
        except (OSError, EOFError, ValueError) as error:
            raise _unreachable(self.endpoint, error) from error
        finally:
            if writer is not None:
                writer.transport.abort()

    def _check(self, status: int, body: bytes, method: str, path: str) -> None:
        if status < 400:
            return
        try:
            message = str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            message = body.decode("utf-8", "replace").strip()[:500]
        raise EngineRefused(status, message or f"{method} {path}: {status}", path)


def _query_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _unreachable(endpoint: Endpoint, error: BaseException) -> Unavailable:
    reason = "no answer" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return Unavailable(
        f"the engine at {endpoint} cannot be reached: {reason}",
        op="connect",
        remedy="start it, or name another with the provider's setting `host`",
    )
