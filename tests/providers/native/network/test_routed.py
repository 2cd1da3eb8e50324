"""The uplink of a root spawner on a machine that forwards: who is reached, who is refused, and by which defence."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network

import pytest
from tests.providers.native.network.topology import (
    MACHINE,
    OUTSIDE,
    PORT,
    PRIVATE,
    TIMEOUT,
    Topology,
    connect,
    lift_routes,
    new_namespace,
    run_apart,
)

from hutch.linux import kernel, netlink
from hutch.linux.netlink import Netlink
from hutch.providers.native.network import addresses as ranges
from hutch.providers.native.network import firewall
from hutch.providers.native.network.availability import available
from hutch.providers.native.network.links import BoxLink
from hutch.providers.native.network.namespaces import bring_loopback_up, in_namespace
from hutch.providers.native.network.uplink import NetworkUnavailable, Uplink, sweep

pytestmark = pytest.mark.slow


def lift_route(box: int, box_link: BoxLink, *networks: str) -> None:
    """Take the refusal inside the box away, as nobody in a box could."""
    with in_namespace(box), Netlink() as link:
        for each in networks:
            link.ask(netlink.route_via(IPv4Network(each), IPv4Address(box_link.gateway)))


def all_refused() -> list[str]:
    return [str(each) for each in ranges.refused(ranges.POOL, ())]


def test_a_box_reaches_the_outside_behind_the_machines_address(topology: Topology) -> None:
    """`on` is outbound NAT."""
    with topology.uplink() as uplink:
        box = topology.namespace()
        uplink.connect(box)
        assert connect(box, OUTSIDE) == "connected"
        peer = topology.server.accept()[1]
    assert peer[0] == MACHINE


def test_private_and_metadata_ranges_are_refused_twice(topology: Topology) -> None:
    """By routes inside, and by the firewall alone; with both lifted the same connection succeeds (lesson 28)."""
    with topology.uplink() as uplink:
        box = topology.namespace()
        box_link = uplink.connect(box)
        assert {connect(box, each) for each in PRIVATE} == {"EACCES"}
        lift_route(box, box_link, *all_refused())
        assert {connect(box, each) for each in PRIVATE} == {"EHOSTUNREACH"}
        topology.nft(f"flush set inet {firewall.table(uplink.tag)} refused\n")
        assert {connect(box, each) for each in PRIVATE} == {"connected"}


def test_the_machine_itself_is_refused(topology: Topology) -> None:
    """The sandbox could reach the control port (lesson 28)."""
    with topology.uplink() as uplink:
        box = topology.namespace()
        box_link = uplink.connect(box)
        lift_route(box, box_link, *all_refused())
        addresses = (MACHINE, box_link.gateway, box_link.nameserver)
        assert {connect(box, each) for each in addresses} == {"EHOSTUNREACH"}
        topology.nft(f"flush chain inet {firewall.table(uplink.tag)} to_us\n")
        assert {connect(box, each) for each in addresses} == {"connected"}


def test_the_machines_loopback_is_not_the_boxs(topology: Topology) -> None:
    assert connect(topology.machine, "127.0.0.1") == "connected"
    with topology.uplink() as uplink:
        box = topology.namespace()
        uplink.connect(box)
        assert connect(box, "127.0.0.1") == "ECONNREFUSED"


def test_two_boxes_cannot_reach_one_another(topology: Topology) -> None:
    """One sandbox drove another. Routes inside, then the firewall, then neither (lesson 31)."""
    with topology.uplink() as uplink:
        one, other = topology.namespace(), topology.namespace()
        box_link, neighbour = uplink.connect(one), uplink.connect(other)
        topology.listen(other)
        assert connect(one, neighbour.address) == "EACCES"
        for box, link in ((one, box_link), (other, neighbour)):
            lift_route(box, link, *all_refused())
        assert connect(one, neighbour.address) == "EHOSTUNREACH"
        topology.nft(f"flush chain inet {firewall.table(uplink.tag)} passing\n")
        assert connect(one, neighbour.address) == "connected"


def test_boxes_of_two_instances_are_apart(topology: Topology) -> None:
    """Two keepers on one machine never touch what is the other's (lesson 10)."""
    with topology.uplink() as uplink, topology.uplink() as second:
        one, other = topology.namespace(), topology.namespace()
        box_link, neighbour = second.connect(one), uplink.connect(other)
        topology.listen(other)
        assert box_link.nameserver != neighbour.nameserver
        assert connect(one, neighbour.address) in ("EACCES", "EHOSTUNREACH")
        assert connect(one, OUTSIDE) == connect(other, OUTSIDE) == "connected"


