"""The uplink in a network namespace of our own, with pasta: as root, and as an ordinary user."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.providers.native.network.name_server import NameServer, answer, query
from tests.providers.native.network.topology import (
    MACHINE,
    OUTSIDE,
    PRIVATE,
    TIMEOUT,
    Topology,
    ask,
    box_namespace,
    connect,
    lift_routes,
    run_apart,
)

from hutch.linux import netlink
from hutch.linux.netlink import Netlink
from hutch.providers.native.network import firewall, namespaces
from hutch.providers.native.network.availability import available, find_program
from hutch.providers.native.network.helper import NetworkHelper
from hutch.providers.native.network.namespaces import in_namespace
from hutch.providers.native.network.uplink import NetworkUnavailable, Uplink, leave_machine_network

NOBODY = 65534
SECOND = "198.51.100.7"
"""Another address of the machine, one that pasta does not copy into our namespace."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_program("pasta") is None, reason="needs pasta (package passt)"),
]


@pytest.fixture(params=[0, NOBODY], ids=["root", "rootless"])
def uid(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def still_topology(topology: Topology) -> Topology:
    """A machine that does not forward, and must not be made to."""
    topology.set_forwarding("0")
    add_address(topology, SECOND)
    return topology


def add_address(topology: Topology, address: str) -> None:
    with in_namespace(topology.machine), Netlink() as link:
        link.ask(netlink.add_address(1, IPv4Address(address), 32))


def open_uplink(*, resolv_conf: str = "/dev/null") -> Uplink:
    """As a spawner does it: one that is not root first leaves the machine's network."""
    helper = leave_machine_network() if os.geteuid() else None
    return Uplink(helper=helper, resolv_conf=resolv_conf)


def apply_in_namespace(uplink: Uplink, script: str) -> None:
    with uplink._in_namespace():
        firewall.apply(script)


def test_a_box_reaches_the_outside_and_the_machine_does_not_forward(still_topology: Topology, uid: int) -> None:
    def scenario() -> list[str]:
        plan = available()
        uplink = open_uplink()
        box = box_namespace()
        uplink.connect(box)
        reached = connect(box, OUTSIDE)
        uplink.close()
        return [plan.how, reached]

    assert run_apart(still_topology, scenario, uid=uid) == ["pasta", "connected"]
    with in_namespace(still_topology.machine), open("/proc/sys/net/ipv4/ip_forward") as file:
        assert file.read() == "0\n"


def test_the_machine_is_refused_at_every_address(still_topology: Topology, uid: int) -> None:
    """Pasta connects from the machine itself: without our rule it would reach what listens there."""

    def scenario() -> list[str]:
        uplink = open_uplink()
        box = box_namespace()
        box_link = uplink.connect(box)
        lift_routes(box, box_link)
        facts = [connect(box, each) for each in (MACHINE, SECOND, box_link.gateway, OUTSIDE)]
        apply_in_namespace(uplink, f"flush set inet {firewall.table(uplink.tag)} machine\n")
        facts.append(connect(box, SECOND))
        uplink.close()
        return facts

    refused = "EHOSTUNREACH"
    facts = run_apart(still_topology, scenario, uid=uid)
    assert facts == [refused, refused, refused, "connected", "connected"]


def test_an_address_the_machine_gets_later_is_refused_too(still_topology: Topology, uid: int) -> None:
    late = "198.51.100.8"
    ready, reply = os.pipe()
    added, go_on = os.pipe()

    def scenario() -> list[Any]:
        uplink = open_uplink()
        box = box_namespace()
        uplink.connect(box)
        os.write(reply, b"1")
        os.read(added, 1)
        deadline = time.monotonic() + TIMEOUT
        while connect(box, late) == "connected" and time.monotonic() < deadline:
            time.sleep(0.02)  # the kernel notifies the helper, as soon as it runs
        facts = [connect(box, late), connect(box, OUTSIDE), uplink.handle()]
        uplink.close()
        return facts

    def add_when_ready() -> None:
        os.read(ready, 1)
        add_address(still_topology, late)
        os.write(go_on, b"1")

    helper = in_fork(add_when_ready)
    assert run_apart(still_topology, scenario, uid=uid) == ["EHOSTUNREACH", "connected", True]
    os.waitpid(helper, 0)
    for each in (ready, reply, added, go_on):
        os.close(each)


def in_fork(step: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            step()
        finally:
            os._exit(0)
    return pid


def test_private_ranges_and_neighbours_are_refused(still_topology: Topology, uid: int) -> None:
    def scenario() -> list[Any]:
        uplink = open_uplink()
        box, other = box_namespace(), box_namespace()
        box_link, neighbour = uplink.connect(box, ["10.9.0.0/16"]), uplink.connect(other)
        targets = [*PRIVATE[1:], neighbour.address]
        by_routes = {connect(box, each) for each in targets}
        lift_routes(box, box_link)
        by_firewall = {connect(box, each) for each in targets}
        allowed = connect(box, PRIVATE[0])
        apply_in_namespace(uplink, f"flush set inet {firewall.table(uplink.tag)} refused\n")
        control = connect(box, PRIVATE[1])
        uplink.close()
        return [list(by_routes), list(by_firewall), allowed, control]

    facts = run_apart(still_topology, scenario, uid=uid)
    assert facts == [["EACCES"], ["EHOSTUNREACH"], "connected", "connected"]


def test_a_resolver_on_the_machines_loopback_is_asked(still_topology: Topology, uid: int, resolv_conf: Path) -> None:
    """As systemd-resolved: reached by the helper, which stayed on the machine's network, and by no box."""
    resolv_conf.write_text("nameserver 127.0.0.53\n")

    def scenario() -> bool:
        uplink = open_uplink(resolv_conf=str(resolv_conf))
        box = box_namespace()
        box_link = uplink.connect(box)
        assert box_link.resolv_conf == f"nameserver {box_link.nameserver}\n"
        right = ask(box, box_link.nameserver, query("example.test")) == answer(query("example.test"))
        uplink.close()
        return right

    with NameServer(still_topology.machine, "127.0.0.53"):
        assert run_apart(still_topology, scenario, uid=uid)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_pasta(pid: int) -> bool:
    """No other process of the worker's, and none that has ended."""
    return b"pasta" in Path(f"/proc/{pid}/cmdline").read_bytes()


class HelperProcesses(NamedTuple):
    """The processes of an uplink."""

    helper: int
    worker: int
    pasta: int

    @classmethod
    def of(cls, owner: int) -> "HelperProcesses":
        """Once they are all there: a dead worker may not be replaced yet, nor the anchor gone that pasta comes in by.
        The pasta of a dead worker carries for a moment more, so that being connected proves nothing."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                (helper,) = [each for each in children(owner) if children(each)]
                (worker,) = children(helper)
                (pasta,) = children(worker)
                if is_pasta(pasta):
                    return cls(helper, worker, pasta)
            assert time.monotonic() < deadline, "they never came"
            time.sleep(0.01)


def test_helper_and_pasta_end_with_a_killed_owner(still_topology: Topology, uid: int) -> None:
    """Nothing is left after kill -9: not even where a box holds a copy of the owner's descriptors."""
    ready, reply = os.pipe()

    def owner() -> None:
        def scenario() -> None:
            uplink = open_uplink()
            box = in_fork(lambda: time.sleep(uplink.fileno() and TIMEOUT * 2))
            os.write(reply, f"{os.getpid()} {box}".encode())
            signal.pause()

        run_apart(still_topology, scenario, uid=uid)

    outer = in_fork(owner)
    pid, box = map(int, os.read(ready, 100).split())
    try:
        watched = [os.pidfd_open(each) for each in HelperProcesses.of(pid)]
        os.kill(pid, signal.SIGKILL)
        for each in watched:
            assert select.select([each], [], [], TIMEOUT)[0], "it outlived its owner"
            os.close(each)
    finally:
        for each in (pid, box):  # in this order: `outer` holds the owner's pid for as long as the box lives
            os.kill(each, signal.SIGKILL)
        os.waitpid(outer, 0)
        os.close(ready)
        os.close(reply)


def until_connected(box: int) -> str:
    """A connection in the moment without pasta is refused; the last refusal, if it never works again."""
    deadline = time.monotonic() + TIMEOUT
    while (found := connect(box, OUTSIDE)) != "connected" and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def kill(pid: int) -> None:
    """Returns when it has ended, buried or not."""
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], TIMEOUT)[0]
    os.close(pidfd)


