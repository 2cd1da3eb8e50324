"""A client's heartbeat names every box it has open, however many there are."""

import asyncio

from hutch.client.remote import RemoteHutch
from hutch.client.requests import BOXES_PER_BEAT
from hutch.model.boxes import Lease
from tests.client.test_connection import unix
from tests.server.serving import Server


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
