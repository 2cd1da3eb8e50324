"""Ports: programs in a box are reached through the engine, whatever the network of the box."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress

from hutch.conformance.claims import broken, holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import POLL, Workbench
from hutch.errors import HutchError, Invalid, PortClosed
from hutch.model.boxes import PortInfo
from hutch.providers.base import Instance
from hutch.providers.handles import PortStream, Process

Changes = AsyncIterator[tuple[PortInfo, ...]]
LARGE = 1 << 20
"""More than any connection may hold on its way, so that both sides have to wait for each other."""
_PYTHON = """
import socket, threading
def echo(one):
    while data := one.recv(65536):
        one.sendall(data)
    one.close()
listening = socket.create_server(("127.0.0.1", 0))
print("port", listening.getsockname()[1], flush=True)
while True:
    threading.Thread(target=echo, args=(listening.accept()[0],)).start()
"""
_PERL = """
$| = 1; $SIG{CHLD} = "IGNORE";
socket(L, 2, 1, 6) && bind(L, pack("SnNx8", 2, 0, 2130706433)) && listen(L, 64) || die;
print "port ", (unpack("Sn", getsockname(L)))[1], "\\n";
for (; accept(C, L); close C) {
    next if fork;
    close L;
    while (sysread(C, $data, 65536)) { syswrite(C, $data) }
    exit;
}
"""
ECHO = """
if command -v python3 >/dev/null; then exec python3 -c "$1"; fi
if command -v perl >/dev/null; then exec perl -e "$2"; fi
echo none
"""
"""A server that returns what it gets, in the first language of the image, without any package."""


@asynccontextmanager
async def echoing(bench: Workbench, box: Instance) -> AsyncIterator[tuple[int, Process]]:
    """Start the server on a port that is free, and yield the port and the job."""
    job = await bench.start(box, ("sh", "-c", ECHO, "sh", _PYTHON, _PERL))
    said = await bench.read_until(job, b"\n")
    if said.startswith(b"none"):
        raise Invalid("the image has neither python3 nor perl to listen with", remedy="name another with --image")
    try:
        yield int(said.split()[1]), job
    finally:
        with suppress(HutchError):  # a check may have ended it
            await job.signal(9)


@asynccontextmanager
async def connected(box: Instance, port: int) -> AsyncIterator[PortStream]:
    stream = await box.connect(port)
    try:
        yield stream
    finally:
        stream.close()


@check("ports", needs="ports")
async def check_both_ways(bench: Workbench) -> None:
    """A connection carries every byte in both directions at once, and each side ends by itself; the network is off."""
    async with bench.box() as box, echoing(bench, box) as (port, _), connected(box, port) as stream:
        sent = bytes(range(256)) * (LARGE // 256)
        sending = asyncio.ensure_future(_send_and_end(stream, sent))
        async with bench.within("the echo and its end"):
            received = await _read_all(stream)
            await sending
        holds(received == sent, f"got {len(received)} bytes back, which are not the {len(sent)} that were sent")


@check("ports", needs="ports")
async def check_several(bench: Workbench) -> None:
    """Connections at once do not mix, and one that nobody reads does not stop the others."""
    async with bench.box() as box, echoing(bench, box) as (port, _):
        async with connected(box, port) as idle, connected(box, port) as first, connected(box, port) as second:
            flood = asyncio.ensure_future(idle.send(bytes(32 * LARGE)))
            await asyncio.wait([flood], timeout=POLL)
            async with bench.within("two answers beside a connection that nobody reads"):
                await first.send(b"first")
                await second.send(b"second")
                same(await _read(second, 6), b"second", "the second connection's answer")
                same(await _read(first, 5), b"first", "the first connection's answer")
            flood.cancel()
            await asyncio.wait([flood])
        await bench.answers(box)


@check("ports", needs="ports")
async def check_closed(bench: Workbench) -> None:
    """A port on which nothing listens is PortClosed, also one whose program has ended."""
    async with bench.box() as box:
        async with echoing(bench, box) as (port, job):
            await job.signal(9)
            await bench.ended(job)
            with raises(PortClosed, what="connecting to a port whose program has ended"):
                (await box.connect(port)).close()
        await bench.answers(box)


@check("ports", needs="ports")
async def check_cut(bench: Workbench) -> None:
    """The end of the program ends its connections: their readers get the end or PortClosed, and do not hang."""
    async with bench.box() as box, echoing(bench, box) as (port, job), connected(box, port) as stream:
        await stream.send(b"hello")
        same(await _read(stream, 5), b"hello", "the answer")
        await job.signal(9)
        await bench.ended(job)
        async with bench.within("the end of the connection"):
            try:
                same(await stream.receive(), b"", "what came after the end of the program")
            except PortClosed as closed:
                holds(closed.message.strip(), "the error has no message")


@check("ports", needs="ports")
async def check_listed(bench: Workbench) -> None:
    """What listens is listed with its port and address, and no more once it has ended."""
    async with bench.box() as box, echoing(bench, box) as (port, job):
        found = {each.port: each for each in await box.ports()}
        holds(port in found, f"port {port} is not among {sorted(found)}")
        same(found[port].address, "127.0.0.1", "its address")
        await job.signal(9)
        await bench.ended(job)
        await bench.until(lambda: _is_closed(box, port), "the end of the port in the list")


@check("ports", needs="ports")
async def check_watched(bench: Workbench) -> None:
    """A watch reports the ports at once, and again when one opens and when one closes."""
    async with bench.box() as box, aclosing(box.watch_ports()) as changes:  # type: ignore[type-var]
        await _seen(bench, changes, lambda found: True, "the first list")
        async with echoing(bench, box) as (port, job):
            await _seen(bench, changes, lambda found: port in found, "the port that opened")
            await job.signal(9)
            await bench.ended(job)
            await _seen(bench, changes, lambda found: port not in found, "the port that closed")


async def _seen(bench: Workbench, changes: Changes, is_it: Callable[[set[int]], bool], what: str) -> None:
    async with bench.within(what):
        async for found in changes:
            if is_it({each.port for each in found}):
                return
    broken(f"{what}: the watch ended")


async def _is_closed(box: Instance, port: int) -> bool:
    return port not in {each.port for each in await box.ports()}


async def _send_and_end(stream: PortStream, data: bytes) -> None:
    await stream.send(data)
    stream.end()


async def _read_all(stream: PortStream) -> bytes:
    received = bytearray()
    while data := await stream.receive():
        received += data
    return bytes(received)


async def _read(stream: PortStream, size: int) -> bytes:
    received = b""
    while len(received) < size and (data := await stream.receive()):
        received += data
    return received
