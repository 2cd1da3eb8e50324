"""Export and import over HTTP: a whole box as one stream of bytes, and a new box from such a stream."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.access.views import box_info
from hutch.keeper.archives.export import export_box, import_box
from hutch.keeper.archives.system_archive import OVERHEAD_BYTES
from hutch.model.record import Record
from hutch.server.access import using
from hutch.server.handlers.box.files import DOWNLOAD_HEADERS
from hutch.server.handlers.sessions import FoundBox, parse_spec
from hutch.server.request import BYTES, Call, Reply
from hutch.server.state.spool import SpoolDirectory

OPENAPI_TAG = "moving"
"""Operation ids are public, and these two were published under this name."""
_PIECE_BYTES = 1 << 18


class ImportQuery(Record, frozen=True, kw_only=True):
    """Settings that override those in the body."""

    provider: str = ""
    profile: str | None = None
    image: str | None = None
    name: str | None = None
    """Empty for a box without a name."""


async def export(call: Call) -> Reply:
    """Return the box as one file: workspace, home, changes to its system, spec and labels. The header `Hutch-Moved`
    lists in JSON what is in it and what was left out."""
    async with using(call) as box:
        # The collected files have at most the bytes of the box's disk, and the archive made from them has no more.
        directory = call.service.spool.allocate(
            call.caller.key_id, 2 * ((box.spec.limits.disk_mb << 20) + OVERHEAD_BYTES)
        )
        try:
            moved = await export_box(box, directory.file)
        except BaseException:
            await directory.remove()
            raise
    headers = {**DOWNLOAD_HEADERS, "hutch-moved": json.dumps(moved.to_plain()), "content-length": str(moved.size)}
    return Reply(_send(directory), type=BYTES, headers=headers)


async def import_stream(call: Call, query: ImportQuery) -> Reply:
    """Create a box from the body, which `GET …/export` returned here or elsewhere. Neither the body nor its unpacked
    content may be larger than an upload."""
    caller, keeper = call.caller, call.keeper

    async def create(**spec: Any) -> BoxHandle:
        record = await call.keeper.creations.create(
            parse_spec(spec), session=caller.session, owner=caller.owner, key=""
        )
        return BoxHandle(keeper, await keeper.live(record.id), caller.session)

    spool = call.service.spool
    max_bytes = min(call.service.config.server.max_upload_mb << 20, spool.free_for(caller.key_id) // 4)
    directory = spool.allocate(caller.key_id, 2 * max_bytes)
    try:
        await _receive(call.pieces(max_bytes), directory.file)
        importing = import_box(
            create, directory.file, spool=directory.path, provider=query.provider, most=max_bytes,
            profile=query.profile, image=query.image, name=query.name,
        )  # fmt: skip
        box, moved = await call.until_disconnect(importing)
        box.close()
    finally:
        await directory.remove()
    live = await keeper.live(box.id)
    location = {"location": f"/v1/boxes/{box.id}"}
    return Reply(FoundBox(box=box_info(live.record, live), notes=moved.notes), 201, headers=location)


async def _receive(pieces: AsyncIterator[bytes], file: Path) -> None:
    with await asyncio.to_thread(open, file, "wb") as out:
        async for piece in pieces:
            await asyncio.to_thread(out.write, piece)


async def _send(directory: SpoolDirectory) -> AsyncGenerator[bytes, None]:
    try:
        with await asyncio.to_thread(open, directory.file, "rb") as file:
            while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                yield piece
    finally:
        await directory.remove()
