"""Outbound network for boxes: one uplink for each spawner, one link for each box.

The boxes' links end in a *network namespace*, a network namespace where packets are filtered and translated. It is the
machine's own namespace if we are root and the machine already forwards. Otherwise it is one of ours, and pasta
carries its traffic out: a sysctl of the machine is never ours to change.
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
from hutch.providers.native.network import addresses, connection_test, dns, firewall, links, namespaces, uplink_name
from hutch.providers.native.network.availability import CARRIED, available, privileged
from hutch.providers.native.network.helper import Porter, PorterGone, Survey
from hutch.providers.native.network.links import Wired

_DOCTOR = "`hutch doctor` tells what this machine lacks"


class NetworkUnavailable(Exception):
    """No uplink, or a broken one; `remedy` says what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def _group(tag: str) -> int:
    return 0x68000000 | int(tag, 16)


def leave_machine_network() -> Porter:
    """For a rootless spawner, before its first box: enter namespaces of our own, and leave a porter behind."""
    porter = Porter.fork()
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or /proc/self/uid_map is root's, and pasta may not look in
        namespaces.unshare_mapped(os.geteuid(), os.getegid())
    except OSError as error:
        porter.close()
        raise NetworkUnavailable(f"no namespaces for the network of boxes: {error}", _DOCTOR) from error
    return porter


def sweep(*, dry_run: bool = False) -> tuple[str, ...]:
    """Remove what dead uplinks left in the machine's namespace; returns the names of their tables.

    One whose boxes still run is not dead, whether or not its porter is: the table is what holds them.
    """
    if not privileged():
        return ()  # what an ordinary user's uplink makes lies in namespaces that end with it
    with Netlink() as ours:
        tags = sorted(match[1] for name in ours.links() if (match := re.fullmatch(r"hv([0-9a-f]{6})-dns", name)))
        return tuple(firewall.table(tag) for tag in tags if _sweep_one(ours, tag, dry_run=dry_run))


def _sweep_one(ours: Netlink, tag: str, *, dry_run: bool) -> bool:
    name = uplink_name.hold(tag)
    if name is None:
        return False
    with name:
        if links.joined(tag, ours.links()):  # by a box that came after the first look, whose porter then died
            return False
        if not dry_run:
            _clear(ours, tag)
    return True


def _clear(ours: Netlink, tag: str) -> None:
    """No box is joined any more. The table goes first: it is found by the links, should we be killed between."""
    firewall.apply(firewall.removal(tag))
    try:
        ours.ask(netlink.delete_group(_group(tag)))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


