"""Connections and their channels on the guest's side: frames are received, handled and sent within their credit.

An operation is a function `(guest, channel, fields) -> None` in a table that all guests share. It answers exactly once,
now or later, with `channel.reply` or `channel.fail`, and may set the channel's `on_*` callbacks while it is open.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable
from socket import SCM_RIGHTS, SOL_SOCKET, socket
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
MAX_BACKLOG = 1 << 20
"""Unsent bytes above which requests are not read, so that a keeper that never reads cannot fill the box."""

_received = bytearray(1 << 16)
_received_view = memoryview(_received)


class Channel:
    """One request, its state, and its answer."""

    __slots__ = (
        "_connection", "_granted", "credit", "number", "on_cancel", "on_data", "on_end", "on_writable", "op", "open",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int, op: str = "") -> None:
        self._connection = connection
        self._granted = WINDOW
        self.op = op
        self.number = number
        self.credit = WINDOW
        self.open = True
        self.on_data: Callable[[bytes], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        """Called when more may be sent: credit arrived, or the socket accepted the backlog."""
        self.on_cancel: Callable[[], None] | None = None
        """Called on CANCEL or a lost connection, and must then answer; without it the answer is `cancelled`."""

    def narrow(self, window: int) -> None:
        """Make the window of both directions smaller before anything was sent, because there may be many channels."""
        self._granted = min(self._granted, window)
        self.credit = min(self.credit, window)

    @property
    def writable(self) -> int:
        """Number of bytes that can be sent now without waiting."""
        return 0 if self._connection.backlog else max(0, self.credit - FRAME_COST)

    @property
    def connected(self) -> bool:
        return not self._connection.closed

    def send(self, kind: int, data: bytes | memoryview) -> None:
        """Send DATA, OUT or ERR of at most MAX_PAYLOAD bytes; the caller must stay within `writable`."""
        self.credit -= len(data) + FRAME_COST
        self._connection.send_parts(HEADER.pack(len(data), kind, self.number), data)

    def event(self, fields: Fields) -> bool:
        """Send an event, or return False if the reader has not granted enough credit; events count like data."""
        payload = encode(fields)
        if len(payload) + FRAME_COST > self.credit:
            return False
        self.credit -= len(payload) + FRAME_COST
        self._connection.send(frame(EVENT, self.number, payload))
        return True

    def grant(self, size: int) -> None:
        """Allow the other end to send `size` more bytes."""
        if size and self.open:
            self._granted += size
            self._connection.send(frame(CREDIT, self.number, CREDIT_SIZE.pack(size)))

    def reply(self, fields: Fields | None = None, before: bytes = b"") -> None:
        """Answer and close the channel; `before` holds complete frames that go out in the same write."""
        payload = encode(fields or {})
        self._finish(before + HEADER.pack(len(payload), REPLY, self.number) + payload)

    def hand_over(self, fields: Fields, descriptors: list[int]) -> int:
        """Answer with descriptors beside the frame; return the connection's descriptor, which this call has waited for.

        Only the host's own entry into the box asks for this, on a connection with nothing else on its way.
        """
        payload = encode(fields)
        # The kernel refuses to send descriptors while too many of this user are on their way (ETOOMANYREFS). Then the
        # channel is still open, and the error is the answer.
        self._connection.send_descriptors(HEADER.pack(len(payload), REPLY, self.number) + payload, descriptors)
        self.open = False
        self._connection.channels.pop(self.number, None)
        return self._connection.descriptor

    def fail(self, failure: Failure) -> None:
        self._finish(frame(ERROR, self.number, encode(failure.to_wire())))

    def _finish(self, frames: bytes) -> None:
        if not self.open:
            return
        self.open = False
        self.on_data = self.on_end = self.on_writable = self.on_cancel = None
        self._connection.channels.pop(self.number, None)
        self._connection.send(frames)

    def receive(self, data: bytes) -> None:
        self._granted -= len(data)
        if self._granted < 0:
            raise ProtocolError(f"channel {self.number} sent more than it was granted")
        if self.on_data is not None:
            self.on_data(data)

    def cancel(self) -> None:
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()
        else:
            self.fail(Failure("cancelled", "the caller gave up"))


class Connection:
    """A connection to one keeper over the stream socket `fd`. A malformed frame ends only this connection."""

    __slots__ = (
        "_fd", "_filled", "_guest", "_incomplete", "_large", "_loop", "_operations", "_unsent", "backlog",
        "channels", "closed",
    )  # fmt: skip

    def __init__(self, guest: Guest, fd: int, operations: dict[str, Operation]) -> None:
        self.channels: dict[int, Channel] = {}
        self.backlog = 0
        self.closed = False
        self._guest = guest
        self._loop = guest.loop
        self._fd = fd
        self._operations = operations
        self._incomplete = b""
        self._large: bytearray | None = None
        self._filled = 0
        self._unsent: deque[bytes] = deque()
        os.set_blocking(fd, False)
        self._loop.watch(fd, READ, self._ready)

    def send_hello(self, fields: Fields) -> None:
        self.send(frame(HELLO, 0, encode(fields)))

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.send_parts(data, b"")

    def send_parts(self, head: bytes, body: bytes | memoryview) -> None:
        """Write directly to the socket if nothing is queued; only what the socket does not accept is copied."""
        if self.closed:
            return
        sent = 0
        if not self._unsent:
            try:
                sent = os.writev(self._fd, (head, body)) if body else os.write(self._fd, head)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._loop.call_soon(self.close)  # not now: the caller is in the middle of an operation
                return
            if sent == len(head) + len(body):
                return
        rest = head[sent:] + bytes(body) if sent < len(head) else bytes(body[sent - len(head) :])
        if not self._unsent:
            self._unsent.append(rest)
            self.backlog += len(rest)
            self._update_events()
            return
        self._unsent.append(rest)
        self.backlog += len(rest)
        if self.backlog - len(rest) <= MAX_BACKLOG < self.backlog:
            self._update_events()

    @property
    def descriptor(self) -> int:
        return self._fd

    def send_descriptors(self, data: bytes, descriptors: list[int]) -> None:
        """Send a frame with descriptors (unix(7)). It fits the socket's buffer, because nothing was sent before."""
        with socket(fileno=os.dup(self._fd)) as sock:
            sock.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, array("i", descriptors))] if descriptors else [])

    def _update_events(self) -> None:
        """Have epoll report the events that this connection waits for."""
        events = WRITE if self._unsent else 0
        if self.backlog <= MAX_BACKLOG:
            events |= READ
        self._loop.change(self._fd, events)

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = os.write(self._fd, self._unsent[0])
                self.backlog -= sent
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                    break
                self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        finally:
            if not self.closed:
                self._update_events()
        if self._unsent:
            return
        for channel in tuple(self.channels.values()):
            if self._unsent:
                break
            if channel.on_writable is not None:
                channel.on_writable()

    # --- receiving -------------------------------------------------------------------------------------------

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
                complete, self._large = self._large, None
                self._handle_frames(memoryview(complete))
            return
        # This copies, because a handler may lead back here and overwrite the shared buffer.
        rest = self._handle_frames(memoryview(self._incomplete + _received_view[:size]))
        self._incomplete = b""
        if self.closed or not rest:
            return
        wanted = HEADER_SIZE + HEADER.unpack_from(rest)[0] if len(rest) >= HEADER_SIZE else 0
        if wanted <= len(_received):
            self._incomplete = bytes(rest)
            return
        # A large frame is received into its final buffer; otherwise every read would copy all earlier ones.
        self._large = bytearray(wanted)
        self._large[: len(rest)] = rest
        self._filled = len(rest)

    def _handle_frames(self, view: memoryview) -> memoryview:
        """Handle every complete frame and return the rest: the start of the next frame, whose header was checked."""
        start, end = 0, len(view)
        while end - start >= HEADER_SIZE and not self.closed:
            length, kind, number = HEADER.unpack_from(view, start)
            check_header(length, kind, TO_GUEST)
            stop = start + HEADER_SIZE + length
            if stop > end:
                break
            self._handle_frame(kind, number, bytes(view[start + HEADER_SIZE : stop]))
            start = stop
        return view[start:]

    def _handle_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == REQUEST:
            self._open(number, payload)
            return
        channel = self.channels.get(number)
        if channel is None:
            return  # the channel was answered while this frame was on its way
        if kind == DATA:
            channel.receive(payload)
        elif kind == CREDIT:
            if len(payload) != CREDIT_SIZE.size:
                raise ProtocolError("credit of a wrong size")
            channel.credit += CREDIT_SIZE.unpack(payload)[0]
            if channel.on_writable is not None and not self._unsent:
                channel.on_writable()
        elif kind == END:
            if channel.on_end is not None:
                channel.on_end()
        elif kind == CANCEL:
            channel.cancel()

    def _open(self, number: int, payload: bytes) -> None:
        if number == 0 or number in self.channels:
            raise ProtocolError(f"channel {number} cannot be opened")
        try:
            fields = decode(payload)
            name = fields["op"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ProtocolError("a request that is not a JSON object with an op") from error
        channel = Channel(self, number, name if isinstance(name, str) else "")
        if len(self.channels) >= MAX_CHANNELS:
            channel.fail(Failure("quota", f"{MAX_CHANNELS} requests are open on this connection"))
            return
        operation = self._operations.get(name) if isinstance(name, str) else None
        if operation is None:
            channel.fail(Failure("unsupported", f"the guest has no operation {name!r}"))
            return
        self.channels[number] = channel
        _run_operation(self._guest, channel, operation, fields)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.unwatch(self._fd)
        os.close(self._fd)
        self._unsent.clear()
        for channel in tuple(self.channels.values()):
            channel.cancel()
        self._guest.connection_closed(self)


def _run_operation(guest: Guest, channel: Channel, operation: Operation, fields: Fields) -> None:
    """Run an operation and turn whatever it raises into its answer, because the guest must survive every request."""
    try:
        operation(guest, channel, fields)
    except Failure as failure:
        channel.fail(failure)
    except (KeyError, TypeError, ValueError) as error:
        channel.fail(Failure("invalid", f"{fields['op']}: {type(error).__name__}: {error}"))
    except Exception as error:
        channel.fail(Failure("internal", f"{fields['op']}: {type(error).__name__}: {error}"))
