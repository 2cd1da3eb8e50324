"""The one interface every box has; apart from the other network code, which is imported only on demand."""

from fcntl import ioctl
from socket import AF_INET, SOCK_DGRAM, socket
from struct import pack

_SIOCSIFFLAGS = 0x8914
_LOOPBACK_UP = bytearray(pack("16sH22x", b"lo", 1))  # struct ifreq with IFF_UP


def lo_up() -> None:
    """Bring the loopback of the calling namespace up (the netlink way takes twice as long)."""
    any_socket = socket(AF_INET, SOCK_DGRAM)
    ioctl(any_socket, _SIOCSIFFLAGS, _LOOPBACK_UP)
    any_socket.close()