def test_nobody_outside_can_call_a_box(topology: Topology) -> None:
    with topology.uplink() as uplink:
        box = topology.namespace()
        box_link = uplink.connect(box)
        lift_route(box, box_link, *all_refused())
        topology.listen(box)
        with in_namespace(topology.outside), Netlink() as link:
            link.ask(netlink.route_via(ranges.POOL, IPv4Address(MACHINE)))
        assert connect(topology.outside, box_link.address) == "EHOSTUNREACH"
        topology.nft(f"flush chain inet {firewall.table(uplink.tag)} passing\n")
        assert connect(topology.outside, box_link.address) == "connected"


def test_an_allowed_range_is_reached_and_its_neighbours_are_not(topology: Topology) -> None:
    """Also where they overlap; and to the one box they are allowed to, not to its neighbour nor its successor."""
    with topology.uplink() as uplink:
        box, neighbour = topology.namespace(), topology.namespace()
        box_link = uplink.connect(box, ["10.9.0.0/16", "10.9.9.0/24", "203.0.113.0/24"])
        other = uplink.connect(neighbour, ["192.168.0.0/16"])
        assert connect(box, "10.9.9.9") == "connected"
        assert connect(box, "192.168.77.7") == "EACCES"
        assert connect(box, MACHINE) == "EHOSTUNREACH", "the machine's own address stays refused"
        assert connect(neighbour, "192.168.77.7") == "connected"
        lift_routes(neighbour, other)
        assert connect(neighbour, "10.9.9.9") == "EHOSTUNREACH", "by the firewall alone"
        uplink.disconnect(box_link)
        lift_routes(box, box_link)
        assert connect(box, "10.9.9.9") == "EHOSTUNREACH", "a later box with its address"


