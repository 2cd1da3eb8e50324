"""Address arithmetic: which addresses a box may reach, and which ones are given to boxes."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

# The benchmarking range (RFC 2544), which nobody routes, and which is not among the private ranges that people use.
POOL = IPv4Network("198.18.0.0/15")
# One instance's share: 4,096 links, and sixteen instances in one network namespace.
SHARE_PREFIX = 19

REFUSED = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, and the metadata service of every large cloud
        "172.16.0.0/12",
        "192.0.0.0/24",  # IETF assignments; some clouds keep a metadata address here
        "192.168.0.0/16",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the broadcast address
    )
)


class RangesFull(Exception):
    """Every share of the pool overlaps a route that the machine already has."""


def parse(allow_private: Iterable[str]) -> tuple[IPv4Network, ...]:
    """Parse the allowed ranges into networks that do not overlap. ValueError names one that is not valid."""
    return tuple(collapse_addresses(IPv4Network(text) for text in allow_private))


def refused(pool: IPv4Network, allowed: Sequence[IPv4Network]) -> list[IPv4Network]:
    """The ranges to refuse, without those that lie wholly inside an allowed range.

    The pool is always refused, whatever is allowed, because it holds the addresses of other boxes.
    """
    kept = [each for each in REFUSED if not any(each.subnet_of(free) for free in allowed)]
    return [*kept, pool]


def exceptions(refused_ranges: Sequence[IPv4Network], allowed: Sequence[IPv4Network]) -> list[IPv4Network]:
    """Allowed ranges that need a route of their own, because a refused one around them would hide them."""
    return [
        free for free in dict.fromkeys(allowed) if any(free != each and free.subnet_of(each) for each in refused_ranges)
    ]


def shares(pool: IPv4Network, tag: str, taken: Sequence[IPv4Network]) -> list[IPv4Network]:
    """The free shares of `pool`, in an order that depends on the tag."""
    candidates = list(pool.subnets(new_prefix=max(SHARE_PREFIX, pool.prefixlen)))
    start = int(tag, 16) % len(candidates)
    turned = candidates[start:] + candidates[:start]
    free = [share for share in turned if not any(share.overlaps(route) for route in taken)]
    if not free:
        raise RangesFull(f"every part of {pool} overlaps a route of this machine")
    return free


def nameserver(share: IPv4Network) -> IPv4Address:
    return share.network_address + 1


def capacity(share: IPv4Network) -> int:
    return share.num_addresses // 2 - 1


def link(share: IPv4Network, slot: int) -> tuple[IPv4Address, IPv4Address]:
    """The addresses of link `slot`: our end, the box's end. The first pair belongs to the name server."""
    near = share.network_address + 2 * (slot + 1)
    return near, near + 1
