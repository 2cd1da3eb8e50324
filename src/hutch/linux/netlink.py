"""Route netlink: links, addresses and routes without a library or a child process (rtnetlink(7)).

A socket belongs to the network namespace it was opened in, even if its process moves to another. The kernel answers
before sendmsg returns, so nothing here waits.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_REPLACE, _EXCLUSIVE, _CREATE = 0x100, 0x200, 0x400
_ERROR, _DONE = 2, 3
_NEWLINK, _DELLINK, _GETLINK, _NEWADDR, _GETADDR, _NEWROUTE, _GETROUTE = 16, 17, 18, 20, 22, 24, 26

_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_ACK_HAS_TEXT = 0x200
_ACK_TEXT = 1

_NESTED = 0x8000
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_AF_SPEC, _IFLA_GROUP, _IFLA_NET_NS_FD = 3, 18, 26, 27, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_INET6_ADDR_GEN_MODE, _ADDR_GEN_NONE = 8, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_MAIN_TABLE, _PROTO_STATIC = 254, 4
_SCOPE_UNIVERSE, _SCOPE_LINK = 0, 253
_UNICAST, _PROHIBIT = 1, 8
_UP = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One message to the kernel, and the words with which an error names it."""

    kind: int
    flags: int
    body: bytes
    what: str


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def _nested(kind: int, *attributes: bytes) -> bytes:
    return _attribute(kind | _NESTED, b"".join(attributes))


def _name(interface: str) -> bytes:
    return _attribute(_IFLA_IFNAME, interface.encode() + b"\0")


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


def _group(group: int) -> bytes:
    if group == 0:
        raise ValueError("group 0 holds every link of the machine")
    return _attribute(_IFLA_GROUP, struct.pack("=I", group))


def add_veth(name: str, group: int, peer: str, peer_netns: int | None = None) -> Request:
    """Add a veth pair, with the far end directly in the namespace `peer_netns` (a descriptor)."""
    target = b"" if peer_netns is None else _attribute(_IFLA_NET_NS_FD, struct.pack("=I", peer_netns))
    far = _nested(_VETH_PEER, _link(), _name(peer), target)
    info = _nested(_IFLA_LINKINFO, _attribute(_INFO_KIND, b"veth"), _nested(_INFO_DATA, far))
    return Request(_NEWLINK, _CREATE | _EXCLUSIVE, _link() + _name(name) + _group(group) + info, f"add veth {name}")


def without_ipv6(index: int) -> Request:
    """Give the link no link-local address when it comes up; must precede `set_up`."""
    mode = _attribute(_INET6_ADDR_GEN_MODE, struct.pack("=B", _ADDR_GEN_NONE))
    body = _link(index) + _nested(_IFLA_AF_SPEC, _nested(socket.AF_INET6, mode))
    return Request(_NEWLINK, 0, body, f"set IPv6 address mode of link {index}")


def set_up(index: int) -> Request:
    return Request(_NEWLINK, 0, _link(index, _UP, _UP), f"set link {index} up")


def delete_link(name: str) -> Request:
    return Request(_DELLINK, 0, _link() + _name(name), f"delete link {name}")


def delete_group(group: int) -> Request:
    """Delete every link of the group with one request: each unregistration waits 30 ms for RCU."""
    return Request(_DELLINK, 0, _link() + _group(group), f"delete the links of group {group:#x}")


def add_address(index: int, address: IPv4Address, prefix: int) -> Request:
    body = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, _SCOPE_UNIVERSE, index)
    body += _attribute(_IFA_LOCAL, address.packed) + _attribute(_IFA_ADDRESS, address.packed)
    return Request(_NEWADDR, _CREATE | _EXCLUSIVE, body, f"add address {address}/{prefix}")


def _route(to: IPv4Network, mode: int, scope: int, kind: int, attributes: bytes) -> Request:
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, to.prefixlen, 0, 0, _MAIN_TABLE, _PROTO_STATIC, scope, kind, 0)
    target = _attribute(_RTA_DST, to.network_address.packed) if to.prefixlen else b""
    return Request(_NEWROUTE, _CREATE | mode, body + target + attributes, f"add route to {to}")


def route_via(to: IPv4Network, gateway: IPv4Address) -> Request:
    return _route(to, _REPLACE, _SCOPE_UNIVERSE, _UNICAST, _attribute(_RTA_GATEWAY, gateway.packed))


def claim(to: IPv4Network, index: int) -> Request:
    """Add a route over the link; refused with EEXIST where the namespace has a route to exactly `to`."""
    return _route(to, _EXCLUSIVE, _SCOPE_LINK, _UNICAST, _attribute(_RTA_OIF, struct.pack("=I", index)))


