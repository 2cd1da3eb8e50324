"""Outbound network for boxes: one uplink for each spawner, one link for each box.

The boxes' links end in a network namespace where packets are filtered and translated. It is the machine's own namespace
if we are root and the machine already forwards. Otherwise it is one of ours, and pasta carries its traffic out, because
we never change a sysctl of the machine.
"""

import contextlib
import errno
import os
import re
import socket
from collections import deque
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network

from hutch.linux import kernel, netlink
from hutch.linux.netlink import Netlink
from hutch.providers.native.network import addresses, connection_test, dns, firewall, links, namespaces
from hutch.providers.native.network.availability import CARRIED, available, privileged
from hutch.providers.native.network.helper import HelperGone, NetworkHelper, NetworkSurvey
from hutch.providers.native.network.links import BoxLink

_DOCTOR = "`hutch doctor` tells what this machine lacks"


class NetworkUnavailable(Exception):
    """The uplink cannot be opened, or is broken; `remedy` says what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def _group(tag: str) -> int:
    return 0x68000000 | int(tag, 16)


def leave_machine_network() -> NetworkHelper:
    """Fork a helper and enter namespaces of our own. A rootless spawner calls this before its first box."""
    helper = NetworkHelper.fork()
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else /proc/self/uid_map belongs to root, and pasta may not read it
        namespaces.unshare_mapped(os.geteuid(), os.getegid())
    except OSError as error:
        helper.close()
        raise NetworkUnavailable(f"no namespaces for the network of boxes: {error}", _DOCTOR) from error
    return helper


def sweep(*, dry_run: bool = False) -> tuple[str, ...]:
    """Remove what dead uplinks left in the machine's namespace, and return the names of their tables.

    An uplink whose boxes still run is not dead, even if its helper is: its table still filters their traffic.
    """
    if not privileged():
        return ()  # an ordinary user's uplink is in namespaces that end with it
    with Netlink() as ours:
        tags = sorted(match[1] for name in ours.links() if (match := re.fullmatch(r"hv([0-9a-f]{6})-dns", name)))
        return tuple(firewall.table(tag) for tag in tags if _sweep_one(ours, tag, dry_run=dry_run))


def _sweep_one(ours: Netlink, tag: str, *, dry_run: bool) -> bool:
    name = namespaces.hold_uplink_name(tag)
    if name is None:
        return False
    with name:
        if links.has_box_links(tag, ours.links()):  # a box was connected meanwhile, and its helper died
            return False
        if not dry_run:
            _clear(ours, tag)
    return True


def _clear(ours: Netlink, tag: str) -> None:
    """Remove the table, then the links: should we be killed in between, the links still lead to the uplink."""
    firewall.apply(firewall.removal(tag))
    try:
        ours.ask(netlink.delete_group(_group(tag)))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


class Uplink:
    """The network of every box of one spawner. Boxes that outlive the spawner keep it."""

    def __init__(
        self,
        *,
        helper: NetworkHelper | None = None,
        pool: IPv4Network = addresses.POOL,
        resolv_conf: str = "/etc/resolv.conf",
        testing: bool = False,
    ) -> None:
        """Open it, which takes some 20 ms, or 60 with pasta.

        `helper` comes from `leave_machine_network`; root passes none. With `testing` it is opened for a connection test
        and must never serve a box. Raises NetworkUnavailable, and leaves nothing behind then.
        """
        self.tag = ""
        self._pool = pool
        self._namespace = -1
        self.broken = ""
        """Why it can no longer be used; "" while it can."""
        self._used: set[int] = set()
        with contextlib.ExitStack() as undo:
            try:
                carried = self._open(undo, helper, resolv_conf, testing)
                if testing:
                    self._test_connections(carried)
            except (
                OSError,
                HelperGone,
                firewall.FirewallError,
                addresses.RangesFull,
                connection_test.ConnectionTestFailed,
            ) as error:
                raise NetworkUnavailable(f"no network for boxes: {error}", _DOCTOR) from error
            self._undo = undo.pop_all()

    def connect(self, netns: int, allow_private: Sequence[str] = ()) -> BoxLink:
        """Connect a box's namespace, a descriptor, to the uplink (0.8 ms; 8 ms more with private ranges)."""
        if not self.handle():
            raise NetworkUnavailable(self.broken, "try again: a new one is opened")
        allowed = addresses.parse(allow_private)
        nameserver = addresses.nameserver(self._share)
        refused = addresses.refused(self._pool, allowed)
        exceptions = [*addresses.exceptions(refused, allowed), IPv4Network(nameserver)]
        for _ in range(len(self._free)):
            slot = self._free.popleft()
            interface = f"hv{self.tag}-{slot}"
            near, far = ends = addresses.link(self._share, slot)
            try:
                links.connect_box(self._links, netns, interface, _group(self.tag), ends, refused, exceptions)
            except FileExistsError:  # the kernel has not yet removed the link of the slot's last box
                self._free.append(slot)
                continue
            except OSError:
                self._free.append(slot)
                raise
            self._used.add(slot)
            link = BoxLink(slot, interface, str(far), str(near), str(nameserver), allowed)
            if allowed:
                self._allow(link)
            return link
        raise NetworkUnavailable(f"all {addresses.capacity(self._share)} links are in use", "destroy a box first")

    def disconnect(self, link: BoxLink) -> None:
        """Give the box's slot back. The kernel removes the link with the box's namespace."""
        self._used.discard(link.slot)
        if link.allowed:
            try:
                self._apply(firewall.disallowing(self.tag, IPv4Address(link.address), link.allowed))
            except (OSError, firewall.FirewallError):
                return  # no other box may get this address, because it would reach the ranges of this one
        self._free.append(link.slot)

    def _allow(self, link: BoxLink) -> None:
        """Allow the box its private ranges. If nft refuses, the creation fails, and the slot is not reused."""
        try:
            self._apply(firewall.allowing(self.tag, IPv4Address(link.address), link.allowed))
        except (OSError, firewall.FirewallError) as error:
            self._used.discard(link.slot)
            raise NetworkUnavailable(f"the private ranges of a box cannot be allowed: {error}", _DOCTOR) from error

    def _apply(self, script: str) -> None:
        with self._in_namespace():
            firewall.apply(script)

    def fileno(self) -> int:
        """A descriptor for the spawner's loop, readable when `handle` has something to do."""
        return self._helper.fileno()

    def handle(self) -> bool:
        """Check on the helper; False if the uplink is broken for good and must not be used again."""
        try:
            self._helper.listen()
        except (HelperGone, OSError) as error:
            self.broken = f"the network of boxes is down: {error}"
            self._helper.end()
        return not self.broken

    def close(self) -> None:
        """Remove the uplink, or leave it and its helper to the boxes that still run, and the rest to a later `sweep`.

        This also holds for a broken uplink, because its table still filters the boxes' traffic.
        """
        if self._used:
            self._leave()
        else:
            self._undo.close()

    def _leave(self) -> None:
        self._undo.pop_all()
        self._helper.leave()
        self._links.close()
        if self._namespace >= 0:
            os.close(self._namespace)

    def _test_connections(self, carried: bool) -> None:
        if not carried:
            return connection_test.check_connections(self, None, None)
        target, gateway = self._helper.open_target()
        with target:
            return connection_test.check_connections(self, target, gateway)

    def _open(self, undo: contextlib.ExitStack, helper: NetworkHelper | None, resolv_conf: str, testing: bool) -> bool:
        """Open all parts, and return whether pasta carries the traffic."""
        carried_pid = os.getpid()
        if helper is not None:
            carried = True
            undo.callback(helper.close)
        else:
            plan = available()
            if not plan.usable:
                raise NetworkUnavailable(f"no network for boxes: {plan.reason}", plan.remedy)
            carried = plan.how == CARRIED
            helper = NetworkHelper.fork()
            undo.callback(helper.close)
            if carried:
                self._namespace, carried_pid = helper.make_namespace()
                undo.callback(os.close, self._namespace)
        self._helper = helper
        survey = helper.survey(self._pool)
        self.tag = survey.tag
        with self._in_namespace():
            if carried:
                _forward_here(survey.namespace)
            self._links = undo.enter_context(Netlink())
            if not carried:  # a namespace of ours ends with its last descriptor
                undo.callback(_clear, self._links, self.tag)
            self._share = self._claim(survey)
            self._filter(survey.addresses if carried else [])
            listeners = _listen(addresses.nameserver(self._share))
            watches = [netlink.route_socket(), netlink.route_socket()]
        carry = carried_pid if carried else None
        helper.serve(listeners, watches, self._share, resolv_conf, carry, testing=testing)
        for each in (*listeners, *watches):
            each.close()
        self._free = deque(range(addresses.capacity(self._share)))
        return carried

    def _in_namespace(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._namespace < 0 else namespaces.in_namespace(self._namespace)

    def _claim(self, survey: NetworkSurvey) -> IPv4Network:
        interface = f"hv{self.tag}-dns"
        for share in addresses.shares(self._pool, self.tag, survey.routes + self._links.routes()):
            if links.claim_share(self._links, interface, _group(self.tag), addresses.nameserver(share), share):
                return share
        raise addresses.RangesFull(f"other uplinks have taken every part of {self._pool}")

    def _filter(self, machine: Sequence[IPv4Address]) -> None:
        refused = addresses.refused(self._pool, ())
        rules = firewall.ruleset(self.tag, self._share, addresses.nameserver(self._share), refused)
        fill = firewall.machine_addresses(self.tag, machine)
        firewall.apply(rules + fill)


def _forward_here(machine: int) -> None:
    """Enable forwarding in our current namespace, which must not be the machine's."""
    if namespaces.namespace_id() == machine:
        raise PermissionError("this process has not left the machine's network namespace")
    namespaces.bring_loopback_up()
    with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as file:
        file.write("1")


def _listen(address: IPv4Address) -> list[socket.socket]:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    for each in (datagrams, listener):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind((str(address), dns.PORT))
    listener.listen(64)
    return [datagrams, listener]
