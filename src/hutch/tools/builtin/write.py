"""The tools `write` and `edit`. They change bytes and keep the file's encoding and line endings."""

import base64
import binascii
import hashlib
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from hutch.api import Box
from hutch.errors import Conflict, FileChanged, FileMissing, Invalid
from hutch.policy.permissions import Access
from hutch.tools.builtin import text_encoding
from hutch.tools.builtin.answers import EditAnswer, WriteAnswer
from hutch.tools.builtin.read import MAX_WHOLE_FILE
from hutch.tools.call import Call
from hutch.tools.definition import MAX_PATH, Arguments, tool
from hutch.tools.result import ToolResult, answer

Path = Annotated[str, Meta(description="The file; relative to the workdir.", min_length=1, max_length=MAX_PATH)]
Encoding = Annotated[str, Meta(description="Text encoding; default: the one the file has, else utf-8.", max_length=40)]


class Newline(StrEnum):
    KEEP = "keep"
    LF = "lf"
    CRLF = "crlf"


class WriteArguments(Arguments, frozen=True, kw_only=True):
    path: Path
    content: Annotated[str, Meta(description="The whole new content, as text.")] | None = None
    content_base64: (
        Annotated[str, Meta(description="The whole new content of a binary file, instead of content.")] | None
    ) = None
    append: Annotated[bool, Meta(description="Add to the end instead of replacing the file.")] = False
    executable: Annotated[bool, Meta(description="Make it a program that can be run.")] = False
    encoding: Encoding | None = None
    newline: Annotated[
        Newline, Meta(description="Line endings: keep those of the file that is there (a new one gets lf), or change.")
    ] = Newline.KEEP


class EditArguments(Arguments, frozen=True, kw_only=True):
    path: Path
    old: Annotated[str, Meta(description="The text to replace, exactly as the file has it.", min_length=1)]
    new: Annotated[str, Meta(description="What it becomes.")]
    replace_all: Annotated[bool, Meta(description="Replace every place where it stands, not just one.")] = False
    encoding: Encoding | None = None


@tool("write", WriteArguments, answers=WriteAnswer, example={"path": "notes.txt", "content": "hello\n"}, settles=True)
async def write_tool(call: Call, given: WriteArguments) -> ToolResult:
    """Write a whole file in the current box; directories are made as needed. A file that is there keeps its encoding,
    its line endings and its mode. It is replaced at once or not at all. To change a part of a file use edit."""
    if (given.content is None) == (given.content_base64 is None):
        raise Invalid(
            "write needs either content or content_base64",
            op="write",
            remedy='for example {"path": "notes.txt", "content": "hello\\n"}',
            details={"field": "content"},
        )
    declared = text_encoding.checked_codec(given.encoding) if given.encoding else None

    async def write(box: Box) -> ToolResult:
        await call.gate.check_path(box, given.path, Access.WRITE)
        earlier = await _existing_content(box, given.path)
        _check_unchanged(call, box, given.path, earlier, given.append)
        data, notes = _content(given, earlier, declared)
        mode = 0o755 if given.executable else None
        info = await box.files.write(given.path, data, append=given.append, mode=mode)
        seen = call.agent.read_digest(box, given.path)
        known = earlier is None or seen == hashlib.sha256(earlier).hexdigest()
        if seen is None and earlier is not None and not given.append:
            notes.append("it replaced a file that you had not read")
        whole = (earlier or b"") + data if given.append else data
        digest = hashlib.sha256(whole).hexdigest() if len(whole) == info.size else ""
        if digest and (known or not given.append):
            call.agent.record_read(box, given.path, digest)
        done = "appended to" if given.append else "replaced" if earlier is not None else "new file"
        text = f"{given.path}: {done}, {info.size:,} bytes now"
        facts = {
            "box": box.id, "path": given.path, "size": info.size, "written": len(data), "digest": digest,
            "created": earlier is None,
        }  # fmt: skip
        return answer(text, facts, *notes)

    return await call.on_box(write)


async def _existing_content(box: Box, path: str) -> bytes | None:
    """Return the content of the file, or at least its beginning; None if there is no file."""
    try:
        return await box.files.read(path, limit=MAX_WHOLE_FILE)
    except FileMissing:
        return None


