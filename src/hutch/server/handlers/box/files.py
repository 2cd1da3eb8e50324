"""A box's files over HTTP: streamed upload and download, ranges, and the operations of `Files`."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated, ClassVar, TypeVar, cast

import msgspec

from hutch.errors import FileFailed, HutchError, Invalid
from hutch.keeper.access.files import GuardedFiles
from hutch.model.files import Change, FileInfo, FileKind, GrepResult, Matches
from hutch.model.record import Record
from hutch.server.access import observing, using
from hutch.server.error_status import error_to_wire
from hutch.server.handlers.streamed_rows import stream_rows
from hutch.server.request import BYTES, NDJSON, Call, Reply

T = TypeVar("T")

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
DOWNLOAD_HEADERS = {"content-disposition": "attachment", "content-security-policy": "sandbox"}
"""Headers that keep a browser from showing a box's bytes as a page of this server."""
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class NamesBody(Record, frozen=True, kw_only=True):
    """A body with names of files, which may contain any byte, written as `\\udcXX` where it is not UTF-8."""

    odd_names: ClassVar[bool] = True


class PathQuery(Record, frozen=True, kw_only=True):
    path: str


class ReadQuery(Record, frozen=True, kw_only=True):
    path: str
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | None = None
    """With an offset or a limit the answer is that part of the file, and a Range is ignored."""
    limit: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | None = None


class TreeQuery(Record, frozen=True, kw_only=True):
    path: str
    into: str = ""
    """The name of a single file, if `path` is a directory."""


class ListQuery(Record, frozen=True, kw_only=True):
    path: str = "."


class WriteQuery(Record, frozen=True, kw_only=True):
    path: str
    append: bool = False
    mode: Annotated[str, msgspec.Meta(pattern="^[0-7]{3,4}$")] | None = None
    """An octal mode, as for chmod."""
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


class MkdirBody(NamesBody, frozen=True, kw_only=True):
    path: str
    parents: bool = True
    exist_ok: bool = True


class MoveBody(NamesBody, frozen=True, kw_only=True):
    source: str
    target: str
    overwrite: bool = False


class EditBody(NamesBody, frozen=True, kw_only=True):
    """An edit; text, or any bytes as base64."""

    path: str
    old: str | None = None
    old_base64: bytes | None = None
    new: str | None = None
    new_base64: bytes | None = None
    replace_all: bool = False
    expect: str | None = None


class GlobBody(NamesBody, frozen=True, kw_only=True):
    pattern: str
    root: str = "."
    limit: Count = 10_000


class GrepBody(NamesBody, frozen=True, kw_only=True):
    pattern: str
    root: str = "."
    glob: str | None = None
    ignore_case: bool = False
    limit: Count = 1000
    timeout_sec: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0


class DigestBody(NamesBody, frozen=True, kw_only=True):
    path: str


class Existence(Record, frozen=True, kw_only=True):
    exists: bool


class CopiedView(Record, frozen=True, kw_only=True):
    """The result of a copy."""

    files: int
    bytes: int
    skipped: list[str]
    """Devices, FIFOs and sockets, which were not copied."""


class Digest(Record, frozen=True, kw_only=True):
    path: str
    digest: str


async def read(call: Call, query: ReadQuery) -> Reply:
    """Return the content of a file; with `Range: bytes=A-B` one part of it, as 206."""
    if query.offset is not None or query.limit is not None:
        content = _content(call, query.path, query.offset or 0, query.limit, length_sent=False)
        return Reply(content, type=BYTES, headers=dict(DOWNLOAD_HEADERS))
    async with observing(call) as guard:
        info = await GuardedFiles(guard).stat(query.path)
    headers = {**DOWNLOAD_HEADERS, "accept-ranges": "bytes"}
    # Files of /proc have no size, and a symlink's size is not that of its target: those are sent without a length.
    if info.kind is not FileKind.FILE or not info.size:
        return Reply(_content(call, query.path, 0, None), type=BYTES, headers=headers)
    chosen = byte_range(call.header("range"), info.size)
    if chosen is None:
        headers["content-length"] = str(info.size)
        return Reply(_content(call, query.path, 0, info.size), type=BYTES, headers=headers)
    first, last = chosen
    if first >= info.size:
        return Reply(status=416, headers={"content-range": f"bytes */{info.size}"})
    headers |= {"content-range": f"bytes {first}-{last}/{info.size}", "content-length": str(last - first + 1)}
    return Reply(_content(call, query.path, first, last - first + 1), 206, type=BYTES, headers=headers)


async def write(call: Call, query: WriteQuery) -> Reply:
    """Write a file; the body is its content. An interrupted request changes nothing."""
    mode = int(query.mode, 8) if query.mode is not None else None
    async with using(call) as box:
        pieces = call.pieces(call.service.config.server.max_upload_mb << 20)
        info = await box.files.write(
            query.path, pieces, append=query.append, mode=mode, sync=query.sync, parents=query.parents
        )
    return Reply(info)


async def remove(call: Call, query: RemoveQuery) -> Reply:
    """Remove a file, or with `recursive` a directory."""
    async with using(call) as box:
        await box.files.remove(query.path, recursive=query.recursive, missing_ok=query.missing_ok)
    return Reply(status=204)


async def list_files(call: Call, query: ListQuery) -> Reply:
    """List a directory."""
    return await stream_rows("files", _rows(call, lambda files: files.list_rows(query.path)))


async def stat(call: Call, query: PathQuery) -> Reply:
    """Describe one file; a symlink is not followed."""
    async with observing(call) as guard:
        return Reply(await GuardedFiles(guard).stat(query.path))


