"""The one interface every box has; apart from the other network code, which is imported only on demand."""

import fcntl
import socket
import struct

_SIOCSIFFLAGS = 0x8914
_UP = 1


def lo_up() -> None:
    """Bring the loopback of the calling namespace up (the netlink way takes twice as long)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _UP))
