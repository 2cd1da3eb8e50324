"""Moving boxes over HTTP: a whole box as one stream of bytes, and a new box from such a stream."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.access.views import box_info
from hutch.keeper.export import export_box, import_box
from hutch.keeper.system_archive import OVERHEAD_BYTES
from hutch.model.record import Record
from hutch.server.access import using
from hutch.server.handlers.files import HARMLESS
from hutch.server.handlers.sessions import FoundBox, asked
from hutch.server.request import BYTES, Call, Reply
from hutch.server.spool import Place

_PIECE = 1 << 18


class ImportQuery(Record, frozen=True, kw_only=True):
    """What is given wins over what the body says."""

    provider: str = ""
    profile: str | None = None
    image: str | None = None
    name: str | None = None
    """Empty: none."""


async def export(call: Call) -> Reply:
    """The box as one file: workspace, home, what was changed in its system, spec and labels. The header `Hutch-Moved`
    tells in JSON what is in it and what was left behind."""
    async with using(call) as box:
        # What is gathered of it has at most its disk's bytes, and the file that is made of that no more.
        place = call.service.spool.place(call.caller.key_id, 2 * ((box.spec.limits.disk_mb << 20) + OVERHEAD_BYTES))
        try:
            moved = await export_box(box, place.file)
        except BaseException:
            await place.remove()
            raise
    headers = {**HARMLESS, "hutch-moved": json.dumps(moved.to_plain()), "content-length": str(moved.size)}
    return Reply(_sent(place), type=BYTES, headers=headers)


async def import_stream(call: Call, query: ImportQuery) -> Reply:
    """A new box from the body, which is what `GET …/export` gave, here or elsewhere. Neither the body nor what it
    unpacks to may be larger than an upload."""
    caller, keeper = call.caller, call.keeper

    async def create(**spec: Any) -> BoxHandle:
        made = await call.service.creations.make(asked(spec), session=caller.session, owner=caller.owner, key="")
        return BoxHandle(keeper, await keeper.live(made.id), caller.session)

    spool = call.service.spool
    most = min(call.service.config.server.max_upload_mb << 20, spool.room(caller.key_id) // 4)
    place = spool.place(caller.key_id, 2 * most)
    try:
        await _received(call.pieces(most), place.file)
        making = import_box(
            create, place.file, spool=place.path, provider=query.provider, most=most, profile=query.profile,
            image=query.image, name=query.name,
        )  # fmt: skip
        box, moved = await call.while_there(making)
        box.close()
    finally:
        await place.remove()
    live = await keeper.live(box.id)
    location = {"location": f"/v1/boxes/{box.id}"}
    return Reply(FoundBox(box=box_info(live.record, live), notes=moved.notes), 201, headers=location)


async def _received(pieces: AsyncIterator[bytes], file: Path) -> None:
    with await asyncio.to_thread(open, file, "wb") as out:
        async for piece in pieces:
            await asyncio.to_thread(out.write, piece)


async def _sent(place: Place) -> AsyncGenerator[bytes, None]:
    try:
        with await asyncio.to_thread(open, place.file, "rb") as file:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                yield piece
    finally:
        await place.remove()