async def exists(call: Call, query: PathQuery) -> Reply:
    """Whether the path exists."""
    async with observing(call) as guard:
        return Reply(Existence(exists=await GuardedFiles(guard).exists(query.path)))


async def read_tree(call: Call, query: PathQuery) -> Reply:
    """Return a file or a whole directory as one stream, in the form that `PUT …/tree` takes."""
    return Reply(_pack(call, query.path), type=BYTES, headers=dict(DOWNLOAD_HEADERS))


async def write_tree(call: Call, query: TreeQuery) -> Reply:
    """Unpack the body, a stream that `GET …/tree` returned. Names that lead out of the target are refused."""
    async with using(call) as box:
        pieces = call.pieces(call.service.config.server.max_upload_mb << 20)
        copied = await box.files.unpack(pieces, query.path, query.into)
    return Reply(CopiedView(files=copied.files, bytes=copied.bytes, skipped=copied.skipped))


async def lines(call: Call, query: LinesQuery) -> Reply:
    """Return some lines of a text file."""
    rows = _rows(call, lambda files: files.line_rows(query.path, query.start, query.count))
    return await stream_rows("lines", rows, lambda end: {"end": end} if isinstance(end, bool) else None)


async def mkdir(call: Call, body: MkdirBody) -> Reply:
    """Create a directory."""
    async with using(call) as box:
        await box.files.mkdir(body.path, parents=body.parents, exist_ok=body.exist_ok)
    return Reply(status=204)


async def move(call: Call, body: MoveBody) -> Reply:
    """Move a file or directory; `overwrite` replaces the target."""
    async with using(call) as box:
        await box.files.move(body.source, body.target, overwrite=body.overwrite)
    return Reply(status=204)


async def edit(call: Call, body: EditBody) -> Reply:
    """Replace a text that occurs in the file exactly once, or with `replace_all` every occurrence."""
    old, new = _text_or_base64("old", body.old, body.old_base64), _text_or_base64("new", body.new, body.new_base64)
    async with using(call) as box:
        return Reply(await box.files.edit(body.path, old, new, replace_all=body.replace_all, expect=body.expect))


async def glob(call: Call, body: GlobBody) -> Reply:
    """List the paths that match a pattern."""
    rows = _rows(call, lambda files: files.glob_rows(body.pattern, body.root, body.limit))
    return await stream_rows("paths", rows, lambda end: _summary(end, Matches))


async def grep(call: Call, body: GrepBody) -> Reply:
    """List the lines that match a regular expression; the answer says if a limit was reached."""
    rows = _rows(call, lambda files: files.grep_rows(
        body.pattern, root=body.root, glob=body.glob, ignore_case=body.ignore_case, limit=body.limit,
        timeout_sec=body.timeout_sec,
    ))  # fmt: skip
    return await stream_rows("hits", rows, lambda end: _summary(end, GrepResult))


async def digest(call: Call, body: DigestBody) -> Reply:
    """Return the SHA-256 of a file's content."""
    async with observing(call) as guard:
        return Reply(Digest(path=body.path, digest=await GuardedFiles(guard).digest(body.path)))


async def watch(call: Call, query: WatchQuery) -> Reply:
    """Watch for changes. The first line of JSON is `{"watching": true}`, each further line is one change."""
    return Reply(_changes(call, query), type=NDJSON)


async def _changes(call: Call, query: WatchQuery) -> AsyncGenerator[bytes, None]:
    started = False
    try:
        async with observing(call) as guard:
            async with GuardedFiles(guard).watch(query.path, recursive=query.recursive) as changes:
                started = True
                yield b'{"watching":true}\n'
                while (change := await call.service.unless_draining(_next(changes))) is not None:
                    yield change.to_json() + b"\n"
    except HutchError as error:
        if not started:
            raise
        yield msgspec.json.encode({"error": error_to_wire(error, call.op)}) + b"\n"


async def _rows(call: Call, work: Callable[[GuardedFiles], AsyncIterator[T]]) -> AsyncGenerator[T, None]:
    async with observing(call) as guard:
        async with aclosing(cast(AsyncGenerator[T, None], work(GuardedFiles(guard)))) as rows:
            async for row in rows:
                yield row


def _summary(end: object, kind: type[Matches | GrepResult]) -> dict[str, object] | None:
    """The fields of a search's last item, except the rows."""
    if not isinstance(end, kind):
        return None
    return {name: value for name, value in end.to_plain().items() if name not in ("paths", "hits")}


async def _pack(call: Call, path: str) -> AsyncGenerator[bytes, None]:
    async with observing(call) as guard:
        async with aclosing(cast(AsyncGenerator[bytes, None], GuardedFiles(guard).pack(path))) as pieces:
            async for piece in pieces:
                yield piece


def _text_or_base64(name: str, text: str | None, data: bytes | None) -> str | bytes:
    if (text is None) == (data is None):
        raise Invalid(f"give {name} or {name}_base64", op="edit")
    return text if text is not None else data or b""


async def _next(changes: AsyncIterator[Change]) -> Change | None:
    return await anext(changes, None)


async def _content(
    call: Call, path: str, offset: int, length: int | None, *, length_sent: bool = True
) -> AsyncGenerator[bytes, None]:
    sent = 0
    async with observing(call) as guard:
        content = GuardedFiles(guard).open(path, offset=offset, limit=length)
        async with aclosing(cast(AsyncGenerator[bytes, None], content)) as pieces:
            async for piece in pieces:
                sent += len(piece)
                yield piece
    if length_sent and length is not None and sent < length:
        # The length was already sent: the connection is cut, so that the client does not take this for the whole file.
        raise FileFailed(f"{path} became shorter while it was read", op="read", retryable=True)


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """The first and last byte; None for the whole file. RFC 9110 allows to ignore other forms."""
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
