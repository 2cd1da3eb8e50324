"""Previews: a request and a large answer through the server and the guest, beside the same program on loopback."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from bench.context import Context
from bench.interleave import Candidate, blocking, interleave
from bench.measures.http import served
from bench.measures.output import rates
from bench.numbers import Number, Summary, at_least_times, at_most_times
from bench.peers.loopback import loopback

MB = 10**6
LARGE = 200 * MB
PORT = 8000
DIRECT = "the same program, directly"
LOOPBACK = "plain loopback copy"
PROGRAM = f"""
import http.server, sys
PIECE = bytes(1 << 18)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        size = {LARGE} if self.path == "/large" else 2
        self.send_response(200)
        self.send_header("content-length", str(size))
        self.end_headers()
        while size:
            size -= self.wfile.write(PIECE[:min(size, len(PIECE))])
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Visitor:
    """Asks again and again over one connection, as a browser does."""

    def __init__(self, host: str, port: int, *headers: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._head = "\r\n".join(["{}", f"Host: {host}", *headers, "", ""])
        self._buffer = bytearray(1 << 18)

    def get(self, target: str, size: int) -> None:
        """Ask, and receive the whole answer."""
        self._socket.sendall(self._head.format(f"GET {target} HTTP/1.1").encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(1 << 16)
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        left = size - len(rest)
        while left:
            left -= self._socket.recv_into(self._buffer, min(left, len(self._buffer)))

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _outside() -> Iterator[int]:
    """The program on this machine itself; yields its port."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, "0"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def previews(context: Context) -> list[Number]:
    async with served(context, "previews") as server, server.hutch.box(ports=[PORT]) as box:
        await box.start(["python3", "-c", PROGRAM, str(PORT)])
        await box.ports(wait=60)
        preview = await box.url(PORT)
        place = urlsplit(preview.url)
        with _outside() as port, loopback() as plain:
            through = Visitor(place.netloc, place.port or 80, f"Hutch-Preview: {preview.token}")
            direct = Visitor(f"127.0.0.1:{port}", port)
            try:
                count, few = context.count(500), context.count(10)
                quick = await interleave(
                    [
                        Candidate("through", blocking(lambda: through.get("/", 2)), count),
                        Candidate("direct", blocking(lambda: direct.get("/", 2)), count),
                    ]
                )
                large = await interleave(
                    [
                        Candidate("through", blocking(lambda: through.get("/large", LARGE)), few),
                        Candidate("plain", blocking(lambda: plain.download(LARGE)), few),
                    ]
                )
            finally:
                through.close()
                direct.close()
    requests, moved = quick.milliseconds, large.milliseconds
    return [
        Number(
            "preview_request", "a request through a preview", "ms", Summary.of(requests["through"]),
            {DIRECT: Summary.of(requests["direct"])}, (at_most_times(12, DIRECT),),
        ),
        Number(
            "preview_bytes", "200 MB through a preview", "MB/s", _rates(moved["through"]),
            {LOOPBACK: _rates(moved["plain"])}, (at_least_times(0.5, LOOPBACK),), more_is_better=True,
        ),
    ]  # fmt: skip


def _rates(milliseconds: list[float]) -> Summary:
    return Summary.of(rates(milliseconds, LARGE), more_is_better=True)
