"""Network namespaces that are lent to one box after the other."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hutch.providers.native import kernel
from hutch.providers.native.network import bare
from hutch.providers.native.network.bare import BareNetworks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes them")


@pytest.fixture
def networks() -> Iterator[BareNetworks]:
    found = BareNetworks()
    yield found
    found.drop_spare()
    os.close(found.home)


def inside(network: int, work: Callable[[], object]) -> None:
    """Do it in a process that is in the network, and wait for its end."""
    pid = os.fork()
    if pid == 0:
        try:
            kernel.setns(network, kernel.CLONE_NEWNET)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def lent_to(networks: BareNetworks, pid: int, work: Callable[[], object]) -> int:
    """The number of the namespace that a box had which did this."""
    network = networks.take()
    number = os.fstat(network.fd).st_ino
    inside(network.fd, work)
    networks.lend(network, pid)
    networks.return_from(pid)
    return number


def test_one_that_nobody_used_serves_the_next(networks: BareNetworks) -> None:
    first = lent_to(networks, 1, lambda: None)
    assert lent_to(networks, 2, lambda: socket.socketpair()) == first, "sockets that are closed leave no trace"
    assert lent_to(networks, 3, lambda: None) == first


def _datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", ("127.0.0.1", 9))


def _datagram_of_ipv6() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", ("::1", 9))


def _connection_refused() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        assert sock.connect_ex(("127.0.0.1", 9))


def _no_route() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert sock.connect_ex(("192.0.2.1", 9))


@pytest.mark.parametrize("work", [_datagram, _datagram_of_ipv6, _connection_refused, _no_route])
def test_one_that_was_used_is_let_go(networks: BareNetworks, work: Callable[[], object]) -> None:
    lent_to(networks, 1, work)
    assert not networks._spare


def test_a_socket_that_is_left_is_a_trace(networks: BareNetworks) -> None:
    network = networks.take()
    left: list[socket.socket] = []
    kernel.setns(network.fd, kernel.CLONE_NEWNET)
    try:
        left.append(socket.socket(socket.AF_UNIX))
    finally:
        kernel.setns(networks.home, kernel.CLONE_NEWNET)
    networks.lend(network, 1)
    networks.return_from(1)
    left.pop().close()
    assert not networks._spare


def test_few_are_kept_and_few_are_remembered(networks: BareNetworks) -> None:
    before = len(os.listdir("/proc/self/fd"))
    boxes = bare._REMEMBERED + 3
    for pid in range(boxes):
        networks.lend(networks.take(), pid)
    assert len(os.listdir("/proc/self/fd")) == before + 5 * bare._REMEMBERED
    for pid in range(boxes):
        networks.return_from(pid)
    assert len(networks._spare) == bare._SPARE
    networks.drop_spare()
    assert len(os.listdir("/proc/self/fd")) == before


def test_whoever_makes_one_is_at_home_again(networks: BareNetworks) -> None:
    home = os.stat("/proc/self/ns/net").st_ino
    networks.lend(networks.take(), 1)
    networks.return_from(1)
    assert os.stat("/proc/self/ns/net").st_ino == home == os.fstat(networks.home).st_ino


def test_one_that_cannot_be_made_leaves_nothing(networks: BareNetworks) -> None:
    """Here: too many open files, after the first few."""
    home, before = os.stat("/proc/self/ns/net").st_ino, len(os.listdir("/proc/self/fd"))
    free = [os.dup(networks.home) for _ in range(3)]  # the lowest there are
    for fd in free:
        os.close(fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[2], hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            networks.take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.stat("/proc/self/ns/net").st_ino == home


def test_root_without_the_right_to_a_loopback_has_boxes_all_the_same(tmp_path: Path) -> None:
    """As root of a container is, that was given little more than CAP_SYS_ADMIN."""
    drop = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    code = "from socket import *; s = create_server(('127.0.0.1', 0)); create_connection(s.getsockname()); print('up')"
    hutch = [str(Path(sys.executable).with_name("hutch")), "run", "--", "python3", "-c", code]
    places = {"HUTCH_STATE_DIR": str(tmp_path / "s"), "HUTCH_RUN_DIR": str(tmp_path / "r")}
    done = subprocess.run([*drop, *hutch], capture_output=True, text=True, env={**os.environ, **places})
    assert (done.stdout, done.returncode) == ("up\n", 0), done.stderr
