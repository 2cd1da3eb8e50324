"""Reads the chains of nf_tables by netlink, because every keeper asks for them and starting `nft` takes milliseconds.

The message is NFT_MSG_GETCHAIN of linux/netfilter/nf_tables.h. Dumping needs CAP_NET_ADMIN.
"""

import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

_NETLINK_NETFILTER = 12
_GET_CHAIN, _NEW_CHAIN = 0x0A04, 0x0A03  # NFNL_SUBSYS_NFTABLES, and NFT_MSG_GETCHAIN or NFT_MSG_NEWCHAIN
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_TABLE, _NAME, _HOOK, _POLICY, _HOOK_NUMBER = 1, 3, 4, 5, 1
_KIND = 0x3FFF
"""The bits of an attribute's type that are no flags."""
_FAMILIES = {1: "inet", 2: "ip", 7: "bridge", 10: "ip6"}
"""The families that have a hook for forwarded packets, under the names that `nft` gives them."""
_FORWARD, _DROP = 2, 0
_BUFFER = 1 << 16
_MAX_MESSAGES = 100_000


class Chain(NamedTuple):
    family: int
    table: str
    name: str
    hook: int | None
    policy: int | None

    def __str__(self) -> str:
        return f"{_FAMILIES.get(self.family, self.family)} {self.table} {self.name}"


def closed_forward_chain() -> str | None:
    """The name of a chain whose policy drops forwarded packets, as Docker's does; None if there is none."""
    for chain in _chains():
        if chain.family in _FAMILIES and chain.hook == _FORWARD and chain.policy == _DROP:
            return str(chain)
    return None


def _chains() -> Iterator[Chain]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER) as sock:
        sock.bind((0, 0))
        head = struct.pack("=IHHII", 20, _GET_CHAIN, _REQUEST | _DUMP, 1, 0)
        sock.send(head + struct.pack("=BBH", socket.AF_UNSPEC, 0, 0))
        for _ in range(_MAX_MESSAGES):
            for kind, body in _messages(sock.recv(_BUFFER)):
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, os.strerror(code), "list the chains of nf_tables")
                if kind == _NEW_CHAIN:
                    yield _chain(body)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 16:
        size, kind = struct.unpack_from("=IH", data)
        if not 16 <= size <= len(data):
            return
        yield kind, data[16:size]
        data = data[(size + 3) & ~3 :]


def _chain(body: bytes) -> Chain:
    found = dict(_attributes(body[4:]))
    hook = dict(_attributes(found[_HOOK])) if _HOOK in found else {}
    return Chain(
        body[0], _text(found.get(_TABLE, b"")), _text(found.get(_NAME, b"")), _number(hook.get(_HOOK_NUMBER)),
        _number(found.get(_POLICY)),
    )  # fmt: skip


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        if not 4 <= size <= len(data):
            return
        yield kind & _KIND, data[4:size]
        data = data[(size + 3) & ~3 :]


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def _number(value: bytes | None) -> int | None:
    return None if value is None or len(value) < 4 else int(struct.unpack_from(">I", value)[0])
