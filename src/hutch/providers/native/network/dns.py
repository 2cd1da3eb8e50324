"""A DNS forwarder between boxes and the machine's resolvers, which passes only plain queries.

It runs on a selector and never blocks. It defends against forged replies (random id and source port for each query,
connected sockets, the question compared), a box that floods (limits for each box and in all), and a box that tunnels
to the resolver (only ordinary queries with one question are passed on).
"""

import contextlib
import errno
import ipaddress
import os
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

PORT = 53
_RESOLVER_TIMEOUT = 3.0
"""Seconds until the next resolver is tried. The stub resolver in a box waits five."""
_MOST = 512
_MOST_PER_BOX = 48
_SERVFAIL = 2
_AGAIN = (errno.EAGAIN, errno.EINTR, errno.EINPROGRESS)

Resolver = tuple[socket.AddressFamily, tuple[str, int]]
Step = Callable[[], None]


class Resolvers:
    """The machine's name servers, read again whenever the file changes."""

    def __init__(self, path: str = "/etc/resolv.conf") -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._found: list[Resolver] = []

    def current(self) -> list[Resolver]:
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._stamp:
                with open(self._path, encoding="utf-8", errors="replace") as file:
                    self._found = _parse_resolvers(file.read())
                self._stamp = stamp
        except OSError:  # it is being replaced, or closed to us: keep what was known, or else the default
            self._found = self._found or _parse_resolvers("")
        return self._found


def _parse_resolvers(text: str) -> list[Resolver]:
    found: list[Resolver] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            version = ipaddress.ip_address(words[1]).version
        except ValueError:
            continue
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        found.append((family, (words[1], PORT)))
    # A file without a name server means the local one (resolv.conf(5)).
    return found or [(socket.AF_INET, ("127.0.0.1", PORT))]


def question(packet: bytes) -> bytes | None:
    """The question of a plain query (name, type and class as sent), or None if it is anything else."""
    if len(packet) < 12:
        return None
    _, flags, questions, answers, authorities, extras = struct.unpack_from("!6H", packet)
    is_query = flags & 0xF800 == 0
    if not is_query or (questions, answers, authorities) != (1, 0, 0) or extras > 2:
        return None
    return _asked(packet)


def _asked(packet: bytes) -> bytes | None:
    at = 12
    while at < len(packet) and packet[at]:
        if packet[at] > 63:  # a compression pointer, which makes no sense in a question
            return None
        at += 1 + packet[at]
    end = at + 5
    return packet[12:end] if end <= len(packet) and end - 12 <= 260 else None


def _answers(packet: bytes, identity: int, asked: bytes) -> bool:
    if len(packet) < 12:
        return False
    number, flags, questions = struct.unpack_from("!3H", packet)
    if number != identity or not flags & 0x8000:
        return False
    if questions == 0:  # some servers leave the question out of an error
        return bool(flags & 0xF)
    return (_asked(packet) or b"").lower() == asked.lower()


def _sent(resolver: Resolver, packet: bytes) -> socket.socket | None:
    """Send `packet` from a new socket, whose port the kernel picks at random; None if that fails."""
    family, address = resolver
    with contextlib.ExitStack() as undo:
        try:
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            upstream = undo.enter_context(socket.socket(family, kind))
            upstream.connect(address)
            upstream.send(packet)
        except OSError:  # it is unreachable, or no descriptor is left: the next resolver may work
            return None
        undo.pop_all()
        return upstream


def _failure(query: bytes) -> bytes:
    asked = _asked(query) or b""
    flags = 0x8080 | (query[2] & 1) << 8 | _SERVFAIL
    return query[:2] + struct.pack("!5H", flags, 1 if asked else 0, 0, 0, 0) + asked


@dataclass(slots=True, eq=False)
class _Query:
    """One UDP query of a box that waits for a resolver's answer."""

    box: str
    client: tuple[str, int]
    packet: bytes
    asked: bytes
    untried: list[Resolver]
    identity: int = 0
    upstream: socket.socket | None = None
    deadline: float = 0.0


