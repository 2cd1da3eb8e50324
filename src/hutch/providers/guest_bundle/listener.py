"""The socket of a bundled guest, which the box's own commands may see and cannot use.

The keeper comes from outside the box (its pid is 0 in here) or through a relay that the engine starts as root. A
command of the box's user is neither, so it can neither give orders nor, by holding a connection, keep a box alive that
nobody keeps. Runs inside the box: standard library only.
"""

import os
import socket
import struct
from contextlib import suppress

GUEST_DIR = "/.hutch-run"
"""A small tmpfs of the box's user, for the guest's socket and its spilled output."""
ROOT_GUEST_DIR = "/.hutch-root"
"""The same for the box's root."""
SOCKET_NAME = "guest"
NO_KEEPER = 75
"""The exit code of a guest to which no keeper has come: EX_TEMPFAIL of sysexits.h, because nothing is wrong with it."""

_SIZE = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_MAX_OPTIONS = 16 << 20
_BACKLOG = 64


def open_listener(place: str) -> socket.socket:
    path = f"{place}/{SOCKET_NAME}"
    with suppress(FileNotFoundError):  # left by an earlier life of the same container
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Open to all from its first moment: a relay is root without any capability, to the box's user it is a stranger.
    mask = os.umask(0)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    return listener


def from_outside(caller: socket.socket) -> bool:
    pid, uid, _ = _CREDENTIALS.unpack(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    # gVisor names the asker itself in place of the caller. There everybody is let in; nobody gains a right by it.
    unknown = pid == os.getpid()
    return bool(unknown or pid == 0 or uid == 0)


def framed_options(options: bytes) -> bytes:
    """Return the first message of a keeper to a guest that was just started."""
    return _SIZE.pack(len(options)) + options


def receive_options(caller: socket.socket) -> bytes:
    """Read what `framed_options` wrote. Raises ConnectionError if the keeper goes away in the middle."""
    (size,) = _SIZE.unpack(_exactly(caller, _SIZE.size))
    if size > _MAX_OPTIONS:
        raise ConnectionError(f"{size} bytes of options make no sense")
    return _exactly(caller, size)


def _exactly(caller: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = caller.recv(size - len(data))
        if not piece:
            raise ConnectionError("the keeper went away")
        data += piece
    return data
