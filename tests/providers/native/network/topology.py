"""A test topology of network namespaces: a machine, the network outside of it, and boxes. None is the real machine."""

import errno
import json
import os
import select
import signal
import socket
import subprocess
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from hutch.linux import kernel, netlink
from hutch.linux.netlink import Netlink
from hutch.providers.native.network import addresses
from hutch.providers.native.network.links import BoxLink
from hutch.providers.native.network.namespaces import bring_loopback_up, in_namespace, unshare_mapped
from hutch.providers.native.network.uplink import Uplink

PORT = 8080
OUTSIDE = "203.0.113.1"
MACHINE = "203.0.113.2"
PRIVATE = ("10.9.9.9", "172.20.0.1", "192.168.77.7", "100.64.1.1", "169.254.169.254")
TIMEOUT = 20.0


def new_namespace() -> int:
    """A descriptor of a fresh network namespace, made without moving the caller."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.unshare(kernel.CLONE_NEWNET)
        bring_loopback_up()
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        kernel.setns(home, kernel.CLONE_NEWNET)
        os.close(home)


def connect(namespace: int, address: str, port: int = PORT) -> str:
    """From inside `namespace`: "connected", or the name of the errno."""
    with in_namespace(namespace), socket.socket() as client:
        client.settimeout(TIMEOUT)
        try:
            client.connect((address, port))
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
    return "connected"


def ask(namespace: int, server: str, packet: bytes, seconds: float = TIMEOUT) -> bytes | None:
    """Send a datagram to port 53 from inside `namespace`; the answer, or None if none came."""
    with in_namespace(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((server, 53))
        client.send(packet)
        return client.recv(65536) if select.select([client], [], [], seconds)[0] else None


class Topology:
    """Two namespaces joined by one cable: the machine (forwarding, with services of its own) and outside."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.machine = self.namespace()
        self.outside = self.namespace()
        with in_namespace(self.machine), Netlink() as link:
            link.ask(netlink.add_veth("cable", 1, "cable", self.outside))
            index = link.index_of("cable")
            link.ask(netlink.add_address(index, IPv4Address(MACHINE), 24), netlink.set_up(index))
        with in_namespace(self.outside), Netlink() as link:
            index = link.index_of("cable")
            link.ask(netlink.add_address(index, IPv4Address(OUTSIDE), 24), netlink.set_up(index))
            link.ask(*(netlink.add_address(1, IPv4Address(each), 32) for each in PRIVATE))
        with in_namespace(self.machine), Netlink() as link:
            link.ask(netlink.route_via(IPv4Network("0.0.0.0/0"), IPv4Address(OUTSIDE)))
        self.service = self.listen(self.machine)
        self.server = self.listen(self.outside)

    def namespace(self) -> int:
        descriptor = new_namespace()
        self._stack.callback(os.close, descriptor)
        return descriptor

    def listen(self, namespace: int, address: str = "0.0.0.0") -> socket.socket:
        """A listening socket; the kernel completes connections to it by itself."""
        with in_namespace(namespace):
            return self._stack.enter_context(socket.create_server((address, PORT), backlog=64))

    def set_forwarding(self, value: str) -> None:
        with in_namespace(self.machine), open("/proc/sys/net/ipv4/ip_forward", "w") as file:
            file.write(value)

    def nft(self, script: str) -> str:
        with in_namespace(self.machine):
            done = subprocess.run(["nft", "-f", "-"], input=script, capture_output=True, text=True, check=True)
        return done.stdout

    @contextmanager
    def uplink(self, *, resolv_conf: str = "/dev/null") -> Iterator[Uplink]:
        with in_namespace(self.machine):
            uplink = Uplink(resolv_conf=resolv_conf)
            try:
                yield uplink
            finally:
                uplink.close()


def lift_routes(box: int, box_link: BoxLink) -> None:
    """Take from a box the routes that say no, so that the firewall has to."""
    with in_namespace(box), Netlink() as link:
        for each in addresses.refused(addresses.POOL, ()):
            link.ask(netlink.route_via(each, IPv4Address(box_link.gateway)))


def run_apart(topology: Topology, scenario: Callable[[], object], *, uid: int = 0) -> Any:
    """Run `scenario` in a child process on the topology's machine as `uid`; its result (JSON) is ours.

    The child has a /dev/net/tun that everybody may open, in a mount namespace of its own.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kernel.setns(topology.machine, kernel.CLONE_NEWNET)
            open_tun_to_everybody()
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            answer: object = {"result": scenario()}
        except BaseException:  # the process boundary: the parent fails with it
            answer = {"failed": traceback.format_exc()}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        reply = json.load(file)
    os.waitpid(pid, 0)
    assert "failed" not in reply, reply["failed"]
    return reply["result"]


def open_tun_to_everybody() -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/dev/net", "tmpfs", 0, "mode=755")
    os.mknod("/dev/net/tun", 0o20666, os.makedev(10, 200))
    os.chmod("/dev/net/tun", 0o666)


def box_namespace() -> int:
    """A network namespace that belongs to a user namespace of its own, below the caller's, as a box's does."""
    ready, reply = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        unshare_mapped(os.geteuid(), os.getegid())
        os.write(reply, b"1")
        signal.pause()
    os.read(ready, 1)
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(reply)
    return descriptor
