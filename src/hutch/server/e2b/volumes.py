"""Volumes: Hutch's own, which sandboxes mount, and the API by which clients read and write their content.

A volume's id is its name. Its content is read and written in a box that has the volume as its workspace, so the server
never follows a path that a sandbox has made. That box ends by itself when nobody uses it.
"""

import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from urllib.parse import unquote

import msgspec

from hutch.errors import FileDenied, FileThere, Invalid, NotFound
from hutch.keeper.access.files import GuardedFiles
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.volumes import Volume
from hutch.linux.identity import USER
from hutch.model.boxes import EventCause
from hutch.model.files import FileInfo, FileKind
from hutch.model.record import encode_json
from hutch.model.results import Cause
from hutch.model.spec import VOLUME, NetworkMode, Spec, Workspace
from hutch.policy.rights import Action, require
from hutch.server.e2b import labels
from hutch.server.e2b.agent.filesystem import encoded, rfc3339
from hutch.server.e2b.agent.transfers import decoded, send_file
from hutch.server.e2b.errors import Answer
from hutch.server.e2b.requests import Request
from hutch.server.request import Send

TOP = "/workspace"
"""Where a volume is mounted in the box that reads and writes its content."""
IDLE_SECONDS = 60.0
MAX_DEPTH = 64
MAX_ENTRIES = 100_000
_JSON = (("content-type", "application/json"),)
_KINDS = {FileKind.FILE: "file", FileKind.DIRECTORY: "directory", FileKind.SYMLINK: "symlink"}

Id = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Mode = Annotated[int, msgspec.Meta(ge=0, le=0o7777)]


class NewVolume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Owner and mode of a file; None to leave it as it is."""

    uid: Id | None = None
    gid: Id | None = None
    mode: Mode | None = None


# --- the control plane ----------------------------------------------------------------------------------------


async def create(request: Request) -> Answer:
    """Create an empty volume."""
    body = await request.body(NewVolume)
    call = request.call
    require(call.caller.rights, Action.CREATE)
    return _shown(request, await call.keeper.volumes.create(body.name, call.caller.owner), 201)


async def list_volumes(request: Request) -> Answer:
    """List the owner's volumes."""
    found = await request.call.keeper.volumes.all(request.call.caller.owner)
    return Answer(200, encode_json([{"volumeID": each.name, "name": each.name} for each in found]), _JSON)


async def info(request: Request) -> Answer:
    """Return one volume with a token for its content."""
    return _shown(request, await _find(request, _name(request)))


async def delete(request: Request) -> Answer:
    """Remove a volume with its content; 409 while a sandbox uses it."""
    call = request.call
    require(call.caller.rights, Action.DESTROY)
    name = (await _find(request, _name(request))).name
    reader = await request.sandboxes.readers.find(call.caller.owner, _key(name))
    if reader is not None:
        await call.keeper.destroy(reader.record.id, "its volume is being removed", EventCause.CALL)
    await call.keeper.volumes.remove(name, call.caller.owner)
    return Answer(204)


def _name(request: Request) -> str:
    return unquote(request.path.split("/")[2])


async def _find(request: Request, name: str) -> Volume:
    try:
        return await request.call.keeper.volumes.get(name, request.call.caller.owner)
    except NotFound:
        raise NotFound(f"volume '{name[:100]}' not found") from None


def _shown(request: Request, volume: Volume, status: int = 200) -> Answer:
    token = request.sandboxes.tokens.of(subject(volume.name), request.call.caller.key_id)
    return Answer(status, encode_json({"volumeID": volume.name, "name": volume.name, "token": token}), _JSON)


def subject(name: str) -> str:
    """Return the subject for which the token of a volume's content is derived."""
    return VOLUME + name


# --- the content ----------------------------------------------------------------------------------------------


def volume_of_content(path: str) -> str:
    """Return the volume whose content a path of the API names."""
    return unquote(path.split("/")[2])


async def serve_content(request: Request, send: Send) -> Answer | None:
    """Answer a request for the content of a volume, which its token has admitted."""
    _, _, _, *rest = request.path.split("/")
    method, part = request.method, "/".join(rest)
    path = _place(request.query.get("path", ""))
    async with _reading(request) as box:
        files = box.files
        if (method, part) == ("GET", "file"):
            return await send_file(request, send, files, path)
        if (method, part) == ("PUT", "file"):
            return await _write(request, box, path)
        if (method, part) == ("GET", "dir"):
            return await _list(request, files, path)
        if (method, part) == ("POST", "dir"):
            return await _make_directory(request, box, path)
        if (method, part) == ("GET", "path"):
            return _entry(await files.entry(path))
        if (method, part) == ("PATCH", "path"):
            await _change(box, path, await request.body(Metadata))
            return _entry(await files.entry(path))
        if (method, part) == ("DELETE", "path"):
            if path == TOP:
                raise Invalid("the top of a volume cannot be removed", remedy="remove the volume")
            await files.remove(path, recursive=True)
            return Answer(204)
    raise NotFound(f"{method} /{part} is no call on the content of a volume")


