"""Attacks over the network: a box without one reaches nobody, a box with one reaches neither host nor neighbours.

Controls share the host's network with a box, and connect to the test's own listeners only. What the uplink itself
refuses is tried in tests/providers/native/network, where a whole network is built for it.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.security.attacks import Arena, outcome, python

from hutch.errors import HutchError
from hutch.model.spec import NetworkMode

CONNECT = """
    with socket.socket(family, kind) as sock:
        sock.settimeout(5)
        tell(tried(sock.connect, address))
"""
NOWHERE = {"ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EPERM", "EACCES", "EADDRNOTAVAIL"}
"""Refused at once. "timed out" is not among them: without a network nothing may leave to be lost on the way."""
# A name server, the metadata services of clouds, private neighbours, the usual container bridge.
ELSEWHERE = ["192.0.2.1", "169.254.169.254", "100.100.100.200", "10.0.0.1", "172.17.0.1", "192.168.0.1"]


@contextlib.contextmanager
def listening(family: int, address: Any) -> Iterator[Any]:
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            pytest.skip(f"this machine has no address {address}: {error.strerror}")
        listener.listen(8)
        yield listener.getsockname()


LISTENERS = {
    "loopback": (socket.AF_INET, ("127.0.0.1", 0)),
    "loopback of IPv6": (socket.AF_INET6, ("::1", 0)),
    "every address": (socket.AF_INET, ("0.0.0.0", 0)),
    "abstract socket": (socket.AF_UNIX, b"\0hutch-test-" + os.urandom(8).hex().encode()),
}


@pytest.mark.parametrize("name", LISTENERS)
def test_the_hosts_services_are_out_of_reach(arena: Arena, name: str) -> None:
    """Threat: databases, agents and debuggers that trust every caller on the same machine."""
    family, wanted = LISTENERS[name]
    with listening(family, wanted) as address, arena.box() as box:
        facts: dict[str, Any] = {"family": int(family), "kind": int(socket.SOCK_STREAM), "address": address}
        assert outcome(box, CONNECT, **facts) in NOWHERE
        # Landlock keeps abstract sockets apart too, where the kernel has that scope.
        with arena.box("network namespace", "landlock") as control:
            assert outcome(control, CONNECT, **facts) == "ok"


def test_a_box_has_a_loopback_of_its_own(arena: Arena) -> None:
    """And nothing else: no interface, no route, no name server to ask.

    The interfaces are read from /proc: the guest limits netlink sockets by the count of their whole network namespace,
    and the control's namespace is the host's, where other programs may have any number of them (ENOBUFS).
    """
    code = """
        names = [line.partition(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
        routes = open("/proc/net/route").read().splitlines()[1:]
        with socket.create_server(("127.0.0.1", 0)) as server:
            answer = tried(socket.create_connection, server.getsockname(), 5)
        tell([names, routes, answer])
    """
    with arena.box() as box:
        assert outcome(box, code) == [["lo"], [], "ok"]
    before = {name for _, name in socket.if_nameindex()}
    with arena.box("network namespace") as control:
        names = outcome(control, code)[0]
    # Interfaces of others may come and go meanwhile.
    assert set(names) >= before & {name for _, name in socket.if_nameindex()}


TOWARDS = """
    answers = []
    for kind in kinds:
        with socket.socket(socket.AF_INET, kind) as sock:
            sock.settimeout(5)
            answers.append(tried(sock.connect, (target, 80)))
    tell(answers)
"""


@pytest.mark.parametrize("target", ELSEWHERE)
def test_no_packet_leaves(arena: Arena, target: str) -> None:
    """Threat: the metadata service of a cloud hands out the machine's credentials to every caller."""
    with arena.box() as box:
        kinds = [int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)]
        assert outcome(box, TOWARDS, target=target, kinds=kinds) == ["ENETUNREACH", "ENETUNREACH"]


def test_control_the_hosts_network_has_a_way_there(arena: Arena) -> None:
    """By UDP only: its connect looks for a route and sends nothing."""
    if not own_addresses():
        pytest.skip("needs a route: this machine has no way to any of these addresses itself")
    with arena.box("network namespace") as control:
        for target in ELSEWHERE:
            assert outcome(control, TOWARDS, target=target, kinds=[int(socket.SOCK_DGRAM)]) == ["ok"], target


def test_one_box_cannot_reach_another(arena: Arena) -> None:
    """Threat: what one user serves inside a box is not for the next box, by TCP or by an abstract name."""
    serve = """
        with socket.create_server(("0.0.0.0", 4711)) as server, socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(b"\\0hutch-neighbour")
            abstract.listen()
            tell("ok")
            time.sleep(600)
    """
    reach = """
        answers = []
        for family, address in ((socket.AF_INET, ("127.0.0.1", 4711)), (socket.AF_UNIX, b"\\0hutch-neighbour")):
            with socket.socket(family) as sock:
                sock.settimeout(5)
                answers.append(tried(sock.connect, address))
        tell(answers)
    """
    with arena.box() as served, arena.box() as other:
        job = served.start(python(serve))
        assert job.read(wait=30.0).text.strip() == '"ok"'
        assert outcome(served, reach) == ["ok", "ok"], "control: in the same box they can be reached"
        assert outcome(other, reach) == ["ECONNREFUSED", "ECONNREFUSED"]


def test_raw_sockets_are_refused(arena: Arena) -> None:
    """Threat: forged packets, and the attack surface of rarely used protocols. Without privilege and filter a box has
    them, in its own network namespace: what is left out is what refuses."""
    code = """
        tell([tried(socket.socket, *arguments) for arguments in (
            (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
            (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
            (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
            (socket.AF_PACKET, socket.SOCK_RAW, 0),
            (socket.AF_PACKET, socket.SOCK_DGRAM, 0),
        )])
    """
    with arena.box() as box:
        assert set(outcome(box, code)) <= {"EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT"}
    with arena.box("seccomp:socket") as box:
        assert set(outcome(box, code)) == {"EPERM"}, "no capability, alone"
    with arena.box("capabilities") as box:
        assert outcome(box, code)[3:] == ["EAFNOSUPPORT"] * 2, "the filter alone, of packet sockets"
    with arena.box("capabilities", "seccomp:socket") as control:
        assert set(outcome(control, code)) == {"ok"}


def test_interfaces_cannot_be_made(arena: Arena) -> None:
    """Threat: a tunnel device or a bridge of one's own. The control is a box that keeps its capabilities."""
    code = """
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            request = struct.pack("16sH14x", b"lo", 0)
            tell(tried(fcntl.ioctl, sock, 0x8914, request))  # SIOCSIFFLAGS: take the loopback down
    """
    with arena.box() as box:
        assert outcome(box, code) in ("EPERM", "EACCES")
    with arena.box("capabilities", "seccomp", "landlock") as control:
        assert outcome(control, code) == "ok"


# --- with a network ----------------------------------------------------------------------------------------------


def test_a_network_is_offered_or_refused_with_a_remedy(arena: Arena) -> None:
    """Fails closed: a machine that cannot keep a box's network apart gives it none, and says what would help."""
    with arena.opened(state="network") as hutch:
        (native,) = [each for each in hutch.providers() if each.provider == "native"]
        if NetworkMode.ON not in native.networks:
            (reason,) = [each for each in native.missing if each.what == "networks.on"]
            assert reason.reason
            assert reason.remedy
            with pytest.raises(HutchError) as caught:
                hutch.create(network="on")
            assert caught.value.remedy
            assert caught.value.code in ("unsupported", "refused")
            return
        with hutch.box(network="on") as box, hutch.box(network="on") as other:
            with listening(socket.AF_INET, ("0.0.0.0", 0)) as address:
                targets = ["127.0.0.1", *own_addresses()]
                for target in targets:
                    facts: dict[str, Any] = {"family": 2, "kind": 1, "address": (target, address[1])}
                    assert outcome(box, CONNECT, **facts) != "ok", target
            neighbour = outcome(other, "tell(socket.gethostbyname(socket.gethostname()))")
            for target in ("169.254.169.254", "10.0.0.1", "192.168.0.1", neighbour):
                assert outcome(box, CONNECT, family=2, kind=1, address=(target, 80)) != "ok", target


def own_addresses() -> list[str]:
    """The machine's own addresses: the one towards a documentation address, which sends nothing (connect of UDP)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [sock.getsockname()[0]]


TRACES = """
    def counted(name):
        return open("/proc/net/" + name).read()
    moved = [field for field in counted("dev").split("lo:")[1].split() if field != "0"]
    facts = {
        "moved": moved,
        "opened": counted("snmp").split("Tcp:")[2].split()[4],
        "sockets": counted("sockstat").split()[2],
        "names": counted("unix").splitlines()[1:],
    }
    with socket.socket(socket.AF_UNIX) as any_socket:
        # SO_NETNS_COOKIE (Linux 5.14): a new namespace may get the inode number of one that is gone.
        tell(facts | {"network": any_socket.getsockopt(socket.SOL_SOCKET, 71, 8).hex()})
"""
TALK = """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.send(b"secret")
    tell("ok")
"""
UNTOUCHED = {"moved": [], "opened": "0", "sockets": "0", "names": []}


def test_no_box_gets_the_network_of_another(arena: Arena) -> None:
    """Threat: flow labels, counters, names and half-closed connections reveal what an earlier box did. No network
    namespace serves a second box. Control: in the box that has talked, the same look sees it."""
    seen: list[dict[str, Any]] = []
    with arena.opened(state="traces") as hutch:
        for _ in range(6):
            with hutch.box() as box:
                seen.append(outcome(box, TRACES))
                assert outcome(box, TALK) == "ok"
                talked = outcome(box, TRACES)
                assert talked["moved"] and talked["opened"] != "0"
    assert all(each.items() >= UNTOUCHED.items() for each in seen), seen
    assert len({each["network"] for each in seen}) == len(seen)
