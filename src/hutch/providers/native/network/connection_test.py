"""Whether the way out of boxes works: connections over it, made as a box makes them, before anybody is promised one.

What answers is on this machine, so that it needs no other: the name server of the uplink, and where pasta carries, a
socket on the machine's loopback, which pasta shows to the boxes of this one uplink in the place of the gateway. Only
an uplink that is opened for its proof does so, and it never has a box.
"""

import os
import socket
from contextlib import ExitStack
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from hutch.providers.native.network import dns
from hutch.providers.native.network.links import Wired
from hutch.providers.native.network.namespaces import in_namespace, new_namespace

if TYPE_CHECKING:
    from hutch.providers.native.network.uplink import Uplink

_SECONDS = 5.0
_QUESTION, _ANSWER = b"hutch asks\n" * 100, b"hutch answers\n" * 1000
"""More than one segment each way: a handshake alone proves little."""


class NotProven(Exception):
    """A connection did not come through; the message says which."""


def prove(uplink: "Uplink", target: socket.socket | None, gateway: IPv4Address | None) -> None:
    """Raises NotProven. `target`: a listening socket of the machine, that answers at `gateway` where pasta carries."""
    with ExitStack() as stack:
        netns = new_namespace()
        stack.callback(os.close, netns)
        wired = uplink.wire(netns, [f"{gateway}/32"] if gateway else [])
        stack.callback(uplink.unwire, wired)
        _reach_name_server(netns, wired)
        if target is not None and gateway is not None:
            _talk(netns, str(gateway), target)


def _reach_name_server(netns: int, wired: Wired) -> None:
    try:
        with in_namespace(netns):
            socket.create_connection((wired.nameserver, dns.PORT), _SECONDS).close()
    except OSError as error:
        raise NotProven(f"a box would not reach its name server: {error}") from error


def _talk(netns: int, gateway: str, target: socket.socket) -> None:
    """Words in both directions. The far end acknowledges late, as most of the world does."""
    target.settimeout(_SECONDS)
    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    try:
        with in_namespace(netns):
            near = socket.create_connection((gateway, target.getsockname()[1]), _SECONDS)
        with near:
            near.sendall(_QUESTION)
            far, _ = target.accept()
            with far:
                far.settimeout(_SECONDS)
                _hear(far, _QUESTION)
                far.sendall(_ANSWER)
                _hear(near, _ANSWER)
    except OSError as error:
        raise NotProven(f"a connection of a box would not come through: {error}") from error


def _hear(end: socket.socket, words: bytes) -> None:
    heard = b""
    while len(heard) < len(words):
        piece = end.recv(len(words) - len(heard))
        if not piece:
            break
        heard += piece
    if heard != words:
        raise OSError(f"{len(heard)} of {len(words)} bytes arrived")
