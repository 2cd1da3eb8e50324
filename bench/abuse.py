"""Kinds of load with which one key could harm the others: unread answers, unfinished requests, many connections.

Each is small by itself. `tests/server/test_abuse.py` runs them beside a second owner, and `make bench` measures what
the second owner notices. A load that succeeds stays harmless: sizes, counts and times are bounded, and a box's own
limits hold.
"""

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

MB = 1 << 20
LISTED = 20_000
LARGE_FILE = 64 * MB
_SETUP = f"""
mkdir many && cd many && seq {LISTED} | xargs touch
cd .. && truncate -s 100G hollow && truncate -s {LARGE_FILE} large
yes 'a line to be found, as long as lines of text are' | head -n 50000 >text
"""


@dataclass(frozen=True)
class Target:
    """A server, a key, and the prepared box of that key."""

    host: str
    port: int
    key: str
    box: str
    """The box's URL path."""

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, body: object = None, *, head: str = "", known: bool = True
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Send a request, and leave its answer to the caller."""
        # A small buffer: a client that does not read must not have the kernel read for it.
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=4096)
        data = json.dumps(body).encode() if body is not None else b""
        lines = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{head}"
        if known:
            lines += f"Authorization: Bearer {self.key}\r\n"
        try:
            writer.write(lines.encode() + b"\r\n" + data)
            await writer.drain()
            yield reader, writer
        finally:
            writer.transport.abort()

    async def answer(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The JSON of a whole answer, for what a load needs before it begins."""
        async with self.request(method, path, body, head="Connection: close\r\n") as (reader, _):
            received = await reader.read()
        head, _, content = received.partition(b"\r\n\r\n")
        if b" 2" not in head[:12]:
            raise RuntimeError(f"{method} {path}: {received[:500]!r}")
        found: dict[str, Any] = json.loads(content or b"{}")
        return found


Load = Callable[[Target, int, float], Awaitable[None]]
"""Takes the target, the number of clients at once, and the seconds that the load lasts."""


async def prepare(target: Target) -> None:
    """Make the files in the box that the loads ask for."""
    made = await target.answer("POST", f"{target.box}/exec", {"command": _SETUP})
    if made["exit_code"] != 0:
        raise RuntimeError(f"the box could not be prepared: {made['stderr'][-500:]}")


async def _hold_unread(target: Target, count: int, seconds: float, *request: object, head: str = "") -> None:
    """Ask for `count` answers and read none of them."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(target.request(*request, head=head))  # type: ignore[arg-type]
        await asyncio.sleep(seconds)


async def unread_results(target: Target, count: int, seconds: float) -> None:
    """Zeros: each byte of the output is six bytes of JSON."""
    command = {"command": f"head -c {24 * MB} /dev/zero", "keep_output": 64 * MB}
    await _hold_unread(target, count, seconds, "POST", f"{target.box}/exec", command)


async def unread_small_results(target: Target, count: int, seconds: float) -> None:
    """Many results, each of which is within every bound."""
    command = {"command": "head -c 1000000 /dev/zero"}
    await _hold_unread(target, 2 * count, seconds, "POST", f"{target.box}/exec", command)


async def unread_files(target: Target, count: int, seconds: float) -> None:
    await _hold_unread(target, 4 * count, seconds, "GET", f"{target.box}/files/content?path=large")


async def unread_lists(target: Target, count: int, seconds: float) -> None:
    await _hold_unread(target, count, seconds, "GET", f"{target.box}/files?path=many")


async def unread_searches(target: Target, count: int, seconds: float) -> None:
    body = {"pattern": "line", "root": "text", "limit": 1_000_000}
    await _hold_unread(target, count, seconds, "POST", f"{target.box}/files/grep", body)


async def unread_follows(target: Target, count: int, seconds: float) -> None:
    """Clients follow a job that writes much, and do not read what they get."""
    started = await target.answer("POST", f"{target.box}/jobs", {"command": "head -c 100000000 /dev/zero; sleep 30"})
    job = started["id"]
    await _hold_unread(target, 2 * count, seconds, "GET", f"{target.box}/jobs/{job}/follow")
    await target.answer("POST", f"{target.box}/jobs/{job}/signal", {"number": 9})


async def unread_terminals(target: Target, count: int, seconds: float) -> None:
    """Terminals over WebSockets that nobody reads."""
    head = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
    )
    path = f"{target.box}/terminal?command={quote('yes')}"
    await _hold_unread(target, count, seconds, "GET", path, head=head)


async def unread_events(target: Target, count: int, seconds: float) -> None:
    await _hold_unread(target, 4 * count, seconds, "GET", "/v1/events", head="Accept: text/event-stream\r\n")


async def left_digests(target: Target, count: int, seconds: float) -> None:
    """Clients ask for the digest of a huge file and leave at once."""
    for _ in range(count):
        async with target.request("POST", f"{target.box}/files/digest", {"path": "hollow"}):
            await asyncio.sleep(seconds / count / 2)


async def trickling_uploads(target: Target, count: int, seconds: float) -> None:
    """Bodies that arrive a byte at a time and never end."""

    async def one() -> None:
        _, writer = await asyncio.open_connection(target.host, target.port)
        head = f"PUT {target.box}/files/content?path=up HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
        try:
            writer.write(f"{head}Authorization: Bearer {target.key}\r\n\r\n".encode())
            for _ in range(10):
                writer.write(b"x")
                await asyncio.sleep(seconds / 10)
        finally:
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(4 * count)))


async def half_open(target: Target, count: int, seconds: float) -> None:
    """Clients without a key that send the beginning of a request."""
    writers = []
    for _ in range(60 * count):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(target.host, target.port)
            writer.write(b"GET /v1/boxes HTTP/1.1\r\nHost: localhost\r\nX-Never: ")
            writers.append(writer)
    await asyncio.sleep(seconds)
    for writer in writers:
        writer.transport.abort()


async def idle_connections(target: Target, count: int, seconds: float) -> None:
    """Connections that stay open after one good request."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20 * count):
            reader, _ = await stack.enter_async_context(target.request("GET", "/v1/session/current"))
            await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(seconds)


async def huge_heads(target: Target, count: int, seconds: float) -> None:
    for _ in range(4 * count):
        with contextlib.suppress(OSError):
            async with target.request("GET", "/v1/boxes", head=f"X-Long: {'a' * 200_000}\r\n", known=False):
                await asyncio.sleep(seconds / count / 8)


async def anonymous_requests(target: Target, count: int, seconds: float) -> None:
    """Clients without a key ask for answers that cost something."""
    for turn in range(20 * count):
        path = ("/metrics", "/v1/openapi.json", "/readyz", "/mcp")[turn % 4]
        async with target.request("GET", path, head="Connection: close\r\n", known=False) as (reader, _):
            await reader.read()


LOADS: dict[str, Load] = {
    load.__name__: load
    for load in (
        unread_results, unread_small_results, unread_files, unread_lists, unread_searches, unread_follows,
        unread_terminals, unread_events, left_digests, trickling_uploads, half_open, idle_connections, huge_heads,
        anonymous_requests,
    )
}  # fmt: skip