class Forwarder:
    """Answers on two listening sockets for the boxes of `share`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        resolvers: Resolvers,
        datagrams: socket.socket,
        listener: socket.socket,
        share: IPv4Network,
    ) -> None:
        self.selector = selector
        self.resolvers = resolvers
        self._datagrams = datagrams
        self._listener = listener
        self._share = share
        self._queries: set[_Query | _Stream] = set()
        self._busy: Counter[str] = Counter()
        for each, step in ((datagrams, self._ask), (listener, self._accept)):
            each.setblocking(False)
            selector.register(each, selectors.EVENT_READ, step)

    def wait(self) -> float | None:
        """Seconds until `expire` has something to do."""
        if not self._queries:
            return None
        return max(0.0, min(each.deadline for each in self._queries) - time.monotonic())

    def expire(self) -> None:
        now = time.monotonic()
        for late in [each for each in self._queries if each.deadline <= now]:
            if isinstance(late, _Stream):
                late.give_up()
            else:
                self._try_next(late)

    def enter(self, query: "_Query | _Stream") -> bool:
        """Count a new query or connection; False if the box has too many, or all boxes together."""
        if len(self._queries) >= _MOST or self._busy[query.box] >= _MOST_PER_BOX:
            return False
        self._queries.add(query)
        self._busy[query.box] += 1
        return True

    def leave(self, query: "_Query | _Stream") -> None:
        self._queries.discard(query)
        self._busy[query.box] -= 1
        if not self._busy[query.box]:
            del self._busy[query.box]

    def _knows(self, address: str) -> bool:
        return IPv4Address(address) in self._share

    def _ask(self) -> None:
        try:
            packet, client = self._datagrams.recvfrom(4096)
        except OSError:  # a datagram with a wrong checksum wakes us, and is dropped when we read
            return
        asked = question(packet)
        if asked is None or not self._knows(client[0]):
            return
        query = _Query(client[0], client, packet, asked, list(self.resolvers.current()))
        if not self.enter(query):
            self._reply(query, _failure(packet))
            return
        self._try_next(query)

    def _try_next(self, query: _Query) -> None:
        self._release(query)
        while query.untried:
            query.identity = int.from_bytes(os.urandom(2), "big")
            packet = struct.pack("!H", query.identity) + query.packet[2:]
            upstream = _sent(query.untried.pop(0), packet)
            if upstream is None:
                continue
            query.upstream = upstream
            query.deadline = time.monotonic() + _RESOLVER_TIMEOUT
            self.selector.register(upstream, selectors.EVENT_READ, lambda: self._answer(query))
            return
        self._reply(query, _failure(query.packet))
        self.leave(query)

    def _answer(self, query: _Query) -> None:
        assert query.upstream is not None
        try:
            packet = query.upstream.recv(65535)
        except OSError as error:
            if error.errno not in _AGAIN:
                self._try_next(query)
            return
        if not _answers(packet, query.identity, query.asked):
            return
        self._release(query)
        self._reply(query, query.packet[:2] + packet[2:])
        self.leave(query)

    def _release(self, query: _Query) -> None:
        if query.upstream is not None:
            self.selector.unregister(query.upstream)
            query.upstream.close()
            query.upstream = None

    def _reply(self, query: _Query, packet: bytes) -> None:
        # The buffer is full, or the box has just ended. A datagram may be lost; the forwarder must go on.
        with contextlib.suppress(OSError):
            self._datagrams.sendto(packet, query.client)

    def _accept(self) -> None:
        try:
            client, address = self._listener.accept()
        except OSError:  # the client has gone, or no descriptor is left
            return
        client.setblocking(False)
        stream = _Stream(self, client, address[0])
        if not self._knows(address[0]) or not self.enter(stream):
            client.close()
            return
        stream.start()


class _Stream:
    """One TCP connection of a box, with one query at a time."""

    def __init__(self, forwarder: Forwarder, client: socket.socket, box: str) -> None:
        self.box = box
        self.deadline = 0.0
        self._forwarder = forwarder
        self._client = client
        self._upstream: socket.socket | None = None
        self._watched: socket.socket | None = None
        self._received = b""
        self._sending = b""
        self._query = b""
        self._pipelined = b""
        self._untried: list[Resolver] = []

    def start(self) -> None:
        self._watch(self._client, selectors.EVENT_READ, self._read_query)

    def give_up(self) -> None:
        """Handle a timeout or failure: try another resolver if we wait for one, else close."""
        if self._upstream is None:
            self._close()
            return
        try:
            self._ask_next()
        except OSError:  # no descriptor left
            self._close()

    def _watch(self, sock: socket.socket, events: int, step: Step) -> None:
        self._unwatch()
        self._forwarder.selector.register(sock, events, lambda: self._guard(step))
        self._watched = sock
        self.deadline = time.monotonic() + _RESOLVER_TIMEOUT

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._forwarder.selector.unregister(self._watched)
            self._watched = None

    def _guard(self, step: Step) -> None:
        try:
            step()
        except OSError as error:
            if error.errno not in _AGAIN:
                self.give_up()

    def _close(self) -> None:
        self._unwatch()
        self._drop_upstream()
        self._client.close()
        self._forwarder.leave(self)

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    def _frame(self) -> bytes | None:
        """Take the first whole message, with its length prefix, out of the receive buffer."""
        size = 2 + int.from_bytes(self._received[:2], "big")
        if len(self._received) < max(size, 3):
            return None
        frame, self._received = self._received[:size], self._received[size:]
        return frame

    def _read_query(self) -> None:
        data = self._client.recv(65536)
        if not data:
            self._close()
            return
        self._received += data
        self._next_query()

    def _next_query(self) -> None:
        query = self._frame()
        if query is None:
            self._watch(self._client, selectors.EVENT_READ, self._read_query)
            return
        if question(query[2:]) is None:
            self._close()
            return
        self._query, self._pipelined, self._received = query, self._received, b""
        self._untried = list(self._forwarder.resolvers.current())
        self._ask_next()

    def _ask_next(self) -> None:
        self._unwatch()
        self._drop_upstream()
        if not self._untried:
            failure = _failure(self._query[2:])
            self._answer(struct.pack("!H", len(failure)) + failure)
            return
        family, address = self._untried.pop(0)
        kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._upstream = upstream = socket.socket(family, kind)
        self._sending, self._received = self._query, b""
        upstream.connect_ex(address)  # a refusal shows when the first byte is sent
        self._watch(upstream, selectors.EVENT_WRITE, self._send_upstream)

    def _send_upstream(self) -> None:
        assert self._upstream is not None
        self._sending = self._sending[self._upstream.send(self._sending) :]
        if not self._sending:
            self._watch(self._upstream, selectors.EVENT_READ, self._read_answer)

    def _read_answer(self) -> None:
        assert self._upstream is not None
        data = self._upstream.recv(65536)
        if not data:
            self._ask_next()
            return
        self._received += data
        answer = self._frame()
        if answer is not None:
            self._unwatch()
            self._drop_upstream()
            self._answer(answer)

    def _answer(self, frame: bytes) -> None:
        self._sending = frame
        self._received = self._pipelined
        self._watch(self._client, selectors.EVENT_WRITE, self._send_answer)

    def _send_answer(self) -> None:
        self._sending = self._sending[self._client.send(self._sending) :]
        if not self._sending:
            self._next_query()
