"""Carries bytes between its standard streams and a guest's socket, for a keeper that is not on the engine's host.

An engine starts it as root, without any capability, for each connection; it ends with the connection, whichever end
breaks it. Runs inside the box: standard library only.
"""

import _thread
import os
import socket
import sys
import time
from binascii import b2a_base64

from hutch.providers.guest_bundle.listener import SOCKET_NAME

TIMEOUT = 20.0
PIECE = 1 << 18
_ABSENT = 3
"""Exit code: nobody listens at the guest."""


def main() -> None:
    """`place` is the directory of the socket; `wait` says that its guest has only just been started, `text` that the
    engine carries output as text: then it is written in lines of base64."""
    place, words = sys.argv[1], sys.argv[2:]
    try:
        _carry(_connected(f"{place}/{SOCKET_NAME}", TIMEOUT if "wait" in words else 0.0), "text" in words)
        os._exit(0)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        print(f"hutch: no guest at {place}: {error}", file=sys.stderr)
        sys.exit(_ABSENT)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # one end has gone, and our exit closes the other


def _connected(path: str, patience: float) -> socket.socket:
    deadline = time.monotonic() + patience
    while True:
        guest = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            guest.connect(path)
            return guest
        except (FileNotFoundError, ConnectionRefusedError):
            guest.close()
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.01)


def _carry(guest: socket.socket, as_text: bool) -> None:
    """Each direction for itself, with nothing held: a reader that does not read slows down only who writes to it."""
    _thread.start_new_thread(_inwards, (guest,))
    while data := guest.recv(PIECE):
        _write_all(1, b2a_base64(data) if as_text else data)


def _inwards(guest: socket.socket) -> None:
    try:
        while data := os.read(0, PIECE):
            guest.sendall(data)
    finally:
        os._exit(0)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
