"""Snapshots, checkpoints and forks: boxes that begin with the files of a sandbox. Processes are not part of either.

A snapshot outlives its sandbox, so it is a box of its own: a fork in which nothing runs and that has no end. A sandbox
that is created from it is a fork of that box.
"""

import time
from typing import Annotated
from urllib.parse import unquote

import msgspec

from hutch.errors import HutchError, Invalid, NotFound, Unsupported
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.model.boxes import EventCause, State
from hutch.model.ids import BoxId, is_box_id
from hutch.model.record import encode_json
from hutch.policy.rights import Action, require
from hutch.server.access import check_owner
from hutch.server.e2b import labels, ports
from hutch.server.e2b.control.shapes import DEFAULT_TIMEOUT, Seconds, page_of
from hutch.server.e2b.errors import Answer, status_of, text_of
from hutch.server.e2b.labels import SESSION
from hutch.server.e2b.requests import Request

MAX_FORKS = 20
_JSON = (("content-type", "application/json"),)


class SnapshotBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: (
        Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern="^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")] | None
    ) = None
    memory: bool | None = None


class ForkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout: Seconds | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_FORKS)] = 1


async def create(request: Request) -> Answer:
    """Keep the files of a sandbox, from which any number of sandboxes can be created."""
    body = await request.body(SnapshotBody)
    if body.memory:
        raise Unsupported("a snapshot holds files, not memory", remedy="leave out memory, or pause the sandbox")
    if body.name and _named(request, body.name):
        raise Invalid(f"there is a snapshot {body.name!r} already", remedy="delete it, or choose another name")
    async with request.using() as box:
        (holder,) = await box.fork(1)
    try:
        kept = {
            **labels.ours(holder.spec.labels), labels.SNAPSHOT: body.name or "-",
            labels.SNAPSHOT_OF: request.sandbox,
        }  # fmt: skip
        kept[labels.SNAPSHOT_TEMPLATE] = kept.pop(labels.TEMPLATE)
        live = await request.call.keeper.live(holder.id)
        await request.sandboxes.relabel(live, kept, ttl_sec=0.0)
        await holder.release()
    except BaseException:
        await holder.destroy()
        raise
    return Answer(201, encode_json(_shown(live.record)), _JSON)


def _shown(record: BoxRecord) -> dict[str, object]:
    name = record.spec.labels[labels.SNAPSHOT]
    return {"snapshotID": record.id, "names": [] if name == "-" else [name]}


def _snapshots(request: Request) -> list[BoxRecord]:
    owner = request.call.caller.owner
    return [
        record
        for record in request.call.keeper.boxes()
        if record.owner == owner and labels.SNAPSHOT in record.spec.labels and record.state is State.RUNNING
        and not record.doomed
    ]  # fmt: skip


def _named(request: Request, name: str) -> list[BoxRecord]:
    """Return the snapshots of this id or name."""
    return [
        each for each in _snapshots(request) if name in (each.id, each.spec.labels[labels.SNAPSHOT]) and name != "-"
    ]


async def list_snapshots(request: Request) -> Answer:
    """List the owner's snapshots, newest first, by page."""
    query, found = request.query, _snapshots(request)
    if sandbox := query.get("sandboxID"):
        found = [each for each in found if each.spec.labels.get(labels.SNAPSHOT_OF) == sandbox]
    if name := query.get("name"):
        found = [each for each in found if each.spec.labels[labels.SNAPSHOT] == name]
    found.sort(key=lambda record: (record.created_at, record.id), reverse=True)
    page, token = page_of(found, query)
    headers = (("x-next-token", token),) if token else ()
    return Answer(200, encode_json([_shown(record) for record in page]), (*_JSON, *headers))


async def delete(request: Request) -> Answer:
    """Delete a snapshot; sandboxes that were created from it go on."""
    call = request.call
    require(call.caller.rights, Action.DESTROY)
    name = unquote(request.path.removeprefix("/templates/"))
    found = _named(request, name)
    if not found:
        raise NotFound(f"snapshot '{name[:100]}' not found")
    await call.keeper.destroy(found[0].id, "its snapshot was deleted by an E2B client", EventCause.CALL)
    return Answer(204)


async def fork_snapshot(request: Request, template: str) -> Live | None:
    """Return a new box with the files of a snapshot, or of a checkpoint `BOX:CHECKPOINT`; None if it names neither."""
    box_id, colon, checkpoint = template.partition(":")
    if found := _named(request, template):
        box_id, checkpoint = found[0].id, ""
    elif not (colon and is_box_id(box_id)):
        return None
    keeper = request.call.keeper
    request.name_sandbox(box_id)
    await check_owner(request.call)
    live = await keeper.acquire(BoxId(box_id), SESSION)
    handle = BoxHandle(keeper, live, SESSION)
    try:
        (made,) = await handle.fork(1, checkpoint=checkpoint)
    finally:
        await handle.release()
    made.close()
    return await keeper.live(made.id)


async def fork(request: Request) -> Answer:
    """Make sandboxes that begin with the files of this one; it goes on."""
    from hutch.server.e2b.control.routes import sandbox_of

    body = await request.body(ForkBody)
    seconds = DEFAULT_TIMEOUT if body.timeout is None else body.timeout
    live = await request.find()
    if live.record.state is not State.RUNNING:
        raise NotFound(f"sandbox {live.record.id} does not run: resume it first")
    answers: list[object] = []
    async with request.using() as box:
        for _ in range(body.count):
            try:
                (made,) = await box.fork(1)
                made.close()
                fork = await request.call.keeper.live(made.id)
                await request.sandboxes.set_end(fork, time.time() + seconds)
                private = fork.record.spec.labels.get(labels.TRAFFIC) == labels.PRIVATE
                await ports.open_ports(request.call.service.previews.access, fork.record, public=not private)
                answers.append({"sandbox": await sandbox_of(request, fork.record)})
            except HutchError as error:
                answers.append({"error": {"code": status_of(error), "message": text_of(error)}})
    return Answer(201, encode_json(answers), _JSON)
