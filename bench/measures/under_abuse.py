"""A second owner's commands over HTTP while another key abuses the server (`bench.abuse`), and without that load."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from time import perf_counter
from urllib.parse import urlsplit

from bench.abuse import LOADS, Target, prepare
from bench.context import Context
from bench.measures.http import served
from bench.numbers import Number, Summary, at_most_times
from hutch import Hutch
from hutch.api import Box

EVERY_SECONDS = 0.05
COUNT = 4
SECONDS = 3.0
"""The number of clients of each kind of load, and how long it lasts."""


async def under_abuse(context: Context) -> list[Number]:
    """Before each load the same time passes without one, so that both are measured in turns."""
    seconds = SECONDS if not context.brief else 0.3
    quiet: list[float] = []
    loaded: list[float] = []
    async with served(context, "abuse") as server:
        address = urlsplit(server.url)
        admin = Target(address.hostname or "", address.port or 0, server.key, "")
        target = await _prepared(admin)
        async with Hutch(server.url, key=await _key(admin, "second")) as hutch, hutch.box(disk_mb=8) as box:
            await _during(box, asyncio.sleep(seconds))
            for load in LOADS.values():
                quiet += await _during(box, asyncio.sleep(seconds))
                loaded += await _during(box, load(target, COUNT, seconds))
    what = f"exec `true` over HTTP beside {len(LOADS)} kinds of abuse by another key"
    peers = {"quiet": Summary.of(quiet)}
    return [Number("beside_abuse", what, "ms", Summary.of(loaded), peers, (at_most_times(3, "quiet"),))]


async def _prepared(admin: Target) -> Target:
    """Make a box of another owner by plain requests: the session of a client would hold its lease."""
    target = replace(admin, key=await _key(admin, "first"))
    made = await target.answer("POST", "/v1/boxes", {"memory_mb": 256, "disk_mb": 160})
    target = replace(target, box=f"/v1/boxes/{made['id']}")
    await prepare(target)
    return target


async def _key(admin: Target, owner: str) -> str:
    made = await admin.answer("POST", "/v1/keys", {"role": "user", "owner": owner})
    return str(made["text"])


async def _during(box: Box, load: Awaitable[None]) -> list[float]:
    """Milliseconds of each command while the load lasts."""
    taken: list[float] = []
    going = asyncio.ensure_future(load)
    while not going.done():
        start = perf_counter()
        result = await box.exec(["true"])
        taken.append(1000 * (perf_counter() - start))
        assert result.exit_code == 0
        await asyncio.sleep(EVERY_SECONDS)
    await going
    return taken
