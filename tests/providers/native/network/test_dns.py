"""Names for boxes: the forwarder asks for them, and lets nothing else through."""

import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.providers.native.network.name_server import NameServer, answer, framed, query
from tests.providers.native.network.topology import MACHINE, OUTSIDE, TIMEOUT, Topology, ask

from hutch.linux import netlink
from hutch.linux.netlink import Netlink
from hutch.providers.native.network import addresses
from hutch.providers.native.network.dns import Resolvers, question
from hutch.providers.native.network.namespaces import in_namespace

SERVFAIL = 2


@contextmanager
def networked(topology: Topology, resolv_conf: Path, boxes: int = 1) -> Iterator[tuple[str, list[int]]]:
    if not resolv_conf.exists():
        resolv_conf.write_text(f"nameserver {OUTSIDE}\n")
    with topology.uplink(resolv_conf=str(resolv_conf)) as uplink:
        made = [topology.namespace() for _ in range(boxes)]
        box_link = [uplink.connect(each) for each in made]
        yield box_link[0].nameserver, made


def test_a_box_gets_the_answer_under_its_own_id(topology: Topology, resolv_conf: Path) -> None:
    with NameServer(topology.outside, OUTSIDE), networked(topology, resolv_conf) as (server, (box,)):
        assert ask(box, server, query("example.test")) == answer(query("example.test"))


def test_ids_and_ports_upstream_are_not_the_boxs_to_choose(topology: Topology, resolv_conf: Path) -> None:
    with NameServer(topology.outside, OUTSIDE) as upstream:
        with networked(topology, resolv_conf) as (server, (box,)):
            for _ in range(8):
                assert ask(box, server, query("example.test", 7))
    assert len({each.identity for each in upstream.asked}) > 1
    assert len({each.peer for each in upstream.asked}) > 1


def test_forged_answers_are_ignored(topology: Topology, resolv_conf: Path) -> None:
    """A wrong id, another question, and the query itself thrown back."""
    with NameServer(topology.outside, OUTSIDE), networked(topology, resolv_conf) as (server, (box,)):
        assert ask(box, server, query("forged.test")) == answer(query("forged.test"))


def test_a_resolver_that_refuses_is_passed_over_and_a_changed_file_is_read(
    topology: Topology, resolv_conf: Path
) -> None:
    with NameServer(topology.outside, OUTSIDE) as upstream:
        resolv_conf.write_text(f"nameserver {MACHINE}\n# comment\nnameserver nonsense\n")
        with networked(topology, resolv_conf) as (server, (box,)):
            refused = ask(box, server, query("first.test"))
            assert refused is not None and refused[3] & 0xF == SERVFAIL
            resolv_conf.write_text(f"nameserver {MACHINE}\nnameserver {OUTSIDE}\n")
            assert ask(box, server, query("second.test")) == answer(query("second.test"))
        assert upstream.names() == ["second.test"]


def test_long_answers_come_over_tcp_and_queries_may_be_sent_ahead(topology: Topology, resolv_conf: Path) -> None:
    names = [f"n{number}.test" for number in range(3)]
    with NameServer(topology.outside, OUTSIDE), networked(topology, resolv_conf) as (server, (box,)):
        with in_namespace(box), socket.create_connection((server, 53), TIMEOUT) as client:
            client.sendall(b"".join(framed(query(name)) for name in names))
            expected = b"".join(framed(answer(query(name))) for name in names)
            received = b""
            while len(received) < len(expected) and (data := client.recv(4096)):
                received += data
    assert received == expected


def test_over_tcp_a_resolver_that_refuses_is_an_answer_too(topology: Topology, resolv_conf: Path) -> None:
    resolv_conf.write_text(f"nameserver {MACHINE}\n")
    with networked(topology, resolv_conf) as (server, (box,)):
        with in_namespace(box), socket.create_connection((server, 53), TIMEOUT) as client:
            client.sendall(framed(query("example.test")))
            assert client.recv(4096)[5] & 0xF == SERVFAIL


