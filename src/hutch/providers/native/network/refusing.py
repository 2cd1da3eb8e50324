"""Keeping the machine's own addresses refused in a junction, for as long as pasta carries what leaves it.

Pasta connects from the machine, to which none of the machine's addresses is far away. The porter does this, and not the
spawner: boxes keep their network when their spawner has ended, and an address that the machine gets then must be
refused too. It has no privilege on the machine, but it owns the junction's user namespace, or is of the user who does.
"""

import os
from collections.abc import Sequence
from ipaddress import IPv4Address

from hutch.providers.native import kernel
from hutch.providers.native.network import firewall


class Refusing:
    """The set of refused machine addresses in the junction that process `pid` stands in."""

    def __init__(self, pid: int, tag: str, known: Sequence[IPv4Address]) -> None:
        self._tag = tag
        self._known = set(known)
        self._user = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        self._net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def renew(self, addresses: Sequence[IPv4Address]) -> None:
        """Refuse these, and those only. Raises firewall.FirewallError: then nothing may be carried any more."""
        if set(addresses) == self._known:
            return
        firewall.apply_from(self._enter, firewall.machine_addresses(self._tag, addresses))
        self._known = set(addresses)

    def _enter(self) -> None:
        kernel.setns(self._user, kernel.CLONE_NEWUSER)
        kernel.setns(self._net, kernel.CLONE_NEWNET)