def prohibit(to: IPv4Network) -> Request:
    """Have packets to `to` answered with EACCES at once, which a program reports better than silence."""
    return _route(to, _REPLACE, _SCOPE_UNIVERSE, _PROHIBIT, b"")


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        if size < 4:
            break
        found[kind & ~_NESTED] = data[4:size]
        data = data[(size + 3) & ~3 :]
    return found


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    while len(data) >= 16:
        size, kind, flags, sequence, _port = struct.unpack_from("=IHHII", data)
        yield kind, flags, sequence, data[16:size]
        data = data[(size + 3) & ~3 :]


def _refusal(flags: int, body: bytes, what: str) -> OSError | None:
    (code,) = struct.unpack_from("=i", body)
    if code == 0:
        return None
    text = _attributes(body[20:]).get(_ACK_TEXT, b"") if flags & _ACK_HAS_TEXT else b""
    reason = os.strerror(-code) + (f" ({text.rstrip(bytes(1)).decode()})" if text else "")
    return OSError(-code, reason, what)


def route_socket() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)


class Netlink:
    """A route socket of the caller's current namespace, or one that was opened in another namespace."""

    def __init__(self, made: socket.socket | None = None) -> None:
        self._socket = made or route_socket()
        self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Netlink":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, *requests: Request) -> None:
        """Send all requests in one system call, in order, and raise the first refusal."""
        first = self._sequence
        batch = b"".join(self._pack(request, request.flags | _ACK) for request in requests)
        self._socket.send(batch)
        failure: OSError | None = None
        for _ in requests:
            for kind, flags, sequence, body in _messages(self._socket.recv(65536)):
                if kind == _ERROR and failure is None:
                    failure = _refusal(flags, body, requests[sequence - first - 1].what)
        if failure is not None:
            raise failure

    def index_of(self, name: str) -> int:
        """The index of the link called `name`; raises OSError(ENODEV) when there is none."""
        self._socket.send(self._pack(Request(_GETLINK, 0, _link() + _name(name), name), 0))
        for kind, flags, _, body in _messages(self._socket.recv(65536)):
            if kind == _ERROR:
                raise _refusal(flags, body, f"link {name}") or OSError(errno.EPROTO, "no answer", name)
            return int(struct.unpack_from("=i", body, 4)[0])
        raise OSError(errno.EPROTO, "no answer", f"link {name}")

    def links(self) -> list[str]:
        found = (_attributes(body[16:]).get(_IFLA_IFNAME) for body in self._dump(_GETLINK, _link()))
        return [name.rstrip(b"\0").decode(errors="replace") for name in found if name]

    def addresses(self) -> list[IPv4Address]:
        """Every IPv4 address of this namespace."""
        request = struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0)
        found = (_attributes(body[8:]) for body in self._dump(_GETADDR, request))
        packed = (each.get(_IFA_LOCAL) or each.get(_IFA_ADDRESS) for each in found)
        return [IPv4Address(address) for address in packed if address]

    def routes(self) -> list[IPv4Network]:
        """The destinations of all routes of this namespace, in any table, without default routes."""
        request = struct.pack("=BBBBBBBBI", socket.AF_INET, *[0] * 8)
        found = []
        for body in self._dump(_GETROUTE, request):
            target = _attributes(body[12:]).get(_RTA_DST)
            if target:
                found.append(IPv4Network((target, body[1]), strict=False))
        return found

    def has_default_route(self) -> bool:
        request = struct.pack("=BBBBBBBBI", socket.AF_INET, *[0] * 8)
        answers = self._dump(_GETROUTE, request)
        return any(body[1] == 0 and body[7] == _UNICAST for body in answers)

    def _pack(self, request: Request, flags: int) -> bytes:
        self._sequence += 1
        size = 16 + len(request.body)
        header = struct.pack("=IHHII", size, request.kind, flags | _REQUEST, self._sequence, 0)
        return header + request.body + bytes(-size % 4)

    def _dump(self, kind: int, body: bytes) -> list[bytes]:
        self._socket.send(self._pack(Request(kind, _DUMP, body, "dump"), _DUMP))
        found: list[bytes] = []
        while True:
            for answer, flags, _, content in _messages(self._socket.recv(1 << 18)):
                if answer == _DONE:
                    return found
                if answer == _ERROR:
                    raise _refusal(flags, content, "dump") or OSError(errno.EPROTO, "no dump", "netlink")
                found.append(content)
