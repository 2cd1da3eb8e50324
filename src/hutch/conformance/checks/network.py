"""Network modes: off is off, on is a network of the box's own, never the host's (lesson 28)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hutch.conformance.claims import holds, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.model.spec import NetworkMode
from hutch.providers.base import Instance


@check("network", needs="isolation network_wall.namespace")
async def check_off(bench: Workbench) -> None:
    """With network off a box has its loopback and nothing else: no other interface, no route."""
    async with bench.box() as box:
        interfaces = await _interfaces(bench, box)
        same(interfaces - {"lo"}, set(), "interfaces beside lo")
        routes = (await bench.output(box, ("cat", "/proc/net/route"))).splitlines()[1:]
        same(routes, [], "routes")


@check("network", needs="isolation")
async def check_off_host_loopback(bench: Workbench) -> None:
    """With network off what listens on the host's loopback is not reached."""
    async with listener() as (port, calls), bench.box() as box:
        await bench.run(box, _call("127.0.0.1", port))
        same(calls, [], "calls that reached the host")


@check("network", needs="isolation")
async def check_own_loopback(bench: Workbench) -> None:
    """The loopback interface of a box is up, so that its own programs can talk to each other."""
    async with bench.box() as box:
        # The answer of a port nobody listens on distinguishes the two: refused if lo is up, unreachable if it is down.
        result = await bench.run(box, _call("127.0.0.1", 9))
        holds(b"unreachable" not in result.stderr_bytes.lower(), f"loopback is down: {result.stderr!r}")
        flags = await bench.run(box, ("cat", "/sys/class/net/lo/flags"))
        if flags.ok:
            holds(int(flags.stdout, 16) & 1, "loopback is down")


@check("network", needs="isolation networks.on")
async def check_on(bench: Workbench) -> None:
    """With network on a box has an interface of its own and a default route."""
    async with bench.box(network=NetworkMode.ON) as box:
        holds(await _interfaces(bench, box) - {"lo"}, "no interface beside lo")
        routes = (await bench.output(box, ("cat", "/proc/net/route"))).splitlines()[1:]
        holds(any(line.split()[1] == b"00000000" for line in routes), "no default route")


@check("network", needs="isolation networks.on")
async def check_on_host_loopback(bench: Workbench) -> None:
    """With network on the host's loopback is still not reached: not by its address, not through the gateway."""
    async with listener() as (port, calls), bench.box(network=NetworkMode.ON) as box:
        for address in ("127.0.0.1", *await _gateways(bench, box)):
            await bench.run(box, _call(address, port), timeout_sec=3)
        same(calls, [], "calls that reached the host")


@asynccontextmanager
async def listener() -> AsyncIterator[tuple[int, list[object]]]:
    """Listen on the host, where a box must not reach, and yield the port and the list of callers."""
    calls: list[object] = []

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], calls


def _call(address: str, port: int) -> str:
    """Return a script that connects by bash, which alone has /dev/tcp, or by other programs that may be there."""
    return (
        f"(exec 3<>/dev/tcp/{address}/{port}) || nc -z -w 2 {address} {port} || wget -T 2 -qO- http://{address}:{port}"
    )


async def _interfaces(bench: Workbench, box: Instance) -> set[str]:
    lines = (await bench.output(box, ("cat", "/proc/net/dev"))).decode().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


async def _gateways(bench: Workbench, box: Instance) -> list[str]:
    """Return the gateways, which the kernel prints as hexadecimal numbers as in memory, least byte first."""
    lines = (await bench.output(box, ("cat", "/proc/net/route"))).decode().splitlines()[1:]
    words = [line.split()[2] for line in lines]
    return [".".join(str(int(word[at : at + 2], 16)) for at in (6, 4, 2, 0)) for word in words if int(word, 16)]
