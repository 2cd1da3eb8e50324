"""Files that come with a message and go out with the answer: `inbox` and `outbox`, bounded, safe, collected once.

This is for the host application, on any `Box` of `hutch.api`:

    paths = await tools.attachments.put(box, message_id, {"report.pdf": data})     # /workspace/inbox/<message>/…
    collected = await tools.attachments.collect(box, message_id)                   # what send_file has put there
"""

import asyncio
import mimetypes
import posixpath
import re
import secrets
import unicodedata
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from hutch.api import Box
from hutch.errors import FileDenied, FileFailed, FileMissing, HutchError, Invalid, IsDirectory
from hutch.model.files import FileInfo, FileKind
from hutch.model.record import Record

INBOX = "/workspace/inbox"
OUTBOX = "/workspace/outbox"
PIECE = 1 << 20

Content = bytes | str | Path | AsyncIterator[bytes]
"""A `Path` is a file of the host, which the application has chosen itself."""


class Attachment(Record, frozen=True, kw_only=True):
    """A file that left a box."""

    name: str
    data: bytes
    mime: str


class Collected(Record, frozen=True, kw_only=True):
    """What was in the outbox; `skipped` tells of each file that stayed out, and why."""

    files: tuple[Attachment, ...] = ()
    skipped: dict[str, str] = msgspec.field(default_factory=dict)


class Bounds(Record, frozen=True, kw_only=True):
    """Of one message."""

    files: int = 32
    file_bytes: int = 32 << 20
    total_bytes: int = 64 << 20


def inbox_of(message_id: str) -> str:
    return f"{INBOX}/{safe_name(message_id, instead='message')}"


def outbox_of(message_id: str) -> str:
    return f"{OUTBOX}/{safe_name(message_id, instead='message')}"


class Attachments:
    """The two doors of a box for files."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()

    async def put(self, box: Box, message_id: str, files: Mapping[str, Content]) -> tuple[str, ...]:
        """Into the inbox of that message; the paths in the box, in the order given. All are there, or none."""
        if len(files) > self.bounds.files:
            raise Invalid(
                f"a message brings at most {self.bounds.files} files, not {len(files)}",
                op="attachments",
                remedy="put them into an archive",
            )
        directory, taken, paths, total = inbox_of(message_id), set[str](), list[str](), 0
        try:
            for name, content in files.items():
                path = f"{directory}/{distinct(safe_name(name), taken)}"
                paths.append(path)
                room = min(self.bounds.file_bytes, self.bounds.total_bytes - total)
                total += (await box.files.write(path, _bounded(content, room, name))).size
        except BaseException:
            for path in paths:
                await box.files.remove(path, missing_ok=True)
            raise
        return tuple(paths)

    async def collect(self, box: Box, message_id: str) -> Collected:
        """Take what the outbox of that message holds. Whoever comes second finds nothing; what could not be read to
        the end is put back for the next try."""
        source, taken = outbox_of(message_id), f"{OUTBOX}/.taken-{secrets.token_hex(8)}"
        try:
            await box.files.move(source, taken)  # one rename: of two collectors only one gets it
        except FileMissing:
            return Collected()
        try:
            collected = await self._read(box, taken)
        except BaseException:
            await asyncio.shield(_put_back(box, taken, source))
            raise
        await box.files.remove(taken, recursive=True, missing_ok=True)
        return collected

    async def _read(self, box: Box, directory: str) -> Collected:
        files: list[Attachment] = []
        skipped: dict[str, str] = {}
        names: set[str] = set()
        total = 0
        for info in await box.files.list(directory):
            name = distinct(safe_name(posixpath.basename(info.path)), names)
            reason = self._refusal(info, len(files), total)
            if reason:
                skipped[name] = reason
                continue
            # A process may swap the file for a symlink just now. It gains nothing: what its user may read it could
            # have copied here, and what it may not read is not read for it either.
            try:
                data = await box.files.read(info.path, limit=self.bounds.file_bytes + 1)
            except (FileMissing, FileDenied, FileFailed, IsDirectory, Invalid) as error:
                skipped[name] = error.message
                continue
            if len(data) > self.bounds.file_bytes or total + len(data) > self.bounds.total_bytes:
                skipped[name] = "it grew while it was read"
                continue
            total += len(data)
            files.append(Attachment(name=name, data=data, mime=mime_of(name)))
        return Collected(files=tuple(files), skipped=skipped)

    def _refusal(self, info: FileInfo, count: int, total: int) -> str:
        if info.kind is not FileKind.FILE:
            return f"it is a {info.kind}, not a file" if info.kind is not FileKind.OTHER else "it is a special file"
        if count >= self.bounds.files:
            return f"a message takes at most {self.bounds.files} files"
        if info.size > self.bounds.file_bytes:
            return f"it has {info.size} bytes, over the limit of {self.bounds.file_bytes}"
        if total + info.size > self.bounds.total_bytes:
            return f"the files of a message have at most {self.bounds.total_bytes} bytes together"
        return ""


def mime_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


async def _put_back(box: Box, taken: str, source: str) -> None:
    try:
        await box.files.move(taken, source)
    except HutchError:
        # The box is gone, or a new message has begun to fill the same place: then the old files stay where they are.
        return


async def _bounded(content: Content, room: int, name: str) -> AsyncIterator[bytes]:
    sent = 0
    async for piece in _pieces(content):
        sent += len(piece)
        if sent > room:
            raise Invalid(
                f"{name[:80]!r} is too large for a message: {room} bytes are left",
                op="attachments",
                remedy="mount a directory or use a volume for large files",
            )
        yield piece


async def _pieces(content: Content) -> AsyncIterator[bytes]:
    if isinstance(content, str):
        yield content.encode()
    elif isinstance(content, bytes):
        for start in range(0, len(content), PIECE):
            yield content[start : start + PIECE]
    elif isinstance(content, Path):
        with await asyncio.to_thread(content.open, "rb") as source:
            while piece := await asyncio.to_thread(source.read, PIECE):
                yield piece
    else:
        async for piece in content:
            yield piece


MAX_BYTES = 150
"""Of a name in UTF-8: file systems take 255, and whoever receives the file may add to it."""

_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f]')
"""What Windows refuses in a name, and control characters, which can move a terminal's cursor."""


def safe_name(name: str, *, instead: str = "file") -> str:
    """Never empty, no directory, no control character, no name that Windows keeps for devices, not hidden, not long."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    text = unicodedata.normalize("NFC", last.encode("utf-8", "replace").decode())
    # Format characters turn the direction of writing: `exe.gpj` can look like `jpg.exe`.
    text = "".join(each for each in text if unicodedata.category(each) not in ("Cf", "Cs", "Co", "Cn"))
    text = " ".join(text.split())
    text = _FORBIDDEN.sub("_", text).strip(" .")
    if not text or not text.strip("_"):
        text = instead
    if _RESERVED.fullmatch(text):
        text = f"_{text}"
    return _shortened(text)


def _shortened(text: str) -> str:
    if len(text.encode()) <= MAX_BYTES:
        return text
    stem, ending = posixpath.splitext(text)
    if len(ending.encode()) > 20:
        stem, ending = text, ""
    room = MAX_BYTES - len(ending.encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip(" .") + ending


def distinct(name: str, taken: set[str]) -> str:
    """`a.txt`, `a (2).txt`, …; names that differ only in case are one on some systems."""
    stem, ending = posixpath.splitext(name)
    number, candidate = 1, name
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{stem} ({number}){ending}"
    taken.add(candidate.casefold())
    return candidate
