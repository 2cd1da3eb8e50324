"""The tool `read`: a page of a file, of a directory, or of the output of a command."""

import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from hutch.api import Box
from hutch.errors import FileTooLarge, Invalid, IsDirectory
from hutch.policy.permissions import Access
from hutch.tools.builtin import text_encoding
from hutch.tools.builtin.answers import ReadAnswer
from hutch.tools.builtin.jobs import find_job
from hutch.tools.builtin.output import HANDLE_PREFIX, STREAMS, whole_characters
from hutch.tools.builtin.paging import FILE_START, PAGE_BYTES, PAGE_LINES, LinePosition, Page, by_bytes, by_lines
from hutch.tools.call import Call
from hutch.tools.definition import MAX_PATH, Arguments, tool
from hutch.tools.result import Image, ToolResult, answer

MAX_WHOLE_FILE = 8 << 20
"""A file up to this size is read at once, so that its encoding and digest are certain."""
BINARY_BYTES = 24_000
MAX_IMAGE = 5 << 20
MAX_ENTRIES = 1000

_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class Unit(StrEnum):
    LINES = "lines"
    BYTES = "bytes"


class ReadArguments(Arguments, frozen=True, kw_only=True):
    path: Annotated[
        str,
        Meta(
            description="A file or directory; relative to the workdir. Or an output handle such as output:j1:stdout.",
            min_length=1,
            max_length=MAX_PATH,
        ),
    ]
    offset: (
        Annotated[
            int, Meta(description="Where to begin: the line number (from 1) or, by bytes, the byte.", ge=0, le=2**53)
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(description="How many lines or bytes at most.", ge=1, le=1_000_000)] | None = None
    unit: Annotated[Unit, Meta(description="Count lines or bytes.")] = Unit.LINES
    numbered: Annotated[bool, Meta(description="Put the line number before each line.")] = False
    encoding: (
        Annotated[str, Meta(description="Text encoding, if the one found out is wrong.", max_length=40)] | None
    ) = None


@tool(
    "read",
    ReadArguments,
    answers=ReadAnswer,
    example={"path": "src/app.py", "offset": 1, "limit": 200},
    read_only=True,
    settles=True,
)
async def read_tool(call: Call, given: ReadArguments) -> ToolResult:
    """Read a file of the current box, page by page: the answer says how to go on. Text is shown in the encoding that
    the file has; pictures are shown as pictures; other binary files as base64. A directory is listed. A handle from a
    long output (output:JOB:stdout) is read the same way and loses nothing. A file must be read before it can be
    edited."""
    encoding = text_encoding.checked_codec(given.encoding) if given.encoding else None
    if given.path.startswith(HANDLE_PREFIX):
        await call.gate.check_tool()
        return await call.on_box(lambda box: _output(call, box, given))

    async def read(box: Box) -> ToolResult:
        await call.gate.check_path(box, given.path, Access.READ)
        try:
            return await _file(call, box, given, encoding)
        except IsDirectory:
            return await _directory(call, box, given)

    return await call.on_box(read)


async def _file(call: Call, box: Box, given: ReadArguments, encoding: str | None) -> ToolResult:
    content = await box.files.read(given.path, limit=MAX_WHOLE_FILE + 1)
    large = len(content) > MAX_WHOLE_FILE
    if large:
        digest = await box.files.digest(given.path)
    else:
        digest = hashlib.sha256(content).hexdigest()
    call.agent.record_read(box, given.path, digest)
    facts: dict[str, Any] = {"box": box.id, "path": given.path, "digest": digest}
    if not large:
        facts["size"] = len(content)
    if given.unit is Unit.LINES and encoding is None and (picture := _picture_type(content)) and not large:
        return _picture_answer(facts, content, picture)
    kind = text_encoding.detect_format(content, encoding)
    if kind is None:
        return await _binary(box, given, content if not large else None, facts)
    if kind.encoding.startswith(("utf-16", "utf-32")):
        if large:
            raise FileTooLarge(
                f"{given.path!r} is {kind.encoding} and over {MAX_WHOLE_FILE} bytes",
                op="read",
                remedy="convert it with iconv",
            )
        content = text_encoding.decode_text(content.removeprefix(kind.bom), kind.encoding).encode()
        page = await _page(given, lambda offset: _single_piece(content[offset:]))
        return _text(given, page, kind, "utf-8", facts)
    if not large:
        page = await _page(given, lambda offset: _single_piece(content[offset:]))
    else:
        page = await _page(given, lambda offset: box.files.open(given.path, offset=offset))
    return _text(given, page, kind, kind.encoding, facts)


async def _single_piece(content: bytes) -> AsyncIterator[bytes]:
    if content:
        yield content


async def _page(
    given: ReadArguments, pieces: Callable[[int], AsyncIterator[bytes]], known: LinePosition = FILE_START
) -> Page:
    """Return the requested page. `pieces(offset)` yields the bytes from there; `known` is the start of some line."""
    if given.unit is Unit.BYTES:
        offset = given.offset or 0
        return await by_bytes(pieces(offset), offset, min(given.limit or PAGE_BYTES, PAGE_BYTES * 4))
    first = max(1, given.offset or 1)
    at = known if known.line <= first else FILE_START
    return await by_lines(pieces(at.byte), first, given.limit or PAGE_LINES, at=at)


def _text(
    given: ReadArguments, page: Page, kind: text_encoding.TextFormat, encoding: str, facts: dict[str, Any]
) -> ToolResult:
    data = page.data
    if encoding == "utf-8" and not page.eof and not data.endswith(b"\n") and (whole := whole_characters(data)):
        page = page._replace(data=whole, next_byte=page.next_byte - len(data) + len(whole))
        data = whole
    if page.start_byte == 0:
        data = data.removeprefix(kind.bom) if encoding == kind.encoding else data
    if encoding == "utf-8" and not text_encoding.is_utf8(data):
        encoding = "latin-1"  # Later pages of a large file may not be UTF-8 although its beginning is.
    text = text_encoding.decode_text(data, encoding)
    if given.unit is Unit.LINES:
        text = text.replace("\r\n", "\n")
    shown = _numbered(text, page.first_line or 1) if given.numbered and page.first_line else text
    lines = [shown.removesuffix("\n")] if shown else ["(nothing here)" if page.start_byte else "(the file is empty)"]
    if notice := _notice(given.path, page):
        lines.append(notice)
    notes = [kind.notice] if kind.notice else []
    if encoding == "latin-1" and kind.encoding == "utf-8":
        notes.append("this page is not UTF-8 and is shown as latin-1")
    elif kind.encoding == "latin-1" and given.encoding is None:
        notes.append("not UTF-8: shown as latin-1, byte for byte; edit and write keep the bytes")
    facts |= {
        "text": text, "encoding": kind.encoding, "newline": "crlf" if kind.newline == text_encoding.CRLF else "lf",
        **position(page),
    }  # fmt: skip
    return answer("\n".join(lines), facts, *notes)


def position(page: Page) -> dict[str, Any]:
    facts: dict[str, Any] = {"start_byte": page.start_byte, "next_byte": page.next_byte, "eof": page.eof}
    if page.first_line is not None:
        facts |= {"first_line": page.first_line, "next_line": page.next_line}
    return facts


def _numbered(text: str, first: int) -> str:
    lines = text.removesuffix("\n").split("\n")
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))


