"""Files that come with a message or leave with the answer: bounded `inbox` and `outbox` directories with safe names.

The host application uses this on any `Box` of `hutch.api`:

    paths = await tools.attachments.put(box, message_id, {"report.pdf": data})     # /workspace/inbox/<message>/…
    collected = await tools.attachments.collect(box, message_id)                   # the files that send_file put there
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
"""Content of a file for the inbox. A `Path` is a file of the host that the application itself has chosen."""


class Attachment(Record, frozen=True, kw_only=True):
    """A file that left a box."""

    name: str
    data: bytes
    mime: str


class Collected(Record, frozen=True, kw_only=True):
    """Files from the outbox. `skipped` gives the reason for each file that was left out."""

    files: tuple[Attachment, ...] = ()
    skipped: dict[str, str] = msgspec.field(default_factory=dict)


class Bounds(Record, frozen=True, kw_only=True):
    """Limits for the files of one message."""

    files: int = 32
    file_bytes: int = 32 << 20
    total_bytes: int = 64 << 20


def inbox_path(message_id: str) -> str:
    return f"{INBOX}/{safe_name(message_id, instead='message')}"


def outbox_path(message_id: str) -> str:
    return f"{OUTBOX}/{safe_name(message_id, instead='message')}"


class Attachments:
    """Puts files into the inbox of a box and collects them from its outbox."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()

    async def put(self, box: Box, message_id: str, files: Mapping[str, Content]) -> tuple[str, ...]:
        """Put the files into the inbox of a message, all or none. Return their paths in the box in the given order."""
        if len(files) > self.bounds.files:
            raise Invalid(
                f"a message brings at most {self.bounds.files} files, not {len(files)}",
                op="attachments",
                remedy="put them into an archive",
            )
        directory, taken, paths, total = inbox_path(message_id), set[str](), list[str](), 0
        try:
            for name, content in files.items():
                path = f"{directory}/{unique_name(safe_name(name), taken)}"
                paths.append(path)
                room = min(self.bounds.file_bytes, self.bounds.total_bytes - total)
                total += (await box.files.write(path, _bounded(content, room, name))).size
        except BaseException:
            for path in paths:
                await box.files.remove(path, missing_ok=True)
            raise
        return tuple(paths)

    async def collect(self, box: Box, message_id: str) -> Collected:
        """Take the files out of the outbox of a message.

        A second collector finds nothing. If reading fails, the files are put back for the next attempt.
        """
        source, taken = outbox_path(message_id), f"{OUTBOX}/.taken-{secrets.token_hex(8)}"
        try:
            await box.files.move(source, taken)  # One rename: only one of two collectors succeeds.
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
            name = unique_name(safe_name(posixpath.basename(info.path)), names)
            reason = self._refusal(info, len(files), total)
            if reason:
                skipped[name] = reason
                continue
            # A process of the box may replace the file by a symlink now. It gains nothing: it could have copied what
            # its user may read, and we read with the same rights.
            try:
                data = await box.files.read(info.path, limit=self.bounds.file_bytes + 1)
            except (FileMissing, FileDenied, FileFailed, IsDirectory, Invalid) as error:
                skipped[name] = error.message
                continue
            if len(data) > self.bounds.file_bytes or total + len(data) > self.bounds.total_bytes:
                skipped[name] = "it grew while it was read"
                continue
            total += len(data)
            files.append(Attachment(name=name, data=data, mime=guess_mime(name)))
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


def guess_mime(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


async def _put_back(box: Box, taken: str, source: str) -> None:
    try:
        await box.files.move(taken, source)
    except HutchError:
        # The box is gone, or a new message has filled the same directory. The old files stay where they are.
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


MAX_NAME_BYTES = 150
"""Most bytes of a name in UTF-8. File systems take 255, and the receiver may lengthen the name."""

_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f]')
"""Characters that Windows refuses in a name, and control characters, which can move a terminal's cursor."""


def safe_name(name: str, *, instead: str = "file") -> str:
    """Return one plain file name from an untrusted one: no directory, no control character, no Windows device name, not
    hidden, not empty and not long."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    text = unicodedata.normalize("NFC", last.encode("utf-8", "replace").decode())
    # Format characters can reverse the writing direction: `exe.gpj` can look like `jpg.exe`.
    text = "".join(each for each in text if unicodedata.category(each) not in ("Cf", "Cs", "Co", "Cn"))
    text = " ".join(text.split())
    text = _FORBIDDEN.sub("_", text).strip(" .")
    if not text or not text.strip("_"):
        text = instead
    if _RESERVED.fullmatch(text):
        text = f"_{text}"
    return _shortened(text)


def _shortened(text: str) -> str:
    if len(text.encode()) <= MAX_NAME_BYTES:
        return text
    stem, ending = posixpath.splitext(text)
    if len(ending.encode()) > 20:
        stem, ending = text, ""
    room = MAX_NAME_BYTES - len(ending.encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip(" .") + ending


def unique_name(name: str, taken: set[str]) -> str:
    """Return `a.txt`, `a (2).txt` and so on. Names that differ only in case are the same on some systems."""
    stem, ending = posixpath.splitext(name)
    number, candidate = 1, name
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{stem} ({number}){ending}"
    taken.add(candidate.casefold())
    return candidate