def test_a_malformed_query_is_not_forwarded(topology: Topology, resolv_conf: Path) -> None:
    """A box gets no tunnel to the resolver: updates, answers, junk and two questions stop here."""
    good = query("good.test")
    update = good[:2] + b"\x28\x00" + good[4:]
    response = good[:2] + b"\x81\x80" + good[4:]
    two = good[:4] + b"\x00\x02" + good[6:]
    with NameServer(topology.outside, OUTSIDE) as upstream:
        with networked(topology, resolv_conf) as (server, (box,)):
            with in_namespace(box), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                for packet in (update, response, two, b"", b"junk", good[:-3], os.urandom(600)):
                    client.sendto(packet, (server, 53))
            with in_namespace(box), socket.create_connection((server, 53), TIMEOUT) as stream:
                stream.sendall(framed(update))
                assert stream.recv(100) == b"", "closed"
            assert ask(box, server, good) == answer(good)
    assert upstream.names() == ["good.test"]


def test_a_stranger_is_not_answered(topology: Topology, resolv_conf: Path) -> None:
    """The forwarder is for boxes, not for the neighbourhood of the machine."""
    with NameServer(topology.outside, OUTSIDE) as upstream:
        with networked(topology, resolv_conf) as (server, (box,)):
            with in_namespace(topology.outside), Netlink() as link:
                link.ask(netlink.route_via(addresses.POOL, IPv4Address(MACHINE)))
            with in_namespace(topology.outside), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.sendto(query("stranger.test"), (server, 53))
            assert ask(box, server, query("box.test"))
    assert upstream.names() == ["box.test"]


def test_a_box_that_floods_hurts_itself_only(topology: Topology, resolv_conf: Path) -> None:
    with NameServer(topology.outside, OUTSIDE) as upstream:
        with networked(topology, resolv_conf, boxes=2) as (server, (flooding, quiet)):
            with in_namespace(flooding), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                for number in range(100):
                    client.sendto(query(f"silent{number}.test", number), (server, 53))
                assert ask(quiet, server, query("quiet.test")) == answer(query("quiet.test"))
                failed: set[bytes] = set()
                while len(failed) < 52 and select.select([client], [], [], TIMEOUT)[0]:
                    packet = client.recv(4096)
                    assert packet[3] & 0xF == SERVFAIL
                    failed.add(packet[:2])
    assert len(failed) == 52, "one box may have 48 questions open; it is told of the others at once"
    assert len(upstream.asked) < 100


@given(st.binary(max_size=600))
def test_no_packet_makes_the_parser_fail(packet: bytes) -> None:
    asked = question(packet)
    assert asked is None or asked in packet


@given(st.binary(max_size=80))
def test_no_tail_makes_the_parser_fail(tail: bytes) -> None:
    packet = struct.pack("!6H", 1, 0x0100, 1, 0, 0, 0) + tail
    asked = question(packet)
    assert asked is None or tail.startswith(asked)


def test_a_machine_without_resolvers_asks_itself(tmp_path: Path) -> None:
    """resolv.conf(5): no name server means the local one."""
    expected = [(socket.AF_INET, ("127.0.0.1", 53))]
    assert Resolvers(str(tmp_path / "missing")).current() == expected
    (tmp_path / "empty").write_text("search example.test\n")
    assert Resolvers(str(tmp_path / "empty")).current() == expected


def test_a_file_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text("nameserver 192.0.2.1\n")
    resolvers = Resolvers(str(path))
    known = resolvers.current()
    path.unlink()
    assert resolvers.current() == known == [(socket.AF_INET, ("192.0.2.1", 53))]


def test_ipv6_resolvers_are_used(tmp_path: Path) -> None:
    (tmp_path / "six").write_text("nameserver 2001:db8::53\n")
    assert Resolvers(str(tmp_path / "six")).current() == [(socket.AF_INET6, ("2001:db8::53", 53))]
