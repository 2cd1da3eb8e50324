"""Keeping the machine's own addresses refused in a junction, for as long as pasta carries what leaves it.

Pasta connects from the machine, to which none of the machine's addresses is far away. The porter's runner does this,
and not the spawner: boxes keep their network when their spawner has ended, and an address that the machine gets then
must be refused too. It has no privilege on the machine, but it owns the junction's user namespace, or is of the user
who does.
"""

import os
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import NamedTuple

from hutch.linux import kernel
from hutch.providers.native.network import firewall


class Junction(NamedTuple):
    """The way into a junction of ours: descriptors of its user and network namespaces."""

    user: int
    network: int

    @classmethod
    def of(cls, pid: int) -> "Junction":
        """Where process `pid` stands."""
        return cls(*(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("user", "net")))

    def enter(self) -> None:
        kernel.setns(self.user, kernel.CLONE_NEWUSER)
        kernel.setns(self.network, kernel.CLONE_NEWNET)


class Refusing:
    """The set of refused machine addresses in a junction."""

    def __init__(self, junction: Junction, tag: str, known: Sequence[IPv4Address] | None) -> None:
        """`known`: what the set holds; None: nobody can tell."""
        self._junction = junction
        self._tag = tag
        self._known = None if known is None else set(known)

    def renew(self, addresses: Sequence[IPv4Address]) -> None:
        """Refuse these, and those only. Raises firewall.FirewallError: then nothing may be carried any more."""
        if set(addresses) == self._known:
            return
        firewall.apply_from(self._junction.enter, firewall.machine_addresses(self._tag, addresses))
        self._known = set(addresses)
