"""The spawner's handle on its network helper, a process that stays on the machine's own network.

The helper forwards DNS, runs pasta where pasta carries the traffic, and reports the machine's addresses. Whatever can
crash is done by its worker, a child that it replaces (helper_worker.py).

It is a separate process for three reasons. It parses what boxes send, and the spawner may be root. A rootless spawner
has left the machine's network namespace for good, while resolvers such as 127.0.0.53 answer only there, so the helper
is forked before that. And boxes outlive their keeper and spawner: the helper stays until its last box has ended.
"""

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from hutch.providers.native.network import helper_process

_REPLY_SECONDS = 20.0
_END_SECONDS = 5.0


class HelperGone(Exception):
    """The helper has ended or given up; the message says why, if that is known."""


@dataclass(frozen=True, slots=True)
class NetworkSurvey:
    """The state of the machine's network namespace a moment ago."""

    tag: str
    """Six hexadecimal digits that no other uplink there has, short enough for names of interfaces (15 characters)."""
    addresses: list[IPv4Address]
    routes: list[IPv4Network]
    """The routes that overlap the pool. A machine may have a hundred thousand others."""
    namespace: int


class NetworkHelper:
    """The spawner's handle on its network helper."""

    def __init__(self, pidfd: int, channel: socket.socket) -> None:
        self._pidfd = pidfd
        self._channel = channel

    @classmethod
    def fork(cls) -> "NetworkHelper":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            helper_process.run_helper(theirs.detach(), parent)
        theirs.close()
        ours.settimeout(_REPLY_SECONDS)
        return cls(os.pidfd_open(pid), ours)

    def fileno(self) -> int:
        return self._channel.fileno()

    def survey(self, pool: IPv4Network) -> NetworkSurvey:
        self._send({"do": "survey", "pool": str(pool)})
        return _survey_of(self._receive()[0])

    def make_namespace(self) -> tuple[int, int]:
        """Have the helper make user and network namespaces; returns a descriptor of the latter, and a pid in it."""
        self._send({"do": "namespace"})
        message, descriptors = self._receive()
        return descriptors[0], int(message["pid"])

    def open_target(self) -> tuple[socket.socket, IPv4Address | None]:
        """A listening socket on the machine's loopback, and the machine's gateway, if any (connection_test.py)."""
        self._send({"do": "target"})
        message, descriptors = self._receive()
        gateway = message["gateway"]
        return socket.socket(fileno=descriptors[0]), IPv4Address(gateway) if gateway else None

    def serve(
        self,
        listeners: Sequence[socket.socket],
        links: Sequence[socket.socket],
        share: IPv4Network,
        resolv_conf: str,
        carry: int | None,
        *,
        testing: bool = False,
    ) -> None:
        """Have the helper answer the boxes of `share` on the two listeners, UDP and TCP. Returns when that works.

        `links` are two route sockets of the namespace with the links of boxes: while there are any, the helper outlives
        the spawner. `carry` is a process in the namespace whose traffic pasta is to carry. The machine's addresses of
        the survey are refused there already; the helper refuses later ones. `testing`: see connection_test.py.
        """
        message = {
            "do": "serve", "share": str(share), "resolv_conf": resolv_conf, "carry": carry, "testing": testing,
        }  # fmt: skip
        self._send(message, [each.fileno() for each in (*listeners, *links)])
        self._receive()

    def listen(self) -> None:
        """Raise HelperGone if the helper has ended. Never blocks."""
        self._channel.setblocking(False)
        try:
            self._receive()
        except BlockingIOError:
            return
        finally:
            self._channel.settimeout(_REPLY_SECONDS)

    def end(self) -> None:
        """End the helper, and pasta with it. The channel stays open, because the loop still watches it."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
            if not select.select([self._pidfd], [], [], _END_SECONDS)[0]:  # it may be stopped
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the spawner's loop may have reaped it
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)
        self._pidfd = -1

    def leave(self) -> None:
        """Leave the helper running for the boxes that are still connected."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._channel.close()

    def close(self) -> None:
        self.end()
        self._channel.close()

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._channel, [json.dumps(message).encode()], list(descriptors))

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        data, descriptors = helper_process.receive(self._channel)
        if not data:
            raise HelperGone("the network helper was killed")
        message: dict[str, Any] = json.loads(data)
        if "error" in message:
            raise HelperGone(message["error"])
        return message, descriptors


def _survey_of(message: dict[str, Any]) -> NetworkSurvey:
    addresses = [IPv4Address(text) for text in message["addresses"]]
    routes = [IPv4Network(text) for text in message["routes"]]
    return NetworkSurvey(message["tag"], addresses, routes, int(message["namespace"]))
