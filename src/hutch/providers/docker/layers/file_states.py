"""Streams of a box's files compared, merged, and written as a layer of an image, without unpacking them.

A stream (`guest_bundle.files_stream`) is read once: of each file only a digest and the place of its content are kept.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from typing import IO, Any, NamedTuple

from hutch.errors import EngineError
from hutch.model.layers import Change, ChangeKind
from hutch.providers.docker.layers.box_files import Spool
from hutch.providers.guest_bundle.files_stream import BLOCK, Header, read_header, write_header

MAX_CHANGES = 20_000
MAX_CONFLICTS = 1000
_PAGE = 4096
_TEXT_BYTES = 256 << 10


class Entry(NamedTuple):
    """One name in a stream."""

    header: Header
    at: int
    """Where its content begins in the stream."""
    digest: bytes
    holder: str
    """The name whose content it has: its own, unless it is a further name of a file."""

    @property
    def facts(self) -> tuple[object, ...]:
        """All that counts for a program that uses it; times do not."""
        header = self.header
        attributes = tuple(sorted((header.get("attributes") or {}).items()))
        return (
            header["type"], header.get("mode"), header.get("uid"), header.get("gid"), header.get("target"),
            header.get("size"), attributes, self.digest,
        )  # fmt: skip

    @property
    def is_directory(self) -> bool:
        return bool(self.header["type"] == "directory")


class FileState:
    """A stream in a file of ours, by the paths in it. Reading it blocks."""

    def __init__(self, stream: Spool) -> None:
        self._stream = stream
        self.entries: dict[str, Entry] = {}
        stream.seek(0)
        try:
            while (header := read_header(stream)) is not None:
                self.entries[str(header["path"])] = self._entry(header)
        except (ValueError, KeyError, TypeError, EOFError, OSError) as error:
            raise EngineError(f"a state of a box's files cannot be read: {error}", op="layers") from error

    def _entry(self, header: Header) -> Entry:
        if first := header.get("same"):
            holder = self.entries[str(first)]
            whole = {**holder.header, "path": header["path"]}
            return Entry(whole, holder.at, holder.digest, holder.holder)
        at = self._stream.tell()
        digest = hashlib.sha256()
        for offset, length in header.get("segments", ()):
            # How a file is divided into data and holes does not count, so pages of zeros do not either.
            for start in range(0, int(length), _PAGE):
                page = self._stream.read(min(_PAGE, length - start)).rstrip(b"\0")
                if page:
                    digest.update(b"%d:" % (offset + start) + page)
        return Entry(header, at, digest.digest(), str(header["path"]))

    def content(self, entry: Entry, out: IO[bytes]) -> None:
        """Copy the data of an entry, as it is in the stream."""
        self._stream.seek(entry.at)
        left = sum(length for _, length in entry.header.get("segments", ()))
        while left:
            piece = self._stream.read(min(BLOCK, left))
            out.write(piece)
            left -= len(piece)

    def text(self, entry: Entry | None) -> str | None:
        """The content of a file, if it is a text of moderate length; "" if there is no such file."""
        if entry is None:
            return ""
        if entry.header["type"] != "file" or entry.header["size"] > _TEXT_BYTES:
            return None
        data = self.whole(entry).read()
        try:
            return None if b"\0" in data else data.decode()
        except UnicodeDecodeError:
            return None

    def whole(self, entry: Entry) -> IO[bytes]:
        """The content of a file with its holes."""
        return io.BufferedReader(_WithHoles(self._stream, entry))


class _WithHoles(io.RawIOBase):
    def __init__(self, stream: Spool, entry: Entry) -> None:
        self._stream = stream
        self._at = 0
        self._size = int(entry.header["size"])
        self._segments: list[tuple[int, int, int]] = []
        place = entry.at
        for offset, length in entry.header["segments"]:
            self._segments.append((offset, length, place))
            place += length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._segments and self._at >= self._segments[0][0] + self._segments[0][1]:
            self._segments.pop(0)
        begin, length, place = self._segments[0] if self._segments else (self._size, 0, 0)
        if self._at < begin:  # a hole
            count = min(len(buffer), begin - self._at)
            buffer[:count] = bytes(count)
        else:
            count = min(len(buffer), begin + length - self._at)
            if count:
                self._stream.seek(place + self._at - begin)
                buffer[:count] = self._stream.read(count)
        self._at += count
        return count


# --- comparing ------------------------------------------------------------------------------------------------------


def differing(before: FileState, after: FileState) -> list[str]:
    """The paths that differ, in order."""
    one, other = before.entries, after.entries
    return sorted(path for path in one.keys() | other.keys() if _facts(one.get(path)) != _facts(other.get(path)))


def _facts(entry: Entry | None) -> tuple[object, ...] | None:
    return None if entry is None else entry.facts


def change(path: str, before: Entry | None, after: Entry | None) -> Change:
    """One difference as the public API shows it."""
    old, new = _present(before, after), _present(after, before)
    kind = ChangeKind.CHANGED if old and new else ChangeKind.ADDED if new else ChangeKind.REMOVED
    shown = (after if after is not None and new else before) or after
    sides: dict[str, Any] = {}
    for name, entry in (("before", before), ("after", after)):
        if entry is not None and entry.header["type"] != "gone":
            sides[f"size_{name}"] = int(entry.header.get("size") or 0)
            sides[f"mode_{name}"] = entry.header.get("mode")
    assert shown is not None
    gone = shown.header["type"] == "gone"
    return Change(path=f"/{path}", kind=kind, type="other" if gone else shown.header["type"], **sides)


def _present(entry: Entry | None, other: Entry | None) -> bool:
    """Whether the path exists in a state. What neither state has changed in the root is as in the image."""
    if entry is not None:
        return bool(entry.header["type"] != "gone")
    return other is not None and (other.header["type"] == "gone" or bool(other.header.get("over")))


# --- merging --------------------------------------------------------------------------------------------------------


class Merged:
    """What a fork has changed since `base`, brought into `ours`."""

    def __init__(self, base: FileState, ours: FileState, theirs: FileState) -> None:
        self._ours, self._theirs = ours, theirs
        mine, changed = set(differing(base, ours)), differing(base, theirs)
        self.paths = [path for path in changed if not _same(ours, theirs, path)]
        """The paths that the merge changes."""
        wrong = {path for path in self.paths if path in mine}
        wrong |= _below_removed(self.paths, theirs, mine, ours)
        wrong |= _below_removed([path for path in mine if not _same(ours, theirs, path)], ours, set(changed), theirs)
        self.conflicts = sorted(wrong)[:MAX_CONFLICTS]

    def write(self, out: Spool) -> None:
        """Write the merged state as a stream."""
        wanted = set(self.paths)
        emitted: dict[tuple[int, str], str] = {}
        for path in sorted(self._ours.entries.keys() | wanted):
            source = self._theirs if path in wanted else self._ours
            entry = source.entries.get(path)
            if entry is None:
                continue  # the fork has removed it
            name = (id(source), entry.holder)
            if first := emitted.get(name):
                write_header(out.write, {**_without_content(entry.header), "same": first})
                continue
            emitted[name] = path
            write_header(out.write, entry.header)
            source.content(entry, out)
        write_header(out.write, None)


def _without_content(header: Header) -> Header:
    return {name: value for name, value in header.items() if name not in ("segments", "size")}


def _same(ours: FileState, theirs: FileState, path: str) -> bool:
    return _facts(ours.entries.get(path)) == _facts(theirs.entries.get(path))


def _below_removed(changed: Iterable[str], side: FileState, others: set[str], other: FileState) -> set[str]:
    """Paths that one side has changed below a directory which the other removed, or made something else of."""
    found = set()
    for path in changed:
        if path not in side.entries:
            continue
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            there = other.entries.get(above)
            if above in others and (there is None or not there.is_directory):
                found.add(path)
                break
    return found


# --- a layer of an image --------------------------------------------------------------------------------------------


def write_layer(state: FileState, path: str) -> None:
    """Write a state as the tar of one layer over the box's image."""
    with open(path, "xb") as out, tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        written: dict[str, str] = {}
        for name, entry in sorted(state.entries.items()):
            header = entry.header
            above, _, last = name.rpartition("/")
            if header["type"] == "gone":
                tar.addfile(tarfile.TarInfo(f"{above}/.wh.{last}" if above else f".wh.{last}"))
                continue
            info = tarfile.TarInfo(name)
            info.mode, info.uid, info.gid = header["mode"], header["uid"], header["gid"]
            info.mtime = header["mtime"] // 10**9
            info.pax_headers = {
                f"SCHILY.xattr.{key}": bytes.fromhex(value).decode("utf-8", "surrogateescape")
                for key, value in (header.get("attributes") or {}).items()
            }
            if entry.holder in written:
                info.type, info.linkname = tarfile.LNKTYPE, written[entry.holder]
                tar.addfile(info)
            elif header["type"] == "file":
                info.size = header["size"]
                tar.addfile(info, state.whole(entry))
            elif header["type"] in _TAR_TYPES:
                info.type, info.linkname = _TAR_TYPES[header["type"]], header.get("target", "")
                tar.addfile(info)
            written.setdefault(entry.holder, name)


_TAR_TYPES = {"directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "fifo": tarfile.FIFOTYPE}

# --- text -----------------------------------------------------------------------------------------------------------

TEXT_SECONDS = 5.0
DIFF_PROGRAM = """
import difflib, json, sys
for line in sys.stdin:
    path, before, after = json.loads(line)
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True),
                                 "a" + path, "b" + path)
    text = "".join(each if each.endswith("\\n") else each + "\\n\\\\ No newline at end of file\\n" for each in lines)
    print(json.dumps([path, text]), flush=True)
"""
"""Runs in a process of its own that is ended after `TEXT_SECONDS`: a box can write files that take hours to compare."""


def text_pairs(before: FileState, after: FileState, paths: list[str]) -> bytes:
    """The input of the program: one line for each pair of texts, up to a few megabytes."""
    lines, left = [], 2 << 20
    for path in paths:
        one, other = before.entries.get(path), after.entries.get(path)
        pair = [before.text(one), after.text(other)]
        if None in pair or (one is None and other is None):
            continue
        line = json.dumps([f"/{path}", *pair]).encode()
        left -= len(line)
        if left < 0:
            break
        lines.append(line + b"\n")
    return b"".join(lines)
