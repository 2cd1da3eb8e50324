"""`filesystem.Filesystem`: stat, list, make, move and remove, on the files of a box."""

import posixpath
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from stat import filemode

import msgspec

from hutch.errors import FileMissing, FileThere, Invalid
from hutch.keeper.access.files import GuardedFiles
from hutch.linux.identity import USER
from hutch.model.files import Entry, FileInfo, FileKind
from hutch.model.record import encode_json
from hutch.server.e2b.agent.connect import Message
from hutch.server.e2b.agent.files import on_files
from hutch.server.e2b.requests import Request

ATTRIBUTES = "user.e2b."
"""The prefix of the extended attributes that hold a file's metadata."""
_TYPES = {
    FileKind.FILE: "FILE_TYPE_FILE", FileKind.DIRECTORY: "FILE_TYPE_DIRECTORY", FileKind.SYMLINK: "FILE_TYPE_SYMLINK"
}  # fmt: skip
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC).timestamp(), datetime.max.replace(tzinfo=UTC).timestamp() - 1
_NAMES = {0: "root", USER: "user", 65534: "nobody"}


class PathMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str = ""


class ListMessage(PathMessage, frozen=True):
    depth: int = 1


class MoveMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    destination: str


async def stat(request: Request, message: PathMessage) -> Message:
    """Describe one file."""
    path = request.resolve(message.path)
    return {"entry": await on_files(request, lambda files: _entry_at(files, path))}


async def _entry_at(files: GuardedFiles, path: str) -> Message:
    return described(await files.entry(path, ATTRIBUTES))


def described(entry: Entry) -> Message:
    """Describe a file. A link has the type of what it leads to, and names it."""
    answer: Message = {
        "name": posixpath.basename(entry.path), "path": entry.path,
        "type": _TYPES.get(entry.leads_to_kind or entry.kind, "FILE_TYPE_UNSPECIFIED"),
        "size": entry.size, "mode": entry.mode & 0o7777, "permissions": _permissions(entry),
        "owner": _NAMES.get(entry.uid, str(entry.uid)), "group": _NAMES.get(entry.gid, str(entry.gid)),
        "modifiedTime": rfc3339(entry.mtime),
    }  # fmt: skip
    if entry.leads_to is not None:
        answer |= {"symlinkTarget": entry.leads_to, "isSymlink": True}
    if entry.attributes:
        answer["metadata"] = entry.attributes
    return answer


def rfc3339(at: float) -> str:
    """Return the time of a file's change, which a program in the box may have set to one that no calendar has."""
    return datetime.fromtimestamp(min(max(at, _FIRST), _LAST), UTC).isoformat().replace("+00:00", "Z")


def _permissions(entry: FileInfo) -> str:
    kinds = {FileKind.DIRECTORY: 0o040000, FileKind.SYMLINK: 0o120000, FileKind.FILE: 0o100000}
    text = filemode(kinds.get(entry.kind, 0) | (entry.mode & 0o7777))
    # Go's notation, which clients of E2B see: L for a link.
    return "L" + text[1:] if entry.kind is FileKind.SYMLINK else text


async def resolved(files: GuardedFiles, path: str) -> Entry:
    """Describe what is at a path, through links. FileMissing if nothing is."""
    entry = await files.entry(path)
    if entry.leads_to is None:
        return entry
    return await files.entry(entry.leads_to)


async def list_dir(request: Request, message: ListMessage) -> Message:
    """List a directory to a depth, each directory before its content, in the order of names."""
    path = request.resolve(message.path)
    if message.depth < 0:
        raise Invalid("depth is less than 0")

    async def work(files: GuardedFiles) -> msgspec.Raw:
        if (await resolved(files, path)).kind is not FileKind.DIRECTORY:
            raise Invalid(f"path is not a directory: {path}")
        rows = files.entry_rows(path, message.depth or 1, ATTRIBUTES)
        return await encoded(request, (described(entry) async for entry in rows))

    return {"entries": await on_files(request, work)}


async def encoded(request: Request, entries: AsyncIterator[Message], most: int = 0) -> msgspec.Raw:
    """Return entries as one array of JSON. They are encoded as they come, because their text takes less memory, and
    count twice as the caller's, because the answer is a copy. Invalid if there are more than `most`."""
    array, count = bytearray(b"["), 0
    async for entry in entries:
        count += 1
        if most and count > most:
            raise Invalid(f"the directory holds more than {most} entries", remedy="ask for a smaller depth")
        data = encode_json(entry)
        request.account.take(2 * len(data))
        array += data if count == 1 else b"," + data
    array += b"]"
    return msgspec.Raw(array)


async def make_dir(request: Request, message: PathMessage) -> Message:
    """Create a directory and those above it."""
    path = request.resolve(message.path)

    async def work(files: GuardedFiles) -> None:
        try:
            found = await resolved(files, path)
        except FileMissing:
            await files.mkdir(path)
            return
        if found.kind is FileKind.DIRECTORY:
            raise FileThere(f"directory already exists: {path}")
        raise Invalid(f"path already exists but it is not a directory: {path}")

    await on_files(request, work, path)
    return {"entry": await on_files(request, lambda files: _entry_at(files, path))}


async def move(request: Request, message: MoveMessage) -> Message:
    """Move a file or directory; directories above the target are created."""
    source, target = request.resolve(message.source), request.resolve(message.destination)

    async def work(files: GuardedFiles) -> None:
        await files.stat(source)
        await files.mkdir(posixpath.dirname(target))
        await files.move(source, target, overwrite=True)

    await on_files(request, work)
    return {"entry": await on_files(request, lambda files: _entry_at(files, target))}


async def remove(request: Request, message: PathMessage) -> Message:
    """Remove a file or a directory with its content; one that is missing is no error."""
    path = request.resolve(message.path)
    await on_files(request, lambda files: files.remove(path, recursive=True, missing_ok=True))
    return {}
