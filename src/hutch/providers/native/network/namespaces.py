"""Network namespaces: making one, entering one, bringing its loopback interface up, and the names of uplinks in one.

Every keeper and every spawner imports this, so it imports next to nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EADDRINUSE, ECONNREFUSED
from socket import AF_INET, AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket
from struct import pack
from typing import NamedTuple

from hutch.linux import kernel
from hutch.linux.kernel import Call

_OWN = "/proc/thread-self/ns/net"
_SIOCSIFFLAGS = 0x8914
_LOOPBACK_UP = pack("16sH22x", b"lo", 1)  # struct ifreq with IFF_UP

OPEN_SOCKET: Call = ("socket", int(AF_INET), int(SOCK_DGRAM | SOCK_CLOEXEC), 0)
"""Opens a socket for `loopback_up_call`; any kind will do."""


def loopback_up_call(any_socket: int) -> Call:
    """Bring the loopback of the socket's namespace up. The netlink way takes twice as long."""
    return "ioctl", any_socket, _SIOCSIFFLAGS, _LOOPBACK_UP


def bring_loopback_up() -> None:
    """Bring the loopback of the calling process's namespace up."""
    any_socket = kernel.syscall(*OPEN_SOCKET)
    try:
        kernel.run_calls([loopback_up_call(any_socket)])
    finally:
        os.close(any_socket)


class NetworkNamespace(NamedTuple):
    """Descriptors of a network namespace and of the user namespace that owns it, with which a process enters both."""

    user: int
    network: int

    @classmethod
    def of(cls, pid: int) -> "NetworkNamespace":
        """The namespaces of process `pid`."""
        return cls(*(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("user", "net")))

    def enter(self) -> None:
        kernel.setns(self.user, kernel.CLONE_NEWUSER)
        kernel.setns(self.network, kernel.CLONE_NEWNET)


@contextmanager
def in_namespace(netns: int) -> Iterator[None]:
    """Run the block in the network namespace `netns`, a descriptor. For single-threaded processes only."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.setns(netns, kernel.CLONE_NEWNET)
        try:
            yield
        finally:
            kernel.setns(home, kernel.CLONE_NEWNET)
    finally:
        os.close(home)


def new_namespace() -> int:
    """Make a network namespace like a box's, and return its descriptor. For single-threaded processes only."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.unshare(kernel.CLONE_NEWNET)
        try:
            bring_loopback_up()
            return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            kernel.setns(home, kernel.CLONE_NEWNET)
    finally:
        os.close(home)


def namespace_id() -> int:
    """The inode number of this process's network namespace, which tells living namespaces apart."""
    return os.stat(_OWN).st_ino


def unshare_mapped(uid: int, gid: int) -> None:
    """Enter new user and network namespaces, with the ids unchanged. For single-threaded processes only.

    A veth pair can join two network namespaces only from a process with CAP_NET_ADMIN over both. Without root, that is
    a process in a user namespace that is the parent of every box's. So the spawner of networked boxes enters one
    before its first box, and stays: it would have no power over boxes made from outside.

    The identity map keeps every path, file owner and box map as it was outside. What changes is that this process now
    holds every capability over the two namespaces, until it calls execve(2).
    """
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    bring_loopback_up()


# --- names of uplinks -------------------------------------------------------------------------------------------

# An uplink is alive while a process holds its name, an abstract Unix socket, which the kernel frees with its holder.
# These names belong to a network namespace, as links and tables do, so a tag that was found there is looked up in the
# right namespace. Anybody on the machine could take a name, and would gain only that the links and the table of a dead
# uplink stay: they filter, and lead nowhere.


def uplink_is_alive(tag: str) -> bool:
    """Whether a process holds the name of the uplink `tag` in our network namespace (this takes some 10 µs).

    Only a refused connection means no. Any other error, such as a lack of descriptors, proves nothing.
    """
    try:
        with _uplink_socket() as asking:
            return asking.connect_ex(_uplink_name(tag)) != ECONNREFUSED
    except OSError:
        return True


def hold_uplink_name(tag: str) -> socket | None:
    """Hold the name of the uplink `tag` in our network namespace; None if another process does."""
    name = _uplink_socket()
    try:
        name.bind(_uplink_name(tag))
    except OSError as error:
        name.close()
        if error.errno == EADDRINUSE:
            return None
        raise
    return name


def _uplink_socket() -> socket:
    return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC)


def _uplink_name(tag: str) -> str:
    return f"\0hutch-uplink-{tag}"
