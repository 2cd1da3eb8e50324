"""Tests the network of boxes with real connections, made as a box makes them, before a box is promised one.

The test needs no other machine. The name server of the uplink answers, and with pasta also a socket on the machine's
loopback, which pasta shows at the gateway's address. Only an uplink that is opened for this test does so, and it never
serves a box.
"""

import os
import socket
from contextlib import ExitStack
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from hutch.providers.native.network import dns
from hutch.providers.native.network.links import BoxLink
from hutch.providers.native.network.namespaces import in_namespace, new_namespace

if TYPE_CHECKING:
    from hutch.providers.native.network.uplink import Uplink

_SECONDS = 5.0
_QUESTION, _ANSWER = b"hutch asks\n" * 100, b"hutch answers\n" * 1000
"""More than one segment in each direction, because a handshake alone proves little."""


class ConnectionTestFailed(Exception):
    """A connection failed; the message says which."""


def check_connections(uplink: "Uplink", target: socket.socket | None, gateway: IPv4Address | None) -> None:
    """Raise ConnectionTestFailed if a box could not connect.

    `target` is a listening socket of the machine, which pasta shows at the address `gateway`; None without pasta.
    """
    with ExitStack() as stack:
        netns = new_namespace()
        stack.callback(os.close, netns)
        link = uplink.connect(netns, [f"{gateway}/32"] if gateway else [])
        stack.callback(uplink.disconnect, link)
        _reach_name_server(netns, link)
        if target is not None and gateway is not None:
            _talk(netns, str(gateway), target)


def _reach_name_server(netns: int, link: BoxLink) -> None:
    try:
        with in_namespace(netns):
            socket.create_connection((link.nameserver, dns.PORT), _SECONDS).close()
    except OSError as error:
        raise ConnectionTestFailed(f"a box would not reach its name server: {error}") from error


def _talk(netns: int, gateway: str, target: socket.socket) -> None:
    """Exchange data in both directions. The far end acknowledges late, as most servers do."""
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
        raise ConnectionTestFailed(f"a connection of a box would not come through: {error}") from error


def _hear(end: socket.socket, words: bytes) -> None:
    heard = b""
    while len(heard) < len(words):
        piece = end.recv(len(words) - len(heard))
        if not piece:
            break
        heard += piece
    if heard != words:
        raise OSError(f"{len(heard)} of {len(words)} bytes arrived")
