"""The one interface every box has; apart from the other network code, which is imported only on demand."""

from os import close
from socket import AF_INET, SOCK_CLOEXEC, SOCK_DGRAM
from struct import pack

from hutch.linux.kernel import Call, make, syscall

_SIOCSIFFLAGS = 0x8914
_LOOPBACK_UP = pack("16sH22x", b"lo", 1)  # struct ifreq with IFF_UP

OPENING: Call = ("socket", int(AF_INET), int(SOCK_DGRAM | SOCK_CLOEXEC), 0)
"""Gives a socket to ask with: any will do."""


def raising(any_socket: int) -> Call:
    """Bring the loopback of the socket's namespace up (the netlink way takes twice as long)."""
    return "ioctl", any_socket, _SIOCSIFFLAGS, _LOOPBACK_UP


def lo_up() -> None:
    """For the calling namespace."""
    any_socket = syscall(*OPENING)
    try:
        make([raising(any_socket)])
    finally:
        close(any_socket)