class Uplink:
    """The way out for every box of one spawner; boxes that outlive the spawner keep it."""

    def __init__(
        self,
        *,
        porter: Porter | None = None,
        pool: IPv4Network = addresses.POOL,
        resolv_conf: str = "/etc/resolv.conf",
        proving: bool = False,
    ) -> None:
        """Takes some 20 ms, or 60 with pasta. `porter` comes from `leave_machine_network`; root passes none.
        `proving`: it is opened to see that connections come through (`proof`), and must never have a box.

        Raises NetworkUnavailable, and leaves nothing behind then.
        """
        self.tag = ""
        self._pool = pool
        self._namespace = -1
        self.broken = ""
        """Why it is of no more use."""
        self._used: set[int] = set()
        with contextlib.ExitStack() as undo:
            try:
                carried = self._open(undo, porter, resolv_conf, proving)
                if proving:
                    self._prove(carried)
            except (
                OSError,
                PorterGone,
                firewall.FirewallError,
                addresses.RangesFull,
                connection_test.NotProven,
            ) as error:
                raise NetworkUnavailable(f"no network for boxes: {error}", _DOCTOR) from error
            self._undo = undo.pop_all()

    def wire(self, netns: int, allow_private: Sequence[str] = ()) -> Wired:
        """Join a box's namespace, given as a descriptor, to the uplink (0.8 ms; 8 ms more with private ranges)."""
        if not self.handle():
            raise NetworkUnavailable(self.broken, "try again: a new one is made")
        allowed = addresses.parse(allow_private)
        nameserver = addresses.nameserver(self._share)
        refused = addresses.refused(self._pool, allowed)
        exceptions = [*addresses.exceptions(refused, allowed), IPv4Network(nameserver)]
        for _ in range(len(self._free)):
            slot = self._free.popleft()
            interface = f"hv{self.tag}-{slot}"
            near, far = ends = addresses.link(self._share, slot)
            try:
                links.wire_box(self._links, netns, interface, _group(self.tag), ends, refused, exceptions)
            except FileExistsError:  # the kernel has not yet finished with the slot's last box
                self._free.append(slot)
                continue
            except OSError:
                self._free.append(slot)
                raise
            self._used.add(slot)
            wired = Wired(slot, interface, str(far), str(near), str(nameserver), allowed)
            if allowed:
                self._allow(wired)
            return wired
        raise NetworkUnavailable(f"all {addresses.capacity(self._share)} links are in use", "destroy a box first")

    def unwire(self, wired: Wired) -> None:
        """The box is gone or going: its link ends with its namespace, which costs us nothing."""
        self._used.discard(wired.slot)
        if wired.allowed:
            try:
                self._apply(firewall.disallowing(self.tag, IPv4Address(wired.address), wired.allowed))
            except (OSError, firewall.FirewallError):
                return  # then no other box gets this address: it would reach what that one was allowed
        self._free.append(wired.slot)

    def _allow(self, wired: Wired) -> None:
        """Refused by the kernel, it leaves the box without these ranges; the slot goes with the box."""
        try:
            self._apply(firewall.allowing(self.tag, IPv4Address(wired.address), wired.allowed))
        except (OSError, firewall.FirewallError) as error:
            self._used.discard(wired.slot)
            raise NetworkUnavailable(f"the private ranges of a box cannot be allowed: {error}", _DOCTOR) from error

    def _apply(self, script: str) -> None:
        with self._in_namespace():
            firewall.apply(script)

    def fileno(self) -> int:
        """For the spawner's loop: readable when `handle` has something to do."""
        return self._porter.fileno()

    def handle(self) -> bool:
        """Hear what the porter has to tell; False if the uplink is broken for good, and nobody should use it again."""
        try:
            self._porter.listen()
        except (PorterGone, OSError) as error:
            self.broken = f"the network of boxes is down: {error}"
            self._porter.end()
        return not self.broken

    def close(self) -> None:
        """Remove every trace; where boxes still run, leave the porter to them, and the traces to a later `sweep`.

        Also if it is broken: the table is what holds them.
        """
        if self._used:
            self._leave()
        else:
            self._undo.close()

    def _leave(self) -> None:
        self._undo.pop_all()
        self._porter.leave()
        self._links.close()
        if self._namespace >= 0:
            os.close(self._namespace)

    def _prove(self, carried: bool) -> None:
        if not carried:
            return connection_test.prove(self, None, None)
        target, gateway = self._porter.open_target()
        with target:
            return connection_test.prove(self, target, gateway)

    def _open(self, undo: contextlib.ExitStack, porter: Porter | None, resolv_conf: str, proving: bool) -> bool:
        """Returns whether pasta carries."""
        carried_pid = os.getpid()
        if porter is not None:
            carried = True
            undo.callback(porter.close)
        else:
            plan = available()
            if not plan.usable:
                raise NetworkUnavailable(f"no network for boxes: {plan.reason}", plan.remedy)
            carried = plan.how == CARRIED
            porter = Porter.fork()
            undo.callback(porter.close)
            if carried:
                self._namespace, carried_pid = porter.make_namespace()
                undo.callback(os.close, self._namespace)
        self._porter = porter
        survey = porter.survey(self._pool)
        self.tag = survey.tag
        with self._in_namespace():
            if carried:
                _forward_here(survey.namespace)
            self._links = undo.enter_context(Netlink())
            if not carried:  # a network namespace of ours dies with its last descriptor
                undo.callback(_clear, self._links, self.tag)
            self._share = self._claim(survey)
            self._filter(survey.addresses if carried else [])
            listeners = _listen(addresses.nameserver(self._share))
            watches = [netlink.route_socket(), netlink.route_socket()]
        carry = carried_pid if carried else None
        porter.serve(listeners, watches, self._share, resolv_conf, carry, proving=proving)
        for each in (*listeners, *watches):
            each.close()
        self._free = deque(range(addresses.capacity(self._share)))
        return carried

    def _in_namespace(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._namespace < 0 else namespaces.in_namespace(self._namespace)

    def _claim(self, survey: Survey) -> IPv4Network:
        interface = f"hv{self.tag}-dns"
        for share in addresses.shares(self._pool, self.tag, survey.routes + self._links.routes()):
            if links.anchor(self._links, interface, _group(self.tag), addresses.nameserver(share), share):
                return share
        raise addresses.RangesFull(f"other uplinks have taken every part of {self._pool}")

    def _filter(self, machine: Sequence[IPv4Address]) -> None:
        refused = addresses.refused(self._pool, ())
        rules = firewall.ruleset(self.tag, self._share, addresses.nameserver(self._share), refused)
        fill = firewall.machine_addresses(self.tag, machine)
        firewall.apply(rules + fill)


def _forward_here(machine: int) -> None:
    """Turn forwarding on in the namespace we stand in, which must be one of ours and not the machine's."""
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
