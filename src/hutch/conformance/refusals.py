"""The refusals of a provider without a capability: cleanly, with a reason, and with nothing left behind."""

import asyncio
from typing import Any

from hutch.conformance.claims import raises, same
from hutch.conformance.registry import refusal
from hutch.conformance.workbench import POLL, Workbench
from hutch.errors import NotRunnable, Refused, Unsupported
from hutch.model.spec import Mount, NetworkMode, Retention


@refusal("pty")
async def refuse_pty(bench: Workbench) -> None:
    async with bench.box() as box:
        with raises(Unsupported, what="starting a job with a terminal"):
            await bench.start(box, ("true",), pty=True)
        same(await box.jobs(), (), "jobs")


@refusal("watch")
async def refuse_watch(bench: Workbench) -> None:
    async with bench.box() as box, bench.within("an answer to a watch"):
        watching = asyncio.ensure_future(anext(aiter(box.files.watch("."))))
        while not watching.done():  # a provider that watches nevertheless answers at the first change
            await box.files.write("changed", b"")
            await asyncio.wait([watching], timeout=POLL)
        with raises(Unsupported, what="watching a directory"):
            await watching


@refusal("pause")
async def refuse_pause(bench: Workbench) -> None:
    async with bench.box() as box:
        with raises(Unsupported, what="pausing"):
            await box.pause()
        await bench.answers(box)


@refusal("layers")
async def refuse_layers(bench: Workbench) -> None:
    async with bench.box() as box:
        with raises(Unsupported, what="freezing the files"):
            await box.layers.freeze(())
        await bench.answers(box)


@refusal("ports")
async def refuse_ports(bench: Workbench) -> None:
    async with bench.box() as box:
        with raises(Unsupported, what="connecting to a port"):
            (await box.connect(8000)).close()
        with raises(Unsupported, what="listing the ports"):
            await box.ports()
        await bench.answers(box)


@refusal("users.root")
async def refuse_root(bench: Workbench) -> None:
    async with bench.box() as box:
        with raises(Unsupported, Refused, NotRunnable, what="running as root"):
            await bench.run(box, ("true",), user="root")


@refusal("networks.on")
async def refuse_network(bench: Workbench) -> None:
    await _refused(bench, "network on", network=NetworkMode.ON)


@refusal("mounts")
async def refuse_mounts(bench: Workbench) -> None:
    await _refused(bench, "a mount", mounts=(Mount(source=str(bench.scratch), target="/data"),))


@refusal("persistent")
async def refuse_persistent(bench: Workbench) -> None:
    await _refused(bench, "a persistent box", retention=Retention.PERSISTENT)


@refusal("writable_root")
async def refuse_writable_root(bench: Workbench) -> None:
    await _refused(bench, "a writable root", read_only_root=False)


async def _refused(bench: Workbench, what: str, **changes: Any) -> None:
    """Check that the provider refuses the order itself, although policy would have refused it before."""
    order = bench.order(**changes)
    planned = bench.provider.plan(order)
    with raises(Unsupported, Refused, what=f"creating a box with {what}"):
        box = await bench.provider.create(order, planned)
        await bench.provider.destroy(box.record)
    same(await bench.listed(planned), False, "whether the refused box is listed")