def send(namespace: int, source: str, payload: bytes) -> None:
    with in_namespace(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((source, 0))
        sender.sendto(payload, (OUTSIDE, PORT))


def test_a_forged_source_address_is_dropped(topology: Topology) -> None:
    with topology.uplink() as uplink:
        box, other = topology.namespace(), topology.namespace()
        box_link, neighbour = uplink.connect(box), uplink.connect(other)
        with in_namespace(box), Netlink() as link:
            link.ask(netlink.add_address(1, IPv4Address(neighbour.address), 32))
        with in_namespace(topology.outside), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
            receiver.bind((OUTSIDE, PORT))
            receiver.settimeout(TIMEOUT)
            send(box, neighbour.address, b"forged")
            send(box, box_link.address, b"honest")
            assert receiver.recv(100) == b"honest"
            topology.nft(f"flush chain inet {firewall.table(uplink.tag)} arriving\n")
            send(box, neighbour.address, b"forged")
            assert receiver.recv(100) == b"forged"


def test_a_box_has_no_ipv6(topology: Topology) -> None:
    """No address by itself; and with one given by hand, nothing gets through."""
    with topology.uplink() as uplink:
        box = topology.namespace()
        box_link = uplink.connect(box)
        with in_namespace(box), open("/proc/thread-self/net/if_inet6") as file:
            assert {line.split()[-1] for line in file} <= {"lo"}
        nearby = ((topology.machine, box_link.interface, "fe80::1"), (box, "eth0", "fe80::2"))
        for namespace, interface, address in nearby:
            with in_namespace(namespace), Netlink() as link:
                index = link.index_of(interface)
                packed = socket.inet_pton(socket.AF_INET6, address)
                link.ask(_ipv6_address(index, packed))
        with in_namespace(topology.machine), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as receiver:
            receiver.bind(("::", PORT))
            receiver.settimeout(TIMEOUT)
            _send_to_all_nodes(box, b"dropped")
            topology.nft(f"flush chain inet {firewall.table(uplink.tag)} arriving\n")
            topology.nft(f"flush chain inet {firewall.table(uplink.tag)} to_us\n")
            _send_to_all_nodes(box, b"passed")
            assert receiver.recv(100) == b"passed"


def _ipv6_address(index: int, packed: bytes) -> netlink.Request:
    nodad = 0x02
    body = bytes([socket.AF_INET6, 64, nodad, 253]) + index.to_bytes(4, sys.byteorder)
    return netlink.Request(20, 0x600, body + struct.pack("=HH", 20, 1) + packed, "add an IPv6 address")


def _send_to_all_nodes(box: int, payload: bytes) -> None:
    """Multicast needs no neighbour discovery, which the firewall drops as well."""
    with in_namespace(box), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.sendto(payload, ("ff02::1", PORT, 0, socket.if_nametoindex("eth0")))


def send_to_many_ports(box: int, count: int) -> None:
    with in_namespace(box), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for port in range(20000, 20000 + count):
            with suppress(OSError):  # an earlier datagram's port was closed
                sender.sendto(b"x", (OUTSIDE, port))


def remembered(topology: Topology) -> int:
    with in_namespace(topology.machine), open("/proc/sys/net/netfilter/nf_conntrack_count") as file:
        return int(file.read())


def test_one_box_cannot_fill_the_machines_connection_table(topology: Topology) -> None:
    with topology.uplink() as uplink:
        box, other = topology.namespace(), topology.namespace()
        uplink.connect(box)
        uplink.connect(other)
        many = firewall.MOST_FLOWS + 1000
        send_to_many_ports(box, many)
        assert firewall.MOST_FLOWS - 100 < remembered(topology) < firewall.MOST_FLOWS + 100
        assert connect(other, OUTSIDE) == "connected"
        topology.nft(f"flush chain inet {firewall.table(uplink.tag)} counted\n")
        send_to_many_ports(box, many)
        assert remembered(topology) > firewall.MOST_FLOWS + 500


def state_of(topology: Topology) -> tuple[list[str], set[str], list[str]]:
    with in_namespace(topology.machine), Netlink() as link:
        return sorted(link.links()), firewall.tags(), sorted(map(str, link.routes()))


def test_closing_leaves_nothing_behind(topology: Topology) -> None:
    before = state_of(topology)
    with topology.uplink() as uplink:
        box_link = [uplink.connect(topology.namespace()) for _ in range(3)]
        assert state_of(topology) != before
        for each in box_link:
            uplink.disconnect(each)
    assert state_of(topology) == before


def killed_with_a_box(topology: Topology, box: int) -> str:
    """The tag of an uplink whose spawner box_link `box` and was killed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kernel.setns(topology.machine, kernel.CLONE_NEWNET)
            uplink = Uplink(resolv_conf="/dev/null")
            uplink.connect(box)
            os.write(write, uplink.tag.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    with open(read) as file:
        return file.read()


def until_swept(topology: Topology, expected: set[str]) -> None:
    """The kernel takes the namespaces of the dead down when it likes, and the helper ends after that."""
    deadline = time.monotonic() + TIMEOUT
    swept: set[str] = set()
    while swept != expected and time.monotonic() < deadline:
        with in_namespace(topology.machine):
            swept |= set(sweep())
        time.sleep(0.02)
    assert swept == expected


def test_a_dead_uplink_is_swept_when_its_last_box_has_ended_and_never_a_live_one(topology: Topology) -> None:
    """Boxes that outlive a killed spawner stay connected and filtered; then only theirs is removed (lesson 10)."""
    before = state_of(topology)
    box = new_namespace()
    dead = firewall.table(killed_with_a_box(topology, box))
    with topology.uplink() as alive:
        live_box = topology.namespace()
        with in_namespace(topology.machine):
            assert sweep() == (), "one uplink has a box, the other a spawner"
        assert connect(box, OUTSIDE) == "connected"
        assert connect(box, MACHINE) == "EHOSTUNREACH"
        os.close(box)
        until_swept(topology, {dead})
        box_link = alive.connect(live_box)
        assert connect(live_box, OUTSIDE) == "connected"
        alive.disconnect(box_link)
    assert state_of(topology) == before


def test_a_dry_run_names_what_it_would_remove(topology: Topology) -> None:
    box = new_namespace()
    dead = firewall.table(killed_with_a_box(topology, box))
    os.close(box)
    deadline = time.monotonic() + TIMEOUT
    with in_namespace(topology.machine):
        while sweep(dry_run=True) != (dead,):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert firewall.tags() == {dead.removeprefix("hutch_")}
        assert sweep() == (dead,)
        assert firewall.tags() == set()


def test_links_are_bounded_and_come_back(topology: Topology) -> None:
    with in_namespace(topology.machine):
        uplink = Uplink(pool=IPv4Network("198.18.0.0/29"), resolv_conf="/dev/null")
        try:
            boxes = [new_namespace() for _ in range(3)]
            box_link = [uplink.connect(box) for box in boxes]
            with pytest.raises(NetworkUnavailable, match="all 3 links"):
                uplink.connect(topology.namespace())
            for box, link in zip(boxes, box_link, strict=True):
                os.close(box)
                uplink.disconnect(link)
            again = topology.namespace()
            deadline = time.monotonic() + TIMEOUT
            while not _connects(uplink, again) and time.monotonic() < deadline:
                time.sleep(0.02)  # the kernel takes dead namespaces down when it likes
            assert connect(again, OUTSIDE) == "connected"
        finally:
            uplink.close()


def _connects(uplink: Uplink, box: int) -> bool:
    try:
        uplink.connect(box)
    except NetworkUnavailable:
        return False
    return True


def test_a_machine_that_does_not_forward_and_has_no_tun_is_refused_with_the_remedy(topology: Topology) -> None:
    """The obstacle and the exact fix, never an obscure error, and never a sysctl of ours (lesson 34)."""
    topology.set_forwarding("0")

    def scenario() -> list[str]:
        os.unlink("/dev/net/tun")
        plan = available()
        try:
            Uplink()
        except NetworkUnavailable as error:
            return [str(plan.usable), plan.reason, plan.remedy, str(error), error.remedy]
        return ["not refused"]

    usable, reason, remedy, message, answer = run_apart(topology, scenario)
    assert usable == "False" and "ip_forward is 0" in reason and reason in message
    assert "sysctl -w net.ipv4.ip_forward=1" in remedy and remedy == answer
    with in_namespace(topology.machine), open("/proc/sys/net/ipv4/ip_forward") as file:
        assert file.read() == "0\n"


def test_a_machine_that_does_not_forward_and_leads_nowhere_is_refused(topology: Topology) -> None:
    """Pasta takes the interface of the default route: without one it would end at once."""
    topology.set_forwarding("0")

    def scenario() -> list[str]:
        before = available()
        subprocess.run(["ip", "route", "del", "default"], check=True)
        plan = available()
        return [before.how, str(plan.usable), plan.reason, plan.remedy]

    how, usable, reason, remedy = run_apart(topology, scenario)
    assert (how, usable) == ("pasta", "False")
    assert "no default route" in reason and "connect the machine" in remedy


def test_a_firewall_that_drops_forwarded_packets_is_noticed(topology: Topology) -> None:
    """As Docker's does: boxes would be cut off without a word."""
    closed = "table ip docker { chain FORWARD { type filter hook forward priority 0; policy drop; }; }\n"
    topology.nft(closed)

    def scenario() -> list[str]:
        with_pasta = available()
        os.unlink("/dev/net/tun")
        return [with_pasta.how, available().reason]

    how, reason = run_apart(topology, scenario)
    assert how == "pasta"
    assert "ip docker FORWARD" in reason


def test_loopback_comes_up(topology: Topology) -> None:
    """Network off: loopback, and it works."""
    with in_namespace(topology.namespace()), socket.create_server(("127.0.0.1", PORT)):
        bring_loopback_up()
        with Netlink() as link:
            assert "eth0" not in link.links()
        socket.create_connection(("127.0.0.1", PORT), TIMEOUT).close()
