"""The spawner's handle on its porter, the process of an uplink that stays on the machine's own network.

The porter forwards DNS, keeps pasta where pasta carries the traffic, and tells which addresses the machine has; what of
that can crash is done by a child that it replaces (runner.py).

It is a process of its own, and not part of the spawner's loop, for three reasons. It parses what boxes send, and the
spawner may be root. A rootless spawner has left the machine's network namespace for good, while resolvers such as
127.0.0.53 answer only there; so the porter is forked before the spawner leaves. And boxes outlive their keeper, with
whom the spawner goes: the porter stays until the last of its boxes has ended.
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


class PorterGone(Exception):
    """The porter ended, or has given up; the message says why, if that is known."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the machine's network namespace looked like a moment ago."""

    tag: str
    """Six hexadecimal digits that no other uplink there has: an interface name holds fifteen characters."""
    addresses: list[IPv4Address]
    routes: list[IPv4Network]
    """Those that overlap the pool; a machine may have a hundred thousand others."""
    namespace: int


class Porter:
    """The spawner's handle on its porter."""

    def __init__(self, pidfd: int, channel: socket.socket) -> None:
        self._pidfd = pidfd
        self._channel = channel

    @classmethod
    def fork(cls) -> "Porter":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            helper_process.live(theirs.detach(), parent)
        theirs.close()
        ours.settimeout(_REPLY_SECONDS)
        return cls(os.pidfd_open(pid), ours)

    def fileno(self) -> int:
        return self._channel.fileno()

    def survey(self, pool: IPv4Network) -> Survey:
        self._send({"do": "survey", "pool": str(pool)})
        return _survey_of(self._receive()[0])

    def make_namespace(self) -> tuple[int, int]:
        """A network namespace in a user namespace of the porter's own id: a descriptor, and a pid that is in it."""
        self._send({"do": "namespace"})
        message, descriptors = self._receive()
        return descriptors[0], int(message["pid"])

    def open_target(self) -> tuple[socket.socket, IPv4Address | None]:
        """A listening socket on the machine's loopback, and the machine's gateway, in whose place `proving` shows it;
        None: it has none."""
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
        proving: bool = False,
    ) -> None:
        """Answer the boxes of `share` on the two listeners, UDP and TCP. Returns when that works.

        `links`: two route sockets of the place where the links of boxes end; while there are any, the porter outlives
        the spawner. `carry`: a process in the namespace whose traffic pasta is to carry. The addresses that the machine
        had at the survey are refused there; the porter sees to those of later. `proving`: see `proof`.
        """
        message = {
            "do": "serve", "share": str(share), "resolv_conf": resolv_conf, "carry": carry, "proving": proving,
        }  # fmt: skip
        self._send(message, [each.fileno() for each in (*listeners, *links)])
        self._receive()

    def listen(self) -> None:
        """Raise what the porter has told since, which can only be its end. Never blocks."""
        self._channel.setblocking(False)
        try:
            self._receive()
        except BlockingIOError:
            return
        finally:
            self._channel.settimeout(_REPLY_SECONDS)

    def end(self) -> None:
        """End the porter, and pasta with it; the descriptor stays, for the loop that still watches it."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
            if not select.select([self._pidfd], [], [], _END_SECONDS)[0]:  # somebody has stopped it
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the spawner's loop may have reaped it
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)
        self._pidfd = -1

    def leave(self) -> None:
        """Let it live on, if it does, for the boxes that are still joined."""
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
            raise PorterGone("the network porter was killed")
        message: dict[str, Any] = json.loads(data)
        if "error" in message:
            raise PorterGone(message["error"])
        return message, descriptors


def _survey_of(message: dict[str, Any]) -> Survey:
    addresses = [IPv4Address(text) for text in message["addresses"]]
    routes = [IPv4Network(text) for text in message["routes"]]
    return Survey(message["tag"], addresses, routes, int(message["namespace"]))
