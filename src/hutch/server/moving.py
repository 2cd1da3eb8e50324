"""Moving boxes over HTTP: a whole box as one stream of bytes, and a new box from such a stream."""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from hutch.keeper.handles import BoxHandle
from hutch.keeper.moving import export_box, import_box
from hutch.keeper.showing import shown
from hutch.model.record import Record
from hutch.server.access import using
from hutch.server.call import BYTES, Call, Reply
from hutch.server.files import HARMLESS
from hutch.server.sessions import FoundBox, asked

_PIECE = 1 << 18
_PREFIX = "hutch-moving-"


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
    place = tempfile.TemporaryDirectory(prefix=_PREFIX)
    try:
        async with using(call) as box:
            moved = await export_box(box, _file(place))
    except BaseException:
        await asyncio.to_thread(place.cleanup)
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

    most = call.service.config.server.max_upload_mb << 20
    place = tempfile.TemporaryDirectory(prefix=_PREFIX)
    try:
        await _received(call.pieces(most), _file(place))
        making = import_box(
            create, _file(place), provider=query.provider, most=most, profile=query.profile, image=query.image,
            name=query.name,
        )  # fmt: skip
        box, moved = await call.while_there(making)
        box.close()
    finally:
        await asyncio.to_thread(place.cleanup)
    live = await keeper.live(box.id)
    location = {"location": f"/v1/boxes/{box.id}"}
    return Reply(FoundBox(box=shown(live.record, live), notes=moved.notes), 201, headers=location)


def _file(place: "tempfile.TemporaryDirectory[str]") -> Path:
    return Path(place.name) / "box"


async def _received(pieces: AsyncIterator[bytes], file: Path) -> None:
    with await asyncio.to_thread(open, file, "wb") as out:
        async for piece in pieces:
            await asyncio.to_thread(out.write, piece)


async def _sent(place: "tempfile.TemporaryDirectory[str]") -> AsyncGenerator[bytes, None]:
    try:
        with await asyncio.to_thread(open, _file(place), "rb") as file:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                yield piece
    finally:
        await asyncio.to_thread(place.cleanup)
