"""`filesystem.Filesystem`: stat, list, make, move and remove, on the files of a box."""

import posixpath
from datetime import UTC, datetime
from stat import filemode

import msgspec

from hutch.errors import FileMissing, FileThere, Invalid
from hutch.keeper.access.files import GuardedFiles
from hutch.linux.identity import USER
from hutch.model.files import FileInfo, FileKind
from hutch.server.e2b.connect import ConnectError, Message
from hutch.server.e2b.requests import Request

MAX_DEPTH = 64
MAX_ENTRIES = 100_000
_MAX_LINKS = 40
_TYPES = {
    FileKind.FILE: "FILE_TYPE_FILE", FileKind.DIRECTORY: "FILE_TYPE_DIRECTORY", FileKind.SYMLINK: "FILE_TYPE_SYMLINK"
}  # fmt: skip
_NAMES = {0: "root", USER: "user", 65534: "nobody"}


class PathMessage(msgspec.Struct, frozen=True):
    path: str = ""


class ListMessage(PathMessage, frozen=True):
    depth: int = 1


class MoveMessage(msgspec.Struct, frozen=True):
    source: str
    destination: str


async def stat(request: Request, message: PathMessage) -> Message:
    """Describe one file."""
    async with request.files() as files:
        return {"entry": await entry(files, request.resolve(message.path))}


async def entry(files: GuardedFiles, path: str, info: FileInfo | None = None) -> Message:
    """Describe a file. A link has the type of what it leads to, and names it."""
    info = info or await files.stat(path)
    described: Message = {
        "name": posixpath.basename(path), "path": path, "type": _TYPES.get(info.kind, "FILE_TYPE_UNSPECIFIED"),
        "size": info.size, "mode": info.mode & 0o7777, "permissions": _permissions(info),
        "owner": _NAMES.get(info.uid, str(info.uid)), "group": _NAMES.get(info.gid, str(info.gid)),
        "modifiedTime": datetime.fromtimestamp(info.mtime, UTC).isoformat().replace("+00:00", "Z"),
    }  # fmt: skip
    if info.kind is not FileKind.SYMLINK:
        return described
    target, found = await _follow(files, path, info)
    described["symlinkTarget"] = target
    described["isSymlink"] = True
    if found is not None:
        described["type"] = _TYPES.get(found.kind, "FILE_TYPE_UNSPECIFIED")
    return described


async def resolved(files: GuardedFiles, path: str) -> FileInfo:
    """Describe what is at a path, through links. FileMissing if nothing is."""
    info = await files.stat(path)
    if info.kind is not FileKind.SYMLINK:
        return info
    target, found = await _follow(files, path, info)
    if found is None:
        raise FileMissing(f"path '{target}' does not exist")
    return found


async def _follow(files: GuardedFiles, path: str, info: FileInfo) -> tuple[str, FileInfo | None]:
    """Return where a link leads in the end, and what is there; None if nothing is."""
    for _ in range(_MAX_LINKS):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), info.target or ""))
        try:
            info = await files.stat(path)
        except FileMissing:
            return path, None
        if info.kind is not FileKind.SYMLINK:
            return path, info
    return path, None


def _permissions(info: FileInfo) -> str:
    kinds = {FileKind.DIRECTORY: 0o040000, FileKind.SYMLINK: 0o120000, FileKind.FILE: 0o100000}
    text = filemode(kinds.get(info.kind, 0) | (info.mode & 0o7777))
    # Go's notation, which clients of E2B see: L for a link.
    return "L" + text[1:] if info.kind is FileKind.SYMLINK else text


async def list_dir(request: Request, message: ListMessage) -> Message:
    """List a directory to a depth, each directory before its content, in the order of names."""
    path = request.resolve(message.path)
    if message.depth < 0:
        raise Invalid("depth is less than 0")
    async with request.files() as files:
        if (await resolved(files, path)).kind is not FileKind.DIRECTORY:
            raise Invalid(f"path is not a directory: {path}")
        entries: list[Message] = []
        await _list(files, path, min(message.depth or 1, MAX_DEPTH), entries)
    return {"entries": entries}


async def _list(files: GuardedFiles, path: str, depth: int, entries: list[Message]) -> None:
    for info in await files.list(path):
        below = posixpath.join(path, posixpath.basename(info.path))
        if len(entries) >= MAX_ENTRIES:
            raise ConnectError("resource_exhausted", f"there are over {MAX_ENTRIES} entries: list less at once")
        entries.append(await entry(files, below, info))
        if info.kind is FileKind.DIRECTORY and depth > 1:
            await _list(files, below, depth - 1, entries)


async def make_dir(request: Request, message: PathMessage) -> Message:
    """Create a directory and those above it."""
    path = request.resolve(message.path)
    async with request.files() as files:
        try:
            info = await resolved(files, path)
        except FileMissing:
            await files.mkdir(path)
            return {"entry": await entry(files, path)}
    if info.kind is FileKind.DIRECTORY:
        raise FileThere(f"directory already exists: {path}")
    raise Invalid(f"path already exists but it is not a directory: {path}")


async def move(request: Request, message: MoveMessage) -> Message:
    """Move a file or directory; directories above the target are created."""
    source, target = request.resolve(message.source), request.resolve(message.destination)
    async with request.files() as files:
        await files.stat(source)
        await files.mkdir(posixpath.dirname(target))
        await files.move(source, target, overwrite=True)
        return {"entry": await entry(files, target)}


async def remove(request: Request, message: PathMessage) -> Message:
    """Remove a file or a directory with its content; one that is missing is no error."""
    async with request.files() as files:
        await files.remove(request.resolve(message.path), recursive=True, missing_ok=True)
    return {}