def _check_unchanged(call: Call, box: Box, path: str, earlier: bytes | None, append: bool) -> None:
    seen = call.agent.read_digest(box, path)
    if earlier is None or seen is None or append or len(earlier) >= MAX_WHOLE_FILE:
        return
    if hashlib.sha256(earlier).hexdigest() != seen:
        raise file_changed(path, "write")


def file_changed(path: str, op: str) -> FileChanged:
    return FileChanged(
        f"{path!r} has changed since you read it",
        op=op,
        remedy="read it again, then repeat the change on what it is now",
    )


def _content(given: WriteArguments, earlier: bytes | None, declared: str | None) -> tuple[bytes, list[str]]:
    if given.content_base64 is not None:
        try:
            return base64.b64decode("".join(given.content_base64.split()), validate=True), []
        except (binascii.Error, ValueError) as error:
            raise Invalid(
                f"content_base64 is not base64: {error}", op="write", details={"field": "content_base64"}
            ) from None
    text = given.content or ""
    there = text_encoding.detect_format(earlier) if earlier else None
    kind = there or text_encoding.TextFormat("utf-8")
    notes: list[str] = []
    mark = b"" if given.append else kind.bom
    if declared is not None and declared != kind.encoding:
        kind, mark = text_encoding.TextFormat(declared, newline=kind.newline), b""
        if there is not None:
            notes.append(f"the file was {there.encoding} before")
    elif there is not None and kind.notice:
        notes.append(f"kept as it was: {kind.notice}")
    if given.newline is not Newline.KEEP:
        text = text_encoding.with_newlines(
            text, text_encoding.CRLF if given.newline is Newline.CRLF else text_encoding.LF
        )
    elif kind.newline == text_encoding.CRLF and not kind.mixed:
        text = text_encoding.with_newlines(text, text_encoding.CRLF)
    if mark:
        text = text.removeprefix("\ufeff")
    return mark + text_encoding.encode_text(text, kind.encoding), notes


@tool(
    "edit",
    EditArguments,
    answers=EditAnswer,
    example={"path": "src/app.py", "old": "retries = 1", "new": "retries = 3"},
    settles=True,
)
async def edit_tool(call: Call, given: EditArguments) -> ToolResult:
    """Replace an exact piece of text in a file of the current box. The file must have been read before and not have
    changed since. `old` must stand there exactly once, unless replace_all is set. Encoding, line endings and every
    other byte stay as they are."""
    declared = text_encoding.checked_codec(given.encoding) if given.encoding else None

    async def edit(box: Box) -> ToolResult:
        await call.gate.check_path(box, given.path, Access.WRITE)
        content = await box.files.read(given.path)
        digest = hashlib.sha256(content).hexdigest()
        seen = call.agent.read_digest(box, given.path)
        if seen is None:
            raise Conflict(
                f"you have not read {given.path!r} yet",
                code="not_read",
                op="edit",
                remedy=f'read(path="{given.path}") first, then edit',
            )
        if seen != digest:
            raise file_changed(given.path, "edit")
        plan = text_encoding.plan_edit(
            given.path, content, given.old, given.new, replace_all=given.replace_all, declared=declared
        )
        every = given.replace_all and plan.old != content
        done = await box.files.edit(given.path, plan.old, plan.new, replace_all=every, expect=digest)
        call.agent.record_read(box, given.path, done.digest)
        places = "1 place" if plan.occurrences == 1 else f"{plan.occurrences} places"
        line = content.count(b"\n", 0, max(0, content.find(plan.old))) + 1
        text = f"{given.path}: replaced in {places}" + (
            f", line {line}" if plan.occurrences == 1 and every is False else ""
        )
        facts: dict[str, Any] = {
            "box": box.id, "path": given.path, "replaced": plan.occurrences, "size": done.size, "digest": done.digest,
            "encoding": plan.kind.encoding,
        }  # fmt: skip
        notes = (f"kept as it was: {plan.kind.notice}",) if plan.kind.notice else ()
        return answer(text, facts, *notes)

    return await call.on_box(edit)
