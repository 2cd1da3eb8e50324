"""Connections and their channels, guest side: frames in, handlers called, frames out, credit kept.

An operation is a function `(guest, channel, fields) -> None` in a table that all guests share. It answers now or
later with `channel.reply` or `channel.fail`, exactly once, and may set the channel's `on_*` callbacks while it is open.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hutch.guest.loop import READ, WRITE
from hutch.guest.operations import Failure
from hutch.guest.protocol import (
    CANCEL,
    CREDIT,
    CREDIT_SIZE,
    DATA,
    END,
    ERROR,
    EVENT,
    FRAME_COST,
    HEADER,
    HEADER_SIZE,
    HELLO,
    REPLY,
    REQUEST,
    TO_GUEST,
    WINDOW,
    ProtocolError,
    check_header,
    decode,
    encode,
    frame,
)

if TYPE_CHECKING:
    from hutch.guest.main import Guest

Fields = dict[str, Any]
Operation = Callable[["Guest", "Channel", Fields], None]

MAX_CHANNELS = 4096
BACKLOG = 1 << 20
"""Unsent bytes past which a connection's requests are not read: a keeper that does not listen cannot fill the box."""

_received = bytearray(1 << 16)
_received_view = memoryview(_received)


class Channel:
    """One request and everything that belongs to it until its answer."""

    __slots__ = ("_connection", "_granted", "credit", "number", "on_data", "on_end", "on_gone", "on_room", "open")

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._granted = WINDOW
        self.number = number
        self.credit = WINDOW
        self.open = True
        self.on_data: Callable[[bytes], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None
        """More may be sent: credit came, or the socket took what waited."""
        self.on_gone: Callable[[], None] | None = None
        """CANCEL or a lost connection. Whoever sets it answers the channel; without it the answer is `cancelled`."""

    @property
    def room(self) -> int:
        """Bytes that may be sent now without waiting anywhere."""
        return 0 if self._connection.backlog else max(0, self.credit - FRAME_COST)

    @property
    def connected(self) -> bool:
        return not self._connection.closed

    def send(self, kind: int, data: bytes | memoryview) -> None:
        """DATA, OUT or ERR of at most MAX_PAYLOAD; the caller keeps within `room`."""
        self.credit -= len(data) + FRAME_COST
        self._connection.send_parts(HEADER.pack(len(data), kind, self.number), data)

    def event(self, fields: Fields) -> bool:
        """False, and nothing sent, when the reader has granted no room: events count like data."""
        payload = encode(fields)
        if len(payload) + FRAME_COST > self.credit:
            return False
        self.credit -= len(payload) + FRAME_COST
        self._connection.send(frame(EVENT, self.number, payload))
        return True

    def grant(self, size: int) -> None:
        """The other end may send so many bytes more."""
        if size and self.open:
            self._granted += size
            self._connection.send(frame(CREDIT, self.number, CREDIT_SIZE.pack(size)))

    def reply(self, fields: Fields | None = None, before: bytes = b"") -> None:
        """The end of the channel; `before` are whole frames that go out in the same write."""
        payload = encode(fields or {})
        self._finish(before + HEADER.pack(len(payload), REPLY, self.number) + payload)

    def fail(self, failure: Failure) -> None:
        self._finish(frame(ERROR, self.number, encode(failure.to_wire())))

    def _finish(self, frames: bytes) -> None:
        if not self.open:
            return
        self.open = False
        self.on_data = self.on_end = self.on_room = self.on_gone = None
        self._connection.channels.pop(self.number, None)
        self._connection.send(frames)

    def take(self, data: bytes) -> None:
        self._granted -= len(data)
        if self._granted < 0:
            raise ProtocolError(f"channel {self.number} sent more than it was granted")
        if self.on_data is not None:
            self.on_data(data)

    def lose(self) -> None:
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()
        else:
            self.fail(Failure("cancelled", "the caller gave up"))


class Connection:
    """One keeper, at the other end of the stream socket `fd`. A malformed frame ends this connection, nothing else."""

    __slots__ = (
        "_fd", "_filled", "_guest", "_large", "_loop", "_operations", "_partial", "_waiting", "backlog", "channels",
        "closed",
    )  # fmt: skip

    def __init__(self, guest: Guest, fd: int, operations: dict[str, Operation]) -> None:
        self.channels: dict[int, Channel] = {}
        self.backlog = 0
        self.closed = False
        self._guest = guest
        self._loop = guest.loop
        self._fd = fd
        self._operations = operations
        self._partial = b""
        self._large: bytearray | None = None
        self._filled = 0
        self._waiting: deque[bytes] = deque()
        os.set_blocking(fd, False)
        self._loop.watch(fd, READ, self._ready)

    def greet(self, fields: Fields) -> None:
        self.send(frame(HELLO, 0, encode(fields)))

    # --- out -------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.send_parts(data, b"")

    def send_parts(self, head: bytes, body: bytes | memoryview) -> None:
        """Straight into the socket if nothing waits; only what it does not take is copied."""
        if self.closed:
            return
        sent = 0
        if not self._waiting:
            try:
                sent = os.writev(self._fd, (head, body)) if body else os.write(self._fd, head)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._loop.soon(self.close)  # not here: the caller is in the middle of something
                return
            if sent == len(head) + len(body):
                return
        rest = head[sent:] + bytes(body) if sent < len(head) else bytes(body[sent - len(head) :])
        if not self._waiting:
            self._waiting.append(rest)
            self.backlog += len(rest)
            self._attend()
            return
        self._waiting.append(rest)
        self.backlog += len(rest)
        if self.backlog - len(rest) <= BACKLOG < self.backlog:
            self._attend()

    def _attend(self) -> None:
        """Tell epoll what this connection waits for."""
        events = WRITE if self._waiting else 0
        if self.backlog <= BACKLOG:
            events |= READ
        self._loop.change(self._fd, events)

    def _flush(self) -> None:
        try:
            while self._waiting:
                sent = os.write(self._fd, self._waiting[0])
                self.backlog -= sent
                if sent < len(self._waiting[0]):
                    self._waiting[0] = self._waiting[0][sent:]
                    break
                self._waiting.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        finally:
            if not self.closed:
                self._attend()
        if self._waiting:
            return
        for channel in tuple(self.channels.values()):
            if self._waiting:
                break
            if channel.on_room is not None:
                channel.on_room()

    # --- in --------------------------------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        try:
            if events & WRITE:
                self._flush()
            if events & ~WRITE and not self.closed:
                self._receive()
        except Exception:
            self.close()  # a defect in one handler costs its connection, not the box
            raise

    def _receive(self) -> None:
        target = _received_view if self._large is None else memoryview(self._large)[self._filled :]
        try:
            size = os.readv(self._fd, (target,))
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size == 0:
            self.close()
            return
        try:
            self._received(size)
        except ProtocolError:
            self.close()

    def _received(self, size: int) -> None:
        if self._large is not None:
            self._filled += size
            if self._filled == len(self._large):
                whole, self._large = self._large, None
                self._take_frames(memoryview(whole))
            return
        # A copy: a handler may lead back here and overwrite the shared buffer.
        rest = self._take_frames(memoryview(self._partial + _received_view[:size]))
        self._partial = b""
        if self.closed or not rest:
            return
        wanted = HEADER_SIZE + HEADER.unpack_from(rest)[0] if len(rest) >= HEADER_SIZE else 0
        if wanted <= len(_received):
            self._partial = bytes(rest)
            return
        # What is large is received where it will stay, or every piece would copy all before it.
        self._large = bytearray(wanted)
        self._large[: len(rest)] = rest
        self._filled = len(rest)

    def _take_frames(self, view: memoryview) -> memoryview:
        """Handle every whole frame; what is left over is the beginning of the next, its header already checked."""
        start, end = 0, len(view)
        while end - start >= HEADER_SIZE and not self.closed:
            length, kind, number = HEADER.unpack_from(view, start)
            check_header(length, kind, TO_GUEST)
            stop = start + HEADER_SIZE + length
            if stop > end:
                break
            self._take(kind, number, bytes(view[start + HEADER_SIZE : stop]))
            start = stop
        return view[start:]

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == REQUEST:
            self._open(number, payload)
            return
        channel = self.channels.get(number)
        if channel is None:
            return  # answered while this frame was on its way
        if kind == DATA:
            channel.take(payload)
        elif kind == CREDIT:
            if len(payload) != CREDIT_SIZE.size:
                raise ProtocolError("credit of a wrong size")
            channel.credit += CREDIT_SIZE.unpack(payload)[0]
            if channel.on_room is not None and not self._waiting:
                channel.on_room()
        elif kind == END:
            if channel.on_end is not None:
                channel.on_end()
        elif kind == CANCEL:
            channel.lose()

    def _open(self, number: int, payload: bytes) -> None:
        if number == 0 or number in self.channels:
            raise ProtocolError(f"channel {number} cannot be opened")
        try:
            fields = decode(payload)
            name = fields["op"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProtocolError("a request that is no JSON object with an op") from error
        channel = Channel(self, number)
        if len(self.channels) >= MAX_CHANNELS:
            channel.fail(Failure("quota", f"{MAX_CHANNELS} requests are open on this connection"))
            return
        operation = self._operations.get(name) if isinstance(name, str) else None
        if operation is None:
            channel.fail(Failure("unsupported", f"the guest has no operation {name!r}"))
            return
        self.channels[number] = channel
        _answer(self._guest, channel, operation, fields)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.unwatch(self._fd)
        os.close(self._fd)
        self._waiting.clear()
        for channel in tuple(self.channels.values()):
            channel.lose()
        self._guest.closed(self)


def _answer(guest: Guest, channel: Channel, operation: Operation, fields: Fields) -> None:
    """Run an operation; whatever it raises is its answer, because the guest must outlive every request."""
    try:
        operation(guest, channel, fields)
    except Failure as failure:
        channel.fail(failure)
    except (KeyError, TypeError, ValueError) as error:
        channel.fail(Failure("invalid", f"{fields['op']}: {type(error).__name__}: {error}"))
    except Exception as error:
        channel.fail(Failure("internal", f"{fields['op']}: {type(error).__name__}: {error}"))
