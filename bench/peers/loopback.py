"""A plain copy over loopback TCP between two processes, hashed by the receiver: the floor for files over HTTP."""

import contextlib
import hashlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_REQUEST = struct.Struct("<cQ")
_UP, _DOWN = b"U", b"D"
_PIECE = 1 << 18
_TREE = Path(__file__).parents[2]


class Loopback:
    """A connection to the other process."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def upload(self, data: bytes) -> float:
        """Seconds until the other process has received and hashed everything."""
        start = time.perf_counter()
        self._sock.sendall(_REQUEST.pack(_UP, len(data)))
        self._sock.sendall(data)
        digest = _exactly(self._sock, 32)
        taken = time.perf_counter() - start
        assert digest == hashlib.sha256(data).digest()
        return taken

    def download(self, size: int) -> float:
        """Seconds until everything was received and hashed here."""
        start = time.perf_counter()
        self._sock.sendall(_REQUEST.pack(_DOWN, size))
        _hash(self._sock, size)
        return time.perf_counter() - start


@contextlib.contextmanager
def loopback() -> Iterator[Loopback]:
    server = subprocess.Popen([sys.executable, "-m", __name__], cwd=_TREE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as sock:
            yield Loopback(sock)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def _serve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        sock, _ = listener.accept()
    zeros = bytes(_PIECE)
    with sock:
        while head := sock.recv(_REQUEST.size, socket.MSG_WAITALL):
            kind, size = _REQUEST.unpack(head)
            if kind == _UP:
                sock.sendall(_hash(sock, size))
            while kind == _DOWN and size:
                size -= sock.send(zeros[: min(size, _PIECE)])


def _hash(sock: socket.socket, size: int) -> bytes:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE))
    while size:
        received = sock.recv_into(buffer[: min(size, _PIECE)])
        if not received:
            raise ConnectionError("the other process has ended")
        digest.update(buffer[:received])
        size -= received
    return digest.digest()


def _exactly(sock: socket.socket, size: int) -> bytes:
    received = sock.recv(size, socket.MSG_WAITALL)
    if len(received) < size:
        raise ConnectionError("the other process has ended")
    return received


if __name__ == "__main__":
    _serve()