@pytest.mark.parametrize("killed", ["worker", "pasta"])
def test_a_killed_worker_is_replaced_and_boxes_are_online_again(
    still_topology: Topology, uid: int, killed: str, resolv_conf: Path
) -> None:
    """A box that is offline without a word is the worst. Twice, for old boxes and for new ones (lesson 34)."""
    resolv_conf.write_text("nameserver 127.0.0.53\n")

    def scenario() -> list[Any]:
        uplink = open_uplink(resolv_conf=str(resolv_conf))
        old = box_namespace()
        box_link = uplink.connect(old)
        facts: list[Any] = []
        for _ in range(2):
            before = HelperProcesses.of(os.getpid())
            kill(getattr(before, killed))
            facts.append(until_connected(old))
            facts.append(ask(old, box_link.nameserver, query("example.test")) == answer(query("example.test")))
            after = HelperProcesses.of(os.getpid())
            facts.append((after.helper == before.helper, after.worker == before.worker, after.pasta == before.pasta))
        new = box_namespace()
        uplink.connect(new)
        facts += [connect(new, OUTSIDE), connect(new, SECOND), connect(old, MACHINE)]
        uplink.close()
        return facts

    with NameServer(still_topology.machine, "127.0.0.53"):
        facts = run_apart(still_topology, scenario, uid=uid)
    mended = ["connected", True, [True, False, False]]
    assert facts == [*mended, *mended, "connected", "EHOSTUNREACH", "EHOSTUNREACH"]


