"""Messages between keeper, spawner and the spawner's children: JSON with descriptors, one packet each.

The options of a guest, with its environment and secrets, travel as a descriptor that the spawner never reads: every
later box inherits the spawner's memory, which must not hold any of them. Standard library only.
"""

import errno
import os
from array import array
from os import close, pread
from socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    SCM_RIGHTS,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    SocketType,
    socket,
    socketpair,
)
from typing import Any

from hutch.guest.protocol import decode, encode

Message = dict[str, Any]

_MAX_MESSAGE = 1 << 16
_MAX_DESCRIPTORS = 253
"""SCM_MAX_FD of the kernel. Each layer of an image is one."""
_READ_SIZE = 1 << 14
_ANCILLARY_SIZE = CMSG_SPACE(_MAX_DESCRIPTORS * array("i").itemsize)


def pair() -> tuple[socket, socket]:
    return socketpair(AF_UNIX, SOCK_SEQPACKET)


def send(sock: SocketType, message: Message, fds: list[int] | tuple[int, ...] = ()) -> None:
    """Send a message. One over 64 KB is refused (EMSGSIZE): large content travels as a descriptor."""
    data = encode(message)
    if len(data) > _MAX_MESSAGE or len(fds) > _MAX_DESCRIPTORS:
        raise OSError(errno.EMSGSIZE, f"a message of {len(data)} bytes and {len(fds)} descriptors is too large")
    ancillary = [(SOL_SOCKET, SCM_RIGHTS, array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


def receive(sock: SocketType) -> tuple[Message, list[int]] | None:
    """Receive the next message and its descriptors (close-on-exec); None at end of file."""
    data, ancillary, _, _ = sock.recvmsg(_MAX_MESSAGE, _ANCILLARY_SIZE, MSG_CMSG_CLOEXEC)
    fds = array("i")
    for level, kind, payload in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if not data:
        return None
    return decode(data), fds.tolist()


def error_message(step: str, error: BaseException) -> Message:
    """The answer for an error: the step that failed, the text of the error, and the name of its errno."""
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    text = str(error) if number else f"{type(error).__name__}: {error}"
    return {"step": step, "error": text, "errno": errno.errorcode.get(number, "")}


def write_memfd(data: bytes) -> int:
    """Write `data` to anonymous memory, and return the descriptor."""
    fd = os.memfd_create("hutch", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd


def read_memfd(fd: int) -> bytes:
    """Read all of it, whatever the position, and close the descriptor."""
    data = piece = pread(fd, _READ_SIZE, 0)
    while len(piece) == _READ_SIZE:
        piece = pread(fd, _READ_SIZE, len(data))
        data += piece
    close(fd)
    return data
