"""The veth link between a box's network namespace and ours."""

import array
import errno
import fcntl
import re
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from hutch.linux import netlink
from hutch.linux.netlink import Netlink
from hutch.providers.native.network.namespaces import in_namespace

BOX_INTERFACE = "eth0"
_EVERYWHERE = IPv4Network("0.0.0.0/0")
_SIOCETHTOOL = 0x8946
_ETHTOOL_GLINK = 0xA


@dataclass(frozen=True, slots=True)
class BoxLink:
    """One box's link. The kernel removes it with the box's namespace; only the slot has to be given back."""

    slot: int
    interface: str
    """The name of our end."""
    address: str
    """The box's own address."""
    gateway: str
    nameserver: str
    allowed: tuple[IPv4Network, ...] = ()
    """Private ranges that this box may reach and others may not."""

    @property
    def resolv_conf(self) -> str:
        return f"nameserver {self.nameserver}\n"


def connect_box(
    ours: Netlink,
    netns: int,
    interface: str,
    group: int,
    ends: tuple[IPv4Address, IPv4Address],
    refused: Sequence[IPv4Network],
    exceptions: Sequence[IPv4Network],
) -> None:
    """Connect the box's namespace with ours, and add prohibit routes for what it may not reach.

    The prohibit routes are not the defence, which is the firewall on our side. They turn a refusal into an immediate
    EACCES, and they hold where a mistake on our side would not. Nobody in a box has CAP_NET_ADMIN to remove them.
    """
    near, far = ends
    ours.ask(netlink.add_veth(interface, group, BOX_INTERFACE, netns))
    our_end = ours.index_of(interface)
    with in_namespace(netns), Netlink() as theirs:
        their_end = socket.if_nametoindex(BOX_INTERFACE)
        theirs.ask(
            netlink.without_ipv6(their_end),
            netlink.add_address(their_end, far, 31),
            netlink.set_up(their_end),
            netlink.route_via(_EVERYWHERE, near),
            *(netlink.prohibit(each) for each in refused),
            *(netlink.route_via(each, near) for each in exceptions),
        )
        ours.ask(netlink.without_ipv6(our_end), netlink.add_address(our_end, near, 31), netlink.set_up(our_end))
        _await_carrier(BOX_INTERFACE)


def _await_carrier(interface: str) -> None:
    """Have the kernel notice the link's carrier now, instead of later in a work queue.

    Until then the end that came up first drops what it should send, and a box's first connection takes the second
    that TCP waits before it tries again.
    """
    value = array.array("I", (_ETHTOOL_GLINK, 0))
    request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def has_box_links(tag: str, links: Iterable[str]) -> bool:
    """Whether one of `links`, by name, leads to a box of the uplink `tag`. Such a link ends with its box."""
    return any(re.fullmatch(rf"hv{tag}-\d+", name) for name in links)


def claim_share(ours: Netlink, interface: str, group: int, address: IPv4Address, share: IPv4Network) -> bool:
    """Claim `share` and give our namespace the name server's address; False if another uplink has the share.

    A veth pair is used as a dummy interface, which not every kernel has. The route makes the claim atomic, because the
    kernel accepts a prefix once. It also keeps packets for ended boxes from leaving by the default route, and goes with
    the interface.
    """
    ours.ask(netlink.add_veth(interface, group, interface.removesuffix("dns") + "end"))
    index = ours.index_of(interface)
    ours.ask(netlink.without_ipv6(index), netlink.add_address(index, address, 32), netlink.set_up(index))
    try:
        ours.ask(netlink.claim(share, index))
    except OSError as error:
        ours.ask(netlink.delete_link(interface))
        if error.errno == errno.EEXIST:
            return False
        raise
    return True
