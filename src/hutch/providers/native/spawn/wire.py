"""Messages between keeper, spawner and the spawner's children: JSON with descriptors, one packet each.

What a box's guest is told (its environment, secrets among it) travels as an unread descriptor: the spawner's memory
is inherited by every later box, so it must never hold any of it. Standard library only.
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

_LARGEST = 1 << 16
_MOST_DESCRIPTORS = 253
_PIECE = 1 << 14
"""SCM_MAX_FD of the kernel. Each layer of an image is one."""
_ROOM = CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize)


def pair() -> tuple[socket, socket]:
    return socketpair(AF_UNIX, SOCK_SEQPACKET)


def send(sock: SocketType, message: Message, fds: list[int] | tuple[int, ...] = ()) -> None:
    """A message over 64 KB is refused (EMSGSIZE): whatever can be that large travels by descriptor."""
    data = encode(message)
    if len(data) > _LARGEST or len(fds) > _MOST_DESCRIPTORS:
        raise OSError(errno.EMSGSIZE, f"a message of {len(data)} bytes and {len(fds)} descriptors is too large")
    ancillary = [(SOL_SOCKET, SCM_RIGHTS, array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


def receive(sock: SocketType) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors (close-on-exec); None at the end."""
    data, ancillary, _, _ = sock.recvmsg(_LARGEST, _ROOM, MSG_CMSG_CLOEXEC)
    fds = array("i")
    for level, kind, payload in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if not data:
        return None
    return decode(data), fds.tolist()


def told(step: str, error: BaseException) -> Message:
    """An error as an answer: the step that failed, what the kernel or Python said, and the errno's name."""
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    text = str(error) if number else f"{type(error).__name__}: {error}"
    return {"step": step, "error": text, "errno": errno.errorcode.get(number, "")}


def sealed(data: bytes) -> int:
    """A descriptor from which `unsealed` reads `data`."""
    fd = os.memfd_create("hutch", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd


def unsealed(fd: int) -> bytes:
    """All of it, whatever the position; the descriptor is closed."""
    data = piece = pread(fd, _PIECE, 0)
    while len(piece) == _PIECE:
        piece = pread(fd, _PIECE, len(data))
        data += piece
    close(fd)
    return data
