"""Messages between keeper, spawner and the spawner's children: JSON with descriptors, one packet each.

What a box's guest is told (its environment, secrets among it) travels as an unread descriptor: the spawner's memory
is inherited by every later box, so it must never hold any of it. Standard library only.
"""

import array
import errno
import json
import os
import socket
from typing import Any

Message = dict[str, Any]

_LARGEST = 1 << 16
_MOST_DESCRIPTORS = 128
_ROOM = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, fds: list[int] | tuple[int, ...] = ()) -> None:
    """A message over 64 KB is refused (EMSGSIZE): whatever can be that large travels by descriptor."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > _LARGEST or len(fds) > _MOST_DESCRIPTORS:
        raise OSError(errno.EMSGSIZE, f"a message of {len(data)} bytes and {len(fds)} descriptors is too large")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors (close-on-exec); None at the end."""
    data, ancillary, _, _ = sock.recvmsg(_LARGEST, _ROOM, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if not data:
        return None
    return json.loads(data), list(fds)


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
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0)
    os.close(fd)
    return data