@asynccontextmanager
async def _reading(request: Request) -> AsyncIterator[BoxHandle]:
    """Use the box that has the volume of the request as its workspace. Concurrent requests share one box."""
    caller, readers = request.call.caller, request.sandboxes.readers
    volume = await _find(request, volume_of_content(request.path))
    key = _key(volume.name)
    live = await readers.find_usable(caller.owner, key)
    if live is None:
        spec = Spec(
            workspace=Workspace(source=VOLUME + volume.name), network=NetworkMode.OFF, skills="none",
            idle_timeout_sec=IDLE_SECONDS, labels={labels.VOLUME: volume.name},
        )  # fmt: skip
        live = await readers.create(caller, key, spec)
    async with readers.use(caller, live) as box:
        yield box


def _key(name: str) -> str:
    return f"e2b-volume:{name}"


def _place(path: str) -> str:
    """Return where the box has a path of the volume."""
    if not path or "\0" in path:
        raise Invalid("the query parameter path names no file of the volume")
    return posixpath.normpath(f"{TOP}/{posixpath.normpath('/' + path)}")


async def _write(request: Request, box: BoxHandle, path: str) -> Answer:
    """Write a file; one that is there is overwritten only if the client says `force`."""
    files, wanted = box.files, _wanted(request)
    if await files.exists(path) and not _is_forced(request):
        raise FileThere(f"{path.removeprefix(TOP)} already exists", remedy="send force=true to overwrite it")
    limit = request.call.service.config.server.max_upload_mb << 20
    pieces = decoded(request.call.header("content-encoding"), request.call.pieces(limit), limit)
    await files.write(path, pieces, parents=False)
    await _change(box, path, wanted)
    return _entry(await files.entry(path), 201)


async def _make_directory(request: Request, box: BoxHandle, path: str) -> Answer:
    """Make a directory; with `force` those above it too, and one that is there is no error."""
    wanted, forced = _wanted(request), _is_forced(request)
    await box.files.mkdir(path, parents=forced, exist_ok=forced)
    await _change(box, path, wanted)
    return _entry(await box.files.entry(path), 201)


async def _list(request: Request, files: GuardedFiles, path: str) -> Answer:
    depth = request.query.get("depth", "1")
    if not (depth.isascii() and depth.isdigit() and len(depth) < 9 and 1 <= int(depth) <= MAX_DEPTH):
        raise Invalid(f"depth is a number from 1 to {MAX_DEPTH}")
    if (await files.entry(path)).kind is not FileKind.DIRECTORY:
        raise Invalid(f"{path.removeprefix(TOP)} is not a directory")
    rows = files.entry_rows(path, int(depth))
    entries = await encoded(request, (_described(entry) async for entry in rows), MAX_ENTRIES)
    return Answer(200, encode_json(entries), _JSON)


def _wanted(request: Request) -> Metadata:
    """Return owner and mode as the query gives them."""
    given = {name: request.query[name] for name in ("uid", "gid", "mode") if request.query.get(name)}
    try:
        return msgspec.convert(given, Metadata, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"error parsing the request: {error}") from error


def _is_forced(request: Request) -> bool:
    return request.query.get("force", "").lower() == "true"


async def _change(box: BoxHandle, path: str, wanted: Metadata) -> None:
    """Change the owner (as the box's root) and the mode of a file."""
    commands = []
    if wanted.uid is not None or wanted.gid is not None:
        uid, gid = ("" if each is None else str(each) for each in (wanted.uid, wanted.gid))
        commands.append(["chown", "--no-dereference", f"{uid}:{gid}" if gid else uid, path])
    if wanted.mode is not None:
        commands.append(["chmod", f"{wanted.mode:04o}", path])
    for command in commands:
        found = await box.files.entry(path)
        user = "root" if command[0] == "chown" or found.uid != USER else None
        done = await box.exec(command, user=user, timeout=30.0)
        if done.verdict.cause is not Cause.OK:
            raise FileDenied(f"{command[0]} failed: {done.stderr.strip()[-200:] or done.verdict.message}")


def _entry(entry: FileInfo, status: int = 200) -> Answer:
    return Answer(status, encode_json(_described(entry)), _JSON)


def _described(entry: FileInfo) -> dict[str, object]:
    """Describe a file. All its times are that of its last change, the only one that Hutch records."""
    at = rfc3339(entry.mtime)
    path = entry.path.removeprefix(TOP) or "/"
    described: dict[str, object] = {
        "name": posixpath.basename(path) or "/", "type": _KINDS.get(entry.kind, "unknown"), "path": path,
        "size": entry.size, "mode": entry.mode & 0o7777, "uid": entry.uid, "gid": entry.gid,
        "atime": at, "mtime": at, "ctime": at,
    }  # fmt: skip
    return described | ({} if entry.target is None else {"target": entry.target})
