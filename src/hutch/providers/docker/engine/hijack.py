"""A hijacked stream: after its answer to an exec an engine lets the connection carry the program's bytes.

The engine sends a sequence of frames, `stream (1) | 0 0 0 | length (4, big endian) | bytes`. Those of stdout are fed
to a link as if they came from a socket, and those of stderr are kept for a message.
"""

import asyncio
import json
from typing import Any, cast

from hutch import http1
from hutch.errors import EngineError, HutchError, Unavailable
from hutch.providers.docker.engine.http import EngineHttp, EngineRefused
from hutch.providers.guest_client.link import Link

_FRAME = 8
_STDOUT = 1
_STDERR = 2
_KEPT = 2000
TIMEOUT = 30.0


class Hijacked(asyncio.Protocol):
    """One exec's stream. It speaks HTTP until the engine has agreed, and then belongs to the link."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.agreed: asyncio.Future[None] = self._loop.create_future()
        self.link: Link | None = None
        self.stderr = b""
        """The output in place of the guest's hello, and the end of what the program wrote to stderr."""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._left = 0
        self._stream = 0

    # --- asyncio's side --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops, such as uvloop, have transports that are not a subclass.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.agreed.done():
            self._read_head()
        if self.link is not None:
            self._demultiplex(self.link)

    def eof_received(self) -> None:
        self._lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(error)

    def pause_writing(self) -> None:
        if self.link is not None:
            self.link.pause_writing()

    def resume_writing(self) -> None:
        if self.link is not None:
            self.link.resume_writing()

    # --- the stream ------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def become(self, link: Link) -> None:
        """Give the link whatever the program writes to stdout from now on."""
        assert self._transport is not None
        self.link = link
        link.connection_made(self._transport)
        self._demultiplex(link)

    def _read_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > http1.MAX_HEAD:
                self._refuse(EngineError("the engine's answer to an exec has no end", op="exec"))
            return
        head, self._buffer = bytes(self._buffer[:end]), self._buffer[end + 4 :]
        try:
            status = http1.parse_head(head).status
        except http1.ProtocolError as error:
            self._refuse(EngineError(f"the engine's answer to an exec is no HTTP: {error}", op="exec"))
            return
        if status not in (101, 200):
            self._refuse(EngineRefused(status, _message(bytes(self._buffer)) or f"exec: {status}", "exec"))
            return
        self.agreed.set_result(None)

    def _demultiplex(self, link: Link) -> None:
        data, start = memoryview(bytes(self._buffer)), 0
        self._buffer.clear()
        while True:
            if self._left == 0:
                if len(data) - start < _FRAME:
                    break
                self._stream = data[start]
                self._left = int.from_bytes(data[start + 4 : start + _FRAME], "big")
                start += _FRAME
            piece = data[start : start + self._left]
            if not piece and self._left:
                break
            if self._stream == _STDOUT:
                if not link.hello:
                    # The engine writes why an exec could not be started where its output would have been.
                    self.stderr = (self.stderr + piece)[-_KEPT:]
                _feed(link, piece)
            elif self._stream == _STDERR:
                self.stderr = (self.stderr + piece)[-_KEPT:]
            start += len(piece)
            self._left -= len(piece)
        self._buffer += data[start:]

    def _refuse(self, error: HutchError) -> None:
        if not self.agreed.done():
            self.agreed.set_exception(error)
        self.close()

    def _lost(self, error: Exception | None) -> None:
        if not self.agreed.done():
            self.agreed.set_exception(Unavailable(f"the engine broke an exec off: {error or 'end of file'}"))
            self.agreed.exception()
        if self.link is not None:
            self.link.connection_lost(error)


async def hijack(http: EngineHttp, exec_id: str) -> Hijacked:
    """Start an exec and take its streams. Raises EngineRefused or Unavailable."""
    body = json.dumps({"Detach": False, "Tty": False}).encode()
    headers = {"Content-Type": "application/json", "Connection": "Upgrade", "Upgrade": "tcp"}
    head = http.head("POST", f"/exec/{exec_id}/start", None, len(body), headers)
    _, stream = await http.open(Hijacked)
    try:
        stream.send(head + body)
        async with asyncio.timeout(TIMEOUT):
            await stream.agreed
    except TimeoutError as error:
        stream.close()
        if isinstance(error, HutchError):
            raise
        raise Unavailable(f"the engine did not start an exec within {TIMEOUT:g} s", op="exec") from error
    except BaseException:
        stream.close()
        raise
    return stream


def _feed(link: Link, piece: memoryview) -> None:
    while piece and link.usable:
        room = link.get_buffer(len(piece))
        size = min(len(room), len(piece))
        room[:size] = piece[:size]
        link.buffer_updated(size)
        piece = piece[size:]


def _message(body: bytes) -> str:
    try:
        found: Any = json.loads(body[body.find(b"{") : body.rfind(b"}") + 1] or b"{}")
        return str(found.get("message", ""))
    except ValueError:
        return body.decode("utf-8", "replace").strip()[:300]