def _notice(path: str, page: Page) -> str:
    if page.eof:
        return ""
    if page.next_line is not None:
        return f'[more follows: read(path="{path}", offset={page.next_line})]'
    cut = "the line goes on" if page.first_line is not None else "more follows"
    return f'[{cut}: read(path="{path}", unit="bytes", offset={page.next_byte})]'


# --- pictures, binary files, directories -----------------------------------------------------------------------


def _picture_type(content: bytes) -> str:
    for magic, mime in _PICTURES:
        if content.startswith(magic):
            return mime
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else ""


def _picture_answer(facts: dict[str, Any], content: bytes, mime: str) -> ToolResult:
    facts |= {"mime": mime}
    text = f"{facts['path']}: picture, {mime}, {len(content):,} bytes"
    if len(content) > MAX_IMAGE:
        return answer(f"{text}; too large to be shown. Make it smaller, or read its bytes with unit='bytes'.", facts)
    return answer(text, facts, images=(Image(mime=mime, data=content),))


async def _binary(box: Box, given: ReadArguments, content: bytes | None, facts: dict[str, Any]) -> ToolResult:
    offset = (given.offset or 0) if given.unit is Unit.BYTES else 0
    limit = min(given.limit or BINARY_BYTES, BINARY_BYTES) if given.unit is Unit.BYTES else BINARY_BYTES
    pieces = box.files.open(given.path, offset=offset) if content is None else _single_piece(content[offset:])
    page = await by_bytes(pieces, offset, limit)
    coded = base64.b64encode(page.data).decode()
    facts |= {"base64": coded, "encoding": "base64", **position(page)}
    size = f" of {facts['size']:,}" if "size" in facts else ""
    lines = [
        f"{given.path} is a binary file, not text. Bytes {page.start_byte:,} to {page.next_byte:,}{size} as base64:",
        coded,
    ]
    if notice := _notice(given.path, page):
        lines.append(notice)
    return answer("\n".join(lines), facts, "binary file: write it back with content_base64, not with content")


