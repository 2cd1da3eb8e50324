"""The ports of a box: connections to its own loopback, carried on a channel, and the list of what listens."""

import errno
import os
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hutch.guest.channels import Channel, Fields, Operation
from hutch.guest.loop import READ, WRITE, Loop, Timer
from hutch.guest.operations import Failure, number_field
from hutch.guest.protocol import DATA

if TYPE_CHECKING:
    from hutch.guest.main import Guest

MAX_STREAMS = 1024
"""Connections to ports at once, so that a keeper cannot use up the guest's descriptors."""
CONNECT_SECONDS = 10.0
WATCH_SECONDS = 0.5
"""Interval at which a watch looks for ports; the kernel notifies nobody of a new listener."""
MAX_PORTS = 1024
MAX_PROCESSES = 4096
_LISTEN = "0A"  # TCP_LISTEN of the kernel's include/net/tcp_states.h, as /proc/net/tcp writes it
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))

_scratch = bytearray(1 << 18)
_scratch_view = memoryview(_scratch)


# --- one connection ---------------------------------------------------------------------------------------------


class PortStream:
    """One TCP connection to a port of the box. Bytes wait on both sides for credit, never in unbounded memory."""

    __slots__ = (
        "_channel", "_ended", "_families", "_loop", "_number", "_queue", "_read_end", "_socket", "_timer", "_unread",
        "_watched",
    )  # fmt: skip

    open_streams = 0

    def __init__(self, loop: Loop, channel: Channel, number: int) -> None:
        self._loop = loop
        self._channel = channel
        self._number = number
        self._families = deque(_LOOPBACKS)
        self._socket: socket.socket | None = None
        self._queue: deque[memoryview] = deque()
        """Bytes of the host that the socket did not accept yet; the channel's window bounds them."""
        self._ended = False
        """The host sends no more."""
        self._read_end = False
        """The program in the box sends no more, and the host was notified."""
        self._unread = False
        """The program reads no more: what the host sends is dropped, and what the program has sent still goes out."""
        self._watched = 0
        """The events for which the connected socket is watched."""
        self._timer: Timer | None = loop.call_later(CONNECT_SECONDS, self._timed_out)
        """Runs until the socket is connected."""
        PortStream.open_streams += 1
        channel.on_data = self._queue_data
        channel.on_end = self._on_end
        channel.on_cancel = self._on_cancel
        self._connect_next(errno.ECONNREFUSED)

    def _connect_next(self, number: int) -> None:
        """Try the next loopback address; `number` is why the last one failed."""
        while self._families:
            family, address = self._families.popleft()
            try:
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError as error:  # no IPv6 in this kernel, or no descriptor left
                if error.errno != errno.EAFNOSUPPORT:
                    number = error.errno or errno.EIO
                continue
            result = sock.connect_ex((address, self._number))
            if result in (0, errno.EINPROGRESS):
                self._socket = sock
                self._loop.watch(sock.fileno(), WRITE, self._connected)
                return
            sock.close()
            # A box without IPv6 says so for ::1; what 127.0.0.1 answered is the better reason.
            number = number if family == socket.AF_INET6 else result
        name = errno.errorcode.get(number, str(number))
        self._fail("port_closed", f"nothing accepts connections on port {self._number} of the box", errno=name)

    def _connected(self, _events: int) -> None:
        sock = self._sock
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._disconnect()
            self._connect_next(number)
            return
        self._stop_timer()
        self._loop.unwatch(sock.fileno())
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel.event({"connected": True})
        self._channel.on_writable = self._update_events
        self._flush()

    def _timed_out(self) -> None:
        self._fail("port_closed", f"port {self._number} of the box did not answer in {CONNECT_SECONDS:g} s")

    # --- bytes both ways -----------------------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & ~WRITE and self._socket is not None:
            self._receive()

    def _receive(self) -> None:
        size = min(len(_scratch), self._channel.writable)
        if self._read_end or size <= 0:
            self._update_events()
            return
        try:
            received = self._sock.recv_into(_scratch_view, size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the program reset the connection: what it had not read is lost, and the host is notified
            self._fail("port_closed", f"the connection to port {self._number} of the box was reset")
            return
        if received:
            self._channel.send(DATA, _scratch_view[:received])
            self._update_events()
        elif self._unread:
            self._fail("port_closed", f"the connection to port {self._number} of the box was closed")
        elif self._channel.event({"end": True}):
            self._read_end = True
            self._close_if_done()

    def _queue_data(self, data: bytes) -> None:
        self._queue.append(memoryview(data))
        if len(self._queue) == 1 and self._timer is None:
            self._flush()

    def _flush(self) -> None:
        written = 0
        while self._queue:
            try:
                size = self._sock.send(self._queue[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                if self._read_end:
                    self._fail("port_closed", f"the connection to port {self._number} of the box was closed")
                    return
                # It may have answered before it closed. Those bytes are in the socket, and the kernel still gives them.
                self._unread = True
                size = len(self._queue[0])
            written += size
            if size == len(self._queue[0]):
                self._queue.popleft()
            else:
                self._queue[0] = self._queue[0][size:]
        self._channel.grant(written)
        if self._ended and not self._queue:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
        self._close_if_done()

    def _on_end(self) -> None:
        self._ended = True
        if self._timer is None and not self._queue:
            self._flush()

    def _update_events(self) -> None:
        if self._socket is None or self._timer is not None:
            return
        events = WRITE if self._queue else 0
        if not self._read_end and self._channel.writable > 0:
            events |= READ
        if events == self._watched:
            return
        if not events:  # epoll would report a hang-up of a descriptor that waits for nothing, again and again
            self._loop.unwatch(self._socket.fileno())
        elif self._watched:
            self._loop.change(self._socket.fileno(), events)
        else:
            self._loop.watch(self._socket.fileno(), events, self._ready)
        self._watched = events

    # --- the end -------------------------------------------------------------------------------------------------

    @property
    def _sock(self) -> socket.socket:
        if self._socket is None:
            raise Failure("internal", "the connection to the port is closed")
        return self._socket

    def _close_if_done(self) -> None:
        if self._read_end and self._ended and not self._queue:
            self._close()
            self._channel.reply()
        else:
            self._update_events()

    def _on_cancel(self) -> None:
        self._fail("cancelled", "the caller gave up")

    def _fail(self, code: str, message: str, **details: Any) -> None:
        self._close()
        self._channel.fail(Failure(code, message, port=self._number, **details))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _close(self) -> None:
        self._stop_timer()
        self._disconnect()
        self._queue.clear()
        PortStream.open_streams -= 1


def _connect(guest: "Guest", channel: Channel, fields: Fields) -> None:
    number = _port(fields)
    window = number_field(fields, "window", channel.credit, least=1 << 16)
    if PortStream.open_streams >= MAX_STREAMS:
        raise Failure("quota", f"{MAX_STREAMS} connections to ports of this box are open")
    channel.narrow(window)
    PortStream(guest.loop, channel, number)


def _port(fields: Fields) -> int:
    number = number_field(fields, "port", 0, least=1)
    if number > 65535:
        raise Failure("invalid", f"a port is a number from 1 to 65535, not {number}")
    return number


# --- what listens -----------------------------------------------------------------------------------------------


def listening() -> dict[int, dict[str, Any]]:
    """Return the listening TCP ports: address, inode and, where /proc shows it to this user, the process."""
    found: dict[int, dict[str, Any]] = {}
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in _lines(table)[1:]:
            words = line.split()
            if len(words) < 10 or words[3] != _LISTEN or len(found) >= MAX_PORTS:
                continue
            address, _, number = words[1].rpartition(":")
            found.setdefault(int(number, 16), {"address": _address(address), "inode": words[9]})
    return found


def _lines(path: str) -> list[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        text = b""
        while len(text) < 1 << 20 and (piece := os.read(descriptor, 1 << 16)):
            text += piece
        return text.decode("ascii", "replace").splitlines()
    finally:
        os.close(descriptor)


def _address(text: str) -> str:
    """Decode the hexadecimal words of /proc/net/tcp, each in the byte order of the machine."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _with_processes(ports: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Name the process behind each port. A process that this user may not look into stays unnamed."""
    by_link = {f"socket:[{facts['inode']}]": facts for facts in ports.values()}
    missing = set(by_link)
    for name in _pids()[:MAX_PROCESSES] if missing else ():
        with suppress(OSError):
            for number in os.listdir(f"/proc/{name}/fd"):
                link = _readlink(f"/proc/{name}/fd/{number}")
                if link in missing:
                    missing.discard(link)
                    by_link[link] |= {"pid": int(name), "process": _first(f"/proc/{name}/comm")}
        if not missing:
            break
    return [
        {"port": port, "address": facts["address"], "pid": facts.get("pid", 0), "process": facts.get("process", "")}
        for port, facts in sorted(ports.items())
    ]


def _pids() -> list[str]:
    with suppress(OSError):
        return [name for name in os.listdir("/proc") if name.isdigit()]
    return []


def _readlink(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # the descriptor was closed meanwhile
        return ""


def _first(path: str) -> str:
    lines = _lines(path)
    return lines[0] if lines else ""


def _ports(_guest: "Guest", channel: Channel, _fields: Fields) -> None:
    channel.reply({"ports": _with_processes(listening())})


def _watch_ports(guest: "Guest", channel: Channel, _fields: Fields) -> None:
    """Send an event with all ports now and after every change, until the host cancels."""
    last: list[dict[int, str]] = []

    def look() -> None:
        if not channel.open:
            return
        found = listening()
        inodes = {port: facts["inode"] for port, facts in found.items()}
        # Without credit the reader is behind; it gets the newest state as soon as it reads again.
        if last != [inodes] and channel.event({"ports": _with_processes(found)}):
            last[:] = [inodes]
        guest.loop.call_later(WATCH_SECONDS, look)

    look()


OPERATIONS: dict[str, Operation] = {"connect": _connect, "ports": _ports, "watch_ports": _watch_ports}
