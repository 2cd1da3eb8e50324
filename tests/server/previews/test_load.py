"""Many visitors and large bodies: the server's memory stays flat, and a box has at most so many connections."""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import proofs
from tests.server.previews.preview_box import Preview, previewed
from tests.server.serving import TIMEOUT_SECONDS, Server, serving

MB = 1 << 20
VISITORS = 200
FLAT_MB = 64
"""Growth of the server that the windows of its connections explain, and Python's own buffers."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own, because its memory is measured."""
    with serving() as started:
        yield started


def _resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


class Watch:
    """Looks at a process's memory while something runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.before = self.most = _resident_mb(pid)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self.most = max(self.most, _resident_mb(self._pid))

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


async def _visit(preview: Preview, target: str) -> bytes:
    reader, writer = await asyncio.open_connection(*preview.address)
    head = (
        f"GET {target} HTTP/1.1\r\nHost: {preview.host}\r\nHutch-Preview: {preview.token}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    return answer


async def _visit_all(preview: Preview, target: str) -> list[bytes]:
    async with asyncio.timeout(4 * TIMEOUT_SECONDS):
        return await asyncio.gather(*(_visit(preview, target) for _ in range(VISITORS)))


def _move(preview: Preview, size: int) -> float:
    """Send and receive so many bytes through the preview; return the seconds that receiving took."""
    pieces = (bytes(MB) for _ in range(size // MB))
    assert preview.visit("POST", "/count", pieces, Content_Length=str(size)).body == str(size).encode()
    begun = time.monotonic()
    received = 0
    with preview.open("GET", f"/bytes?n={size}", Hutch_Preview=preview.token) as stream:
        while data := stream.read1(MB):
            received += len(data)
    assert received == size
    return time.monotonic() - begun


def _hold(server: Server, size: int) -> dict[str, float]:
    """Two hundred visitors at once, then a large body each way, with flat memory."""
    owner = server.tcp(server.key("user", "load"))
    with previewed(owner, pids=300) as preview:
        preview.visit("GET", "/")
        with Watch(server.pid) as watch:
            answers = asyncio.run(_visit_all(preview, "/wait?s=1"))
            assert all(answer.endswith(b"waited") for answer in answers)
            seconds = _move(preview, size)
        assert watch.most - watch.before < FLAT_MB, (watch.before, watch.most)
    return {
        "visitors": VISITORS,
        "mb": size / MB,
        "mb_per_sec": size / MB / seconds,
        "grown_mb": watch.most - watch.before,
    }


def test_many_visitors_and_a_large_body_cost_no_memory(server: Server) -> None:
    _hold(server, 64 * MB)


@pytest.mark.proof
def test_two_hundred_visitors_and_a_gigabyte(server: Server) -> None:
    proofs.write("previews", **_hold(server, 1024 * MB))


def test_a_visitor_who_does_not_read_makes_the_program_wait(server: Server) -> None:
    """Nothing of an unread answer is kept but the windows on the way; others keep working."""
    owner = server.tcp(server.key("user", "load"))
    with previewed(owner) as preview:
        preview.visit("GET", "/")
        before = _resident_mb(server.pid)
        lazy = []
        for _ in range(20):
            connection = socket.create_connection(preview.address, TIMEOUT_SECONDS)
            head = f"GET /bytes?n={500 * MB} HTTP/1.1\r\nHost: {preview.host}\r\nHutch-Preview: {preview.token}\r\n\r\n"
            connection.sendall(head.encode())
            lazy.append(connection)
        for _ in range(10):
            assert preview.visit("GET", "/").status == 200
            time.sleep(0.1)
        assert _resident_mb(server.pid) - before < FLAT_MB
        for connection in lazy:
            connection.close()


def test_a_box_has_so_many_connections_at_most() -> None:
    with serving(HUTCH_SERVER_MAX_CONNECTIONS_PER_BOX="4") as server:
        owner = server.tcp(server.key("user", "load"))
        with previewed(owner) as preview:
            held = [preview.open("GET", "/sse", Hutch_Preview=preview.token) for _ in range(4)]
            for stream in held:
                stream.read1(100)
            refused = preview.visit("GET", "/")
            assert (refused.status, refused.json()["error"]["code"]) == (429, "quota")
            for stream in held:
                stream.close()
            end = time.monotonic() + TIMEOUT_SECONDS
            while preview.visit("GET", "/").status != 200:
                assert time.monotonic() < end