async def _directory(call: Call, box: Box, given: ReadArguments) -> ToolResult:
    entries = [info for info in await box.files.list(given.path) if call.gate.visible(box, info.path)]
    shown = entries[:MAX_ENTRIES]
    marks = {"directory": "/", "symlink": "@"}
    lines = [f"{info.path.rpartition('/')[2]}{marks.get(info.kind, '')}" for info in shown]
    structured = {
        "box": box.id, "path": given.path, "complete": len(shown) == len(entries),
        "entries": [{"path": info.path, "kind": str(info.kind), "size": info.size} for info in shown],
    }  # fmt: skip
    text = f"{given.path} is a directory:\n" + ("\n".join(lines) or "(empty)")
    if len(shown) < len(entries):
        text += f"\n[{len(entries) - len(shown):,} entries more: use glob with a pattern]"
    return answer(text, structured)


# --- output of commands ---------------------------------------------------------------------------------------


async def _output(call: Call, box: Box, given: ReadArguments) -> ToolResult:
    """Return a page of the complete output of a command, which its box keeps."""
    job_id, _, stream = given.path.removeprefix(HANDLE_PREFIX).partition(":")
    stream = stream or "stdout"
    if not job_id or stream not in STREAMS:
        raise Invalid(
            f"{given.path[:80]!r} is no output handle", op="read", remedy="output:JOB:stdout or output:JOB:stderr"
        )
    box, job = await find_job(call, box, job_id)
    lost = 0

    async def pieces(cursor: int) -> AsyncIterator[bytes]:
        nonlocal lost
        while True:
            chunk = await job.read(cursor, stream=stream, limit=1 << 20)
            lost += chunk.dropped
            if chunk.data:
                yield chunk.data
            if chunk.eof or not chunk.data:
                return
            cursor = chunk.cursor

    key = (box.id, given.path)
    page = await _page(given, pieces, call.agent.output_positions.get(key, FILE_START))
    if page.next_line is not None and not lost:
        call.agent.output_positions[key] = LinePosition(page.next_line, page.next_byte)
    info = await job.info()
    total = info.stderr_total if stream == "stderr" else info.stdout_total
    facts: dict[str, Any] = {"box": box.id, "path": given.path, "total": total, "state": str(info.state)}
    result = _text(given, page, text_encoding.TextFormat("utf-8"), "utf-8", facts)
    if lost:
        result = result.but(notes=(*result.notes, f"{lost:,} bytes of this output were more than the box keeps"))
    return result
