"""Leases of remote handles: kept alive by heartbeats, given up at the end, lost when the client falls silent."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.client.remote import RemoteHutch
from hutch.client.transport.heartbeat import Rhythm
from hutch.client.transport.requests import BOXES_PER_BEAT
from hutch.errors import BoxBusy, LeaseLost
from hutch.model.boxes import Lease
from tests.client.conftest import QUICK
from tests.client.proxy import proxy
from tests.client.test_connection import unix
from tests.server.serving import Server, serving


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """Its leases last a second."""
    with serving(HUTCH_LEASE_SEC="1") as started:
        yield started


async def test_thinking_loses_nothing(hasty: Server) -> None:
    """A live handle renews its lease by heartbeats, so neither lease nor idle timeout ends a held box. Short leases
    shorten the usual interval of 20 s."""
    async with Hutch(unix(hasty)) as hutch, Hutch(unix(hasty)) as other:
        async with hutch.box(idle_timeout_sec=1) as box:
            first = (await box.info()).lease
            assert first is not None
            expires = first.expires_at
            while True:
                lease = (await other.find(box.id)).lease
                assert lease is not None and lease.holder == hutch.session
                if lease.expires_at > expires + 2:
                    break
                await asyncio.sleep(0.05)
            with pytest.raises(BoxBusy):
                await other.attach(box.id)
            assert (await box.exec("true")).ok


async def test_a_silent_client_loses_its_lease(hasty: Server, wire: Path) -> None:
    """An expired lease ends for good. A late call of its handle fails and does not touch the box (P6)."""
    rhythm = Rhythm(interval_sec=1000.0, retry_sec=0.05, max_retry_sec=0.1, first_delay_sec=1000.0)
    async with proxy(hasty.run / "server.sock", wire) as middle:
        async with Hutch(middle.url, rhythm=rhythm) as hutch, Hutch(unix(hasty)) as other:
            box = await hutch.create()
            await middle.refuse()
            while (await other.find(box.id)).lease is not None:
                await asyncio.sleep(0.05)
            await middle.listen()
            with pytest.raises(LeaseLost):
                await box.exec("true")
            again = await hutch.attach(box.id)
            assert (await again.exec("true")).ok
            await again.destroy()


async def test_the_end_of_a_session_frees_its_boxes(server: Server) -> None:
    """A session without a name of its own ends with its object; one with a name keeps its leases for the next."""
    async with Hutch(unix(server), rhythm=QUICK) as other:
        async with Hutch(unix(server), rhythm=QUICK) as hutch:
            box = await hutch.create()
            with pytest.raises(BoxBusy):
                await other.attach(box.id)
        await (await other.attach(box.id)).release()
        async with Hutch(unix(server), session="lasting", rhythm=QUICK) as hutch:
            await hutch.attach(box.id)
        with pytest.raises(BoxBusy):
            await other.attach(box.id)
        async with Hutch(unix(server), session="lasting", rhythm=QUICK) as hutch:
            held = await hutch.attach(box.id)
            await held.destroy()


async def test_two_handles_of_one_session(server: Server) -> None:
    """The lease ends with the last of them, as it does embedded."""
    async with Hutch(unix(server), rhythm=QUICK) as hutch:
        one = await hutch.create()
        two = await hutch.attach(one.id)
        await one.release()
        await one.release()
        assert (await two.exec("true")).ok
        with pytest.raises(LeaseLost):
            await one.exec("true")
        await two.release()
        assert (await hutch.find(two.id)).lease is None
        await hutch.destroy(two.id)


async def test_more_boxes_than_one_heartbeat_takes(server: Server) -> None:
    """The server takes a thousand at once, so several heartbeats name all of them. Unknown boxes are dropped, and the
    existing one is kept."""
    async with RemoteHutch(unix(server)) as hutch, hutch.box() as box:
        caller = hutch._server
        gone = Lease(holder="s", acquired_at=1.0, expires_at=0.0)
        for number in range(2 * BOXES_PER_BEAT):
            caller.add_handle(f"s{number % 3}", f"{number:020}", gone)
        while [box_id for _, box_id in caller.held_leases] != [box.id]:
            await asyncio.sleep(0.01)
        assert (await box.exec("true")).ok
