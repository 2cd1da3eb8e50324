"""A box's files over HTTP: content streamed up and down, ranges, and the operations of `Files`."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Annotated, cast

import msgspec

from hutch.errors import FileFailed, HutchError, Invalid
from hutch.keeper.files import GuardedFiles
from hutch.model.files import Change, FileInfo, FileKind
from hutch.model.record import Record
from hutch.server.access import looking, using
from hutch.server.call import BYTES, NDJSON, Call, Reply
from hutch.server.statuses import wire_of

Watching = AbstractAsyncContextManager[AsyncIterator[Change]]
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class PathQuery(Record, frozen=True, kw_only=True):
    path: str


class ListQuery(Record, frozen=True, kw_only=True):
    path: str = "."


class WriteQuery(Record, frozen=True, kw_only=True):
    path: str
    append: bool = False
    mode: Annotated[str, msgspec.Meta(pattern="^[0-7]{3,4}$")] | None = None
    """Octal, as chmod has it."""
    sync: bool = False
    parents: bool = True


class RemoveQuery(Record, frozen=True, kw_only=True):
    path: str
    recursive: bool = False
    missing_ok: bool = False


class WatchQuery(Record, frozen=True, kw_only=True):
    path: str = "."
    recursive: bool = True


class LinesQuery(Record, frozen=True, kw_only=True):
    path: str
    start: Annotated[int, msgspec.Meta(ge=1)] = 1
    count: Count = 2000


class FileList(Record, frozen=True, kw_only=True):
    files: list[FileInfo]


class LinesView(Record, frozen=True, kw_only=True):
    lines: list[str]
    end: bool


class MkdirBody(Record, frozen=True, kw_only=True):
    path: str
    parents: bool = True
    exist_ok: bool = True


class MoveBody(Record, frozen=True, kw_only=True):
    source: str
    target: str
    overwrite: bool = False


class EditBody(Record, frozen=True, kw_only=True):
    path: str
    old: str
    new: str
    replace_all: bool = False
    expect: str | None = None


class GlobBody(Record, frozen=True, kw_only=True):
    pattern: str
    root: str = "."
    limit: Count = 10_000


class GrepBody(Record, frozen=True, kw_only=True):
    pattern: str
    root: str = "."
    glob: str | None = None
    ignore_case: bool = False
    limit: Count = 1000
    timeout_sec: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0


class DigestBody(Record, frozen=True, kw_only=True):
    path: str


class Digest(Record, frozen=True, kw_only=True):
    path: str
    digest: str


async def read(call: Call, query: PathQuery) -> Reply:
    """With `Range: bytes=A-B` one part of it, as 206."""
    async with looking(call) as guard:
        info = await GuardedFiles(guard).stat(query.path)
    headers = {"content-disposition": "attachment", "content-security-policy": "sandbox", "accept-ranges": "bytes"}
    # The kernel's own files have no size, and a symlink's is not that of its target: those come without a length.
    if info.kind is not FileKind.FILE or not info.size:
        return Reply(_content(call, query.path, 0, None), type=BYTES, headers=headers)
    chosen = _range(call.header("range"), info.size)
    if chosen is None:
        headers["content-length"] = str(info.size)
        return Reply(_content(call, query.path, 0, info.size), type=BYTES, headers=headers)
    first, last = chosen
    if first >= info.size:
        return Reply(status=416, headers={"content-range": f"bytes */{info.size}"})
    headers |= {"content-range": f"bytes {first}-{last}/{info.size}", "content-length": str(last - first + 1)}
    return Reply(_content(call, query.path, first, last - first + 1), 206, type=BYTES, headers=headers)


async def write(call: Call, query: WriteQuery) -> Reply:
    """The body is the content, of any size. Atomic: a request that breaks off changes nothing."""
    mode = int(query.mode, 8) if query.mode is not None else None
    async with using(call) as box:
        pieces = call.pieces(call.service.config.server.max_upload_mb << 20)
        info = await box.files.write(
            query.path, pieces, append=query.append, mode=mode, sync=query.sync, parents=query.parents
        )
    return Reply(info)


async def remove(call: Call, query: RemoveQuery) -> Reply:
    """A file, or a directory with `recursive`."""
    async with using(call) as box:
        await box.files.remove(query.path, recursive=query.recursive, missing_ok=query.missing_ok)
    return Reply(status=204)


async def list_files(call: Call, query: ListQuery) -> Reply:
    """What a directory holds."""
    async with looking(call) as guard:
        return Reply(FileList(files=await GuardedFiles(guard).list(query.path)))


async def stat(call: Call, query: PathQuery) -> Reply:
    """One file, not followed if it is a symlink."""
    async with looking(call) as guard:
        return Reply(await GuardedFiles(guard).stat(query.path))


async def lines(call: Call, query: LinesQuery) -> Reply:
    """Some lines of a text file."""
    async with looking(call) as guard:
        found, end = await GuardedFiles(guard).read_lines(query.path, start=query.start, count=query.count)
    return Reply(LinesView(lines=found, end=end))


async def mkdir(call: Call, body: MkdirBody) -> Reply:
    """A directory."""
    async with using(call) as box:
        await box.files.mkdir(body.path, parents=body.parents, exist_ok=body.exist_ok)
    return Reply(status=204)


async def move(call: Call, body: MoveBody) -> Reply:
    """Also replaces the target, with `overwrite`."""
    async with using(call) as box:
        await box.files.move(body.source, body.target, overwrite=body.overwrite)
    return Reply(status=204)


async def edit(call: Call, body: EditBody) -> Reply:
    """Replace a text that stands in the file exactly once, or everywhere."""
    async with using(call) as box:
        edited = await box.files.edit(
            body.path, body.old, body.new, replace_all=body.replace_all, expect=body.expect
        )  # fmt: skip
    return Reply(edited)


async def glob(call: Call, body: GlobBody) -> Reply:
    """Paths that match a pattern."""
    async with looking(call) as guard:
        return Reply(await GuardedFiles(guard).glob(body.pattern, root=body.root, limit=body.limit))


async def grep(call: Call, body: GrepBody) -> Reply:
    """Lines that match a regular expression; a bound that was met is told."""
    async with looking(call) as guard:
        found = await GuardedFiles(guard).grep(
            body.pattern, root=body.root, glob=body.glob, ignore_case=body.ignore_case, limit=body.limit,
            timeout_sec=body.timeout_sec,
        )  # fmt: skip
    return Reply(found)


async def digest(call: Call, body: DigestBody) -> Reply:
    """SHA-256 of the content."""
    async with looking(call) as guard:
        return Reply(Digest(path=body.path, digest=await GuardedFiles(guard).digest(body.path)))


async def watch(call: Call, query: WatchQuery) -> Reply:
    """Lines of JSON: `{"watching": true}` when the watch is in place, then one change on each."""
    return Reply(_changes(call, query), type=NDJSON)


async def _changes(call: Call, query: WatchQuery) -> AsyncGenerator[bytes, None]:
    begun = False
    async with looking(call) as guard:
        instance = await guard.begin()
        try:
            # Every watch can be entered: then it is in place.
            watching = cast(Watching, instance.files.watch(query.path, recursive=query.recursive))
            async with watching as changes:
                begun = True
                yield b'{"watching":true}\n'
                while (change := await call.service.unless_draining(_next(changes))) is not None:
                    yield change.to_json() + b"\n"
        except HutchError as error:
            if not begun:
                raise
            yield msgspec.json.encode({"error": wire_of(error, call.op)}) + b"\n"
        finally:
            guard.end()


async def _next(changes: AsyncIterator[Change]) -> Change | None:
    return await anext(changes, None)


async def _content(call: Call, path: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
    sent = 0
    async with looking(call) as guard:
        content = GuardedFiles(guard).open(path, offset=offset, limit=length)
        async with aclosing(cast(AsyncGenerator[bytes, None], content)) as pieces:
            async for piece in pieces:
                sent += len(piece)
                yield piece
    if length is not None and sent < length:
        # The length was promised: the connection is broken off, so that nobody takes this for the whole file.
        raise FileFailed(f"{path} became shorter while it was read", op="read", retryable=True)


def _range(header: str, size: int) -> tuple[int, int] | None:
    """First and last byte; None: the whole file. A form that is not understood may be ignored, says RFC 9110."""
    match = _RANGE.fullmatch(header.replace(" ", "").lower())
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        return size - min(size, int(match[2])), size - 1
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < first:
        raise Invalid(f"the range {header} ends before it begins", op="read")
    return first, last
