"""The nftables table of an uplink: what may leave a box, and what may reach one.

Rules match interfaces by the prefix of their name, so a new box needs no change here, unless it may reach ranges that
others may not: these are elements of a set, by the box's address. An `accept` in this table does not overrule a drop in
another table, so the machine's own firewall still applies.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network

from hutch.linux import kernel
from hutch.providers.native.network.availability import find_program
from hutch.providers.native.network.namespaces import NetworkNamespace

# Most connections that the kernel tracks for one box. The table of connections is the machine's own, and small: a box
# that sends a datagram to each of a million ports must not push out the connections of others.
MOST_FLOWS = 2048

_CAP_NET_ADMIN = 12
_AMBIENT_RAISE = 2


class FirewallError(Exception):
    """nft refused; the message quotes it."""


def table(tag: str) -> str:
    return f"hutch_{tag}"


def carrier(tag: str) -> str:
    """The name of pasta's interface in a network namespace of ours.

    The pasta of Debian 12 (2023-03-09) updates its window in a segment without flags while something is not yet
    acknowledged. The kernel takes that segment for part of no connection: it is not translated, and our namespace
    answers it with a reset, after which pasta drops the connection. So the rules drop such segments.
    """
    return f"hv{tag}up"


def ruleset(tag: str, share: IPv4Network, nameserver: IPv4Address, refused: Sequence[IPv4Network]) -> str:
    boxes = f'"hv{tag}-*"'
    return f"""
table inet {table(tag)} {{
  set allowed {{ type ipv4_addr . ipv4_addr; flags interval; }}
  set refused {{ type ipv4_addr; flags interval; auto-merge; {_elements(refused)} }}
  set machine {{ type ipv4_addr; }}
  set flows {{ type ipv4_addr; size 65535; flags dynamic; }}

  chain arriving {{
    type filter hook prerouting priority raw; policy accept;
    iifname != {boxes} accept
    meta nfproto != ipv4 drop comment "no IPv6 for boxes"
    fib saddr . iif oif missing drop comment "a source address that is not that box's own"
  }}
  chain counted {{
    type filter hook prerouting priority mangle; policy accept;
    iifname "{carrier(tag)}" ct state invalid drop comment "pasta's segments without any flag"
    iifname != {boxes} accept
    ct state new add @flows {{ ip saddr ct count over {MOST_FLOWS} }} drop
  }}
  chain to_us {{
    type filter hook input priority filter - 5; policy accept;
    iifname != {boxes} accept
    ip daddr {nameserver} udp dport 53 accept
    ip daddr {nameserver} tcp dport 53 accept
    reject with icmp type admin-prohibited
  }}
  chain passing {{
    type filter hook forward priority filter - 5; policy accept;
    oifname {boxes} ct state established,related accept
    oifname {boxes} reject with icmp type admin-prohibited comment "nobody calls a box, a neighbour least of all"
    iifname != {boxes} accept
    ip daddr @machine reject with icmp type admin-prohibited
    ip saddr . ip daddr @allowed accept
    ip daddr @refused reject with icmp type admin-prohibited
  }}
  chain leaving {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {share} oifname != {boxes} masquerade
  }}
}}
"""


def machine_addresses(tag: str, addresses: Sequence[IPv4Address]) -> str:
    """Replace the set of the machine's own addresses, to which pasta would connect."""
    name = f"inet {table(tag)} machine"
    fill = f"add element {name} {{ {', '.join(map(str, addresses))} }}\n" if addresses else ""
    return f"flush set {name}\n{fill}"


def allowing(tag: str, box: IPv4Address, allowed: Sequence[IPv4Network]) -> str:
    """Let the box at this address reach these ranges, which must not overlap."""
    return f"add element {_allowances(tag, box, allowed)}"


def disallowing(tag: str, box: IPv4Address, allowed: Sequence[IPv4Network]) -> str:
    """Revoke `allowing`, before another box gets the address."""
    return f"delete element {_allowances(tag, box, allowed)}"


def _allowances(tag: str, box: IPv4Address, allowed: Sequence[IPv4Network]) -> str:
    return f"inet {table(tag)} allowed {{ {', '.join(f'{box} . {each}' for each in allowed)} }}\n"


def removal(tag: str) -> str:
    # `add` first makes the deletion right whether the table is there or not.
    return f"add table inet {table(tag)}\ndelete table inet {table(tag)}\n"


def _elements(networks: Sequence[IPv4Network]) -> str:
    return f"elements = {{ {', '.join(map(str, networks))} }}" if networks else ""


def apply(script: str) -> None:
    """Run `script` in the caller's network namespace, as one transaction (about 8 ms)."""
    _nft(["-f", "-"], script)


def apply_from(enter: Callable[[], None], script: str) -> None:
    """Run `script` in another namespace: `enter` moves the child there before it executes nft."""

    def prepare() -> None:
        enter()
        _keep_net_admin()

    _nft(["-f", "-"], script, prepare)


class MachineAddressFilter:
    """Keeps the machine's own addresses refused in a network namespace of ours, while pasta carries its traffic.

    Pasta connects from the machine, where every address of the machine is near. The helper's worker does this and not
    the spawner, because boxes keep their network when their spawner has ended, and an address that the machine gets
    then must be refused too. The worker has no privilege on the machine, but its user owns the user namespace.
    """

    def __init__(self, namespace: NetworkNamespace, tag: str, known: Sequence[IPv4Address] | None) -> None:
        """`known` is what the set holds now, or None if nobody can tell."""
        self._namespace = namespace
        self._tag = tag
        self._known = None if known is None else set(known)

    def update(self, addresses: Sequence[IPv4Address]) -> None:
        """Refuse exactly these addresses. After a FirewallError nothing may be carried any more."""
        if set(addresses) == self._known:
            return
        apply_from(self._namespace.enter, machine_addresses(self._tag, addresses))
        self._known = set(addresses)


def tags() -> set[str]:
    """The tags of the uplinks that have a table in this namespace."""
    listing = json.loads(_nft(["-j", "list", "tables"], ""))
    names = (entry.get("table", {}).get("name", "") for entry in listing.get("nftables", []))
    return {name.removeprefix("hutch_") for name in names if re.fullmatch(r"hutch_[0-9a-f]{6}", name)}


def _keep_net_admin() -> None:
    """Keep CAP_NET_ADMIN over execve(2), which drops all but ambient capabilities of an ordinary user."""
    mask = 1 << _CAP_NET_ADMIN
    kernel.run_calls([kernel.capset_call(mask, inheritable=mask)])
    kernel.prctl(kernel.PR_CAP_AMBIENT, _AMBIENT_RAISE, _CAP_NET_ADMIN)


def _nft(arguments: list[str], script: str, prepare: Callable[[], None] | None = None) -> str:
    program = find_program("nft")
    if program is None:
        raise FirewallError("nft is not installed")
    done = subprocess.run(
        [program, *arguments],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=prepare or (_keep_net_admin if os.geteuid() else None),
    )
    if done.returncode:
        raise FirewallError(f"nft refused: {done.stderr.strip()[:500]}")
    return done.stdout
