"""What a worker for layers says to the guests of its box, and hears from them. Standard library only."""

import array
import errno
import os
import socket

from hutch.guest.protocol import HEADER, HEADER_SIZE, MAX_CONTROL, decode

_TIMEOUT = 20.0


class Answer:
    """One frame from a guest, bounded, with the descriptors that came along."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.descriptors: list[int] = []
        length = HEADER.unpack(self._read(HEADER_SIZE))[0]
        if length > MAX_CONTROL >> 8:
            raise OSError(errno.EPROTO, "the guest's answer is too long")
        self.fields = decode(self._read(length))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece, ancillary, _, _ = self._sock.recvmsg(size - len(data), 256, socket.MSG_CMSG_CLOEXEC)
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds = array.array("i")
                    fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                    self.descriptors += fds.tolist()
            if not piece:
                raise ConnectionResetError(errno.ECONNRESET, "the guest has ended")
            data += piece
        return data


def connect(directory: str, name: str) -> socket.socket:
    """Connect to a guest. The directory's descriptor keeps the path short enough for a Unix socket."""
    above = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(_TIMEOUT)
        sock.connect(f"/proc/self/fd/{above}/{name}")
        return sock
    finally:
        os.close(above)