def test_a_new_pasta_refuses_an_address_that_the_machine_got_meanwhile(still_topology: Topology, uid: int) -> None:
    """What the dead worker knew is not believed: the machine's addresses are refused before anything is carried."""

    def scenario() -> list[str]:
        uplink = open_uplink()
        box = box_namespace()
        uplink.connect(box)
        # As if the last worker had died before it learned this address.
        apply_in_namespace(uplink, f"delete element inet {firewall.table(uplink.tag)} machine {{ {SECOND} }}\n")
        facts = [connect(box, SECOND)]
        kill(HelperProcesses.of(os.getpid()).worker)
        facts += [until_connected(box), connect(box, SECOND)]
        uplink.close()
        return facts

    assert run_apart(still_topology, scenario, uid=uid) == ["connected", "connected", "EHOSTUNREACH"]


def test_a_helper_whose_workers_all_fail_gives_up_and_says_why(still_topology: Topology) -> None:
    def scenario() -> list[Any]:
        uplink = open_uplink()
        tag = uplink.tag
        facts: list[Any] = [namespaces.uplink_is_alive(tag)]
        os.unlink("/dev/net/tun")
        kill(HelperProcesses.of(os.getpid()).pasta)
        facts.append(bool(select.select([uplink], [], [], TIMEOUT)[0]))
        facts += [uplink.handle(), namespaces.uplink_is_alive(tag), uplink.broken]
        uplink.close()
        return facts

    *facts, broken = run_apart(still_topology, scenario)
    assert facts == [True, True, False, False]
    assert "pasta ended with status 1" in broken and "tun" in broken


def test_a_killed_helper_is_noticed_and_reported(still_topology: Topology, uid: int) -> None:
    def scenario() -> list[Any]:
        uplink = open_uplink()
        kill(HelperProcesses.of(os.getpid()).helper)
        heard = bool(select.select([uplink], [], [], TIMEOUT)[0])
        alive = uplink.handle()
        try:
            uplink.connect(box_namespace())
        except NetworkUnavailable as error:
            return [heard, alive, str(error)]
        return ["box_link"]

    heard, alive, message = run_apart(still_topology, scenario, uid=uid)
    assert (heard, alive) == (True, False)
    assert "the network helper was killed" in message


def test_a_machine_that_uses_the_pool_keeps_its_part(still_topology: Topology, uid: int) -> None:
    with in_namespace(still_topology.machine), Netlink() as link:
        link.ask(netlink.route_via(IPv4Network("198.18.0.0/16"), IPv4Address(OUTSIDE)))

    def scenario() -> str:
        uplink = open_uplink()
        box_link = uplink.connect(box_namespace())
        uplink.close()
        return box_link.address

    assert IPv4Address(run_apart(still_topology, scenario, uid=uid)) in IPv4Network("198.19.0.0/16")


def test_a_spawner_that_has_not_left_never_touches_the_machines_forwarding(still_topology: Topology) -> None:
    with in_namespace(still_topology.machine):
        with pytest.raises(NetworkUnavailable, match="has not left"):
            Uplink(helper=NetworkHelper.fork())
        with open("/proc/sys/net/ipv4/ip_forward") as file:
            assert file.read() == "0\n"
