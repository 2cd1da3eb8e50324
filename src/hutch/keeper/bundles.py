"""The file of an exported box: a compressed tar with a manifest, trees and one inner archive. Hostile ones are refused.

Unpacking needs no trust: only files, directories and links; every name stays below; links are made last, so that
nothing is ever written through one.
"""

import errno
import gzip
import os
import secrets
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from hutch.errors import FileMissing, HutchError, Invalid, QuotaExceeded

MANIFEST = "hutch.json"
_TREES = ("workspace", "home")
_FILES = (MANIFEST, "system.tar")
_PARTS = (MANIFEST, *_TREES, "system.tar")
_PIECE = 1 << 20
_MOST_ENTRIES = 2_000_000
_LONGEST_HEADERS = 4 * _PIECE
_MOST_SEGMENTS = 80_000
"""Of a sparse file: their list, of two numbers of up to 20 digits each, is a part of its headers."""


def pack(place: Path, file: Path) -> None:
    """All of the directory `place`; the file is there as a whole or not at all. The manifest comes first."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}~")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as tar:
            for name in _PARTS:
                if (place / name).exists():
                    _add(tar, place / name, name)
        draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """A file or a tree. Owners mean nothing elsewhere; what is no file, directory or link cannot be carried."""
    entry = tar.gettarinfo(path, name)
    if entry is None or not (entry.isreg() or entry.isdir() or entry.issym()):
        return
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    if entry.isreg():
        with path.open("rb") as file:
            if path.stat().st_blocks * 512 < entry.size:
                _add_sparse(tar, entry, file)
            else:
                tar.addfile(entry, file)
    else:
        tar.addfile(entry)
    tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
    if entry.isdir():
        for child in sorted(path.iterdir()):
            _add(tar, child, f"{name}/{child.name}")


def _add_sparse(tar: tarfile.TarFile, entry: tarfile.TarInfo, file: IO[bytes]) -> None:
    """A file with holes, which stay holes: in the form that GNU tar calls 1.0 and every tarfile can read."""
    segments = _segments(file.fileno(), entry.size)
    numbers = [len(segments), *(number for segment in segments for number in segment)]
    listed = "".join(f"{number}\n" for number in numbers).encode()
    listed += bytes(-len(listed) % tarfile.BLOCKSIZE)
    entry.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": entry.name,
        "GNU.sparse.realsize": str(entry.size),
    }  # fmt: skip
    entry.size = len(listed) + sum(size for _, size in segments)
    tar.addfile(entry, cast(IO[bytes], _Segments(listed, segments, file)))


def _segments(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Where a file has data: offset and length. The last one is empty and lies at its end, as GNU tar wants it."""
    found: list[tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # nothing but a hole is left
        position = min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
        found.append((begin, position - begin))
        if len(found) > _MOST_SEGMENTS:
            raise QuotaExceeded(
                f"a file has more than {_MOST_SEGMENTS} holes", op="export", retryable=False,
                remedy="copy it to one without holes: cp --sparse=never",
            )  # fmt: skip
    return [*found, (size, 0)]


class _Segments:
    """What `addfile` reads: the list, then the data of each segment."""

    def __init__(self, listed: bytes, segments: list[tuple[int, int]], file: IO[bytes]) -> None:
        self._listed = listed
        self._segments = segments
        self._file = file
        self._position = 0

    def read(self, size: int) -> bytes:
        parts = [self._listed[:size]]
        self._listed = self._listed[size:]
        size -= len(parts[0])
        while size and self._segments:
            begin, length = self._segments[0]
            begin, wanted = begin + self._position, min(size, length - self._position)
            self._position += wanted
            size -= wanted
            if wanted:
                self._file.seek(begin)
                parts.append(self._file.read(wanted).ljust(wanted, b"\0"))
            if self._position == length:
                self._segments.pop(0)
                self._position = 0
        return b"".join(parts)


def unpack(file: Path, place: Path, *, most: int = 1 << 40) -> None:
    """Invalid: it is no such file, or one that was made to hurt. `most` bounds what it may become."""
    try:
        with gzip.open(file, "rb") as raw:
            source = _Forward(raw, most)
            with tarfile.open(fileobj=cast(IO[bytes], source), mode="r:") as tar:
                links = _unpack(tar, source, place, most)
            while source.read(_PIECE):
                pass  # to the checksum at the end
        _link(links)
    except HutchError:
        raise
    except FileNotFoundError as error:
        raise FileMissing(f"there is no {file}", op="import") from error
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise Invalid(f"this is no exported box, or it is cut off: {error}", op="import") from error


class _Forward:
    """A stream as tarfile reads it, never back and never far at once: sizes in a hostile archive are negative, to make
    its reader go round for ever, or that of all memory."""

    def __init__(self, raw: gzip.GzipFile, most: int) -> None:
        self._raw = raw
        self._most = most
        self._in_headers = _LONGEST_HEADERS
        """Bytes that may still be read before there is an entry."""

    def expect_headers(self) -> None:
        """An entry's headers follow, which tarfile keeps in memory: also a list of segments without an end."""
        self._in_headers = _LONGEST_HEADERS

    def expect_content(self) -> None:
        self._in_headers = self._most + 4 * _PIECE

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._raw.tell()

    def seek(self, position: int) -> None:
        if position < self.tell():
            raise Invalid("this is no exported box: it leads back into itself", op="import")
        self._raw.seek(self._allowed(position))

    def read(self, size: int) -> bytes:
        if size > 2 * _PIECE:
            raise Invalid(f"this is no exported box: it has a header of {size} bytes", op="import")
        self._allowed(self.tell() + size)
        self._in_headers -= size
        if self._in_headers < 0:
            raise Invalid("this is no exported box: an entry has headers of megabytes", op="import")
        return self._raw.read(size)

    def _allowed(self, position: int) -> int:
        # The end of an archive is padded, and read for in whole pieces.
        if position > self._most + 4 * _PIECE:
            raise _too_large()
        return position


def _unpack(tar: tarfile.TarFile, source: _Forward, place: Path, most: int) -> dict[Path, str]:
    """Everything but the links, which are returned."""
    links: dict[Path, str] = {}
    count = 0
    while (entry := _next(tar, source)) is not None:
        count += 1
        most -= max(0, _stored(entry))
        if most < 0:
            raise _too_large()
        target = _below(place, entry)
        if count > _MOST_ENTRIES or target in links:
            raise Invalid(f"{entry.name!r} stands twice, or is one of too many", op="import")
        if entry.isdir():
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.chmod(entry.mode & 0o777 | 0o700)
        elif entry.issym():
            links[target] = entry.linkname
        elif entry.isreg():
            _write(tar, entry, target)
        else:
            raise Invalid(f"{entry.name!r} is neither file, directory nor link", op="import")
    return links


def _next(tar: tarfile.TarFile, source: _Forward) -> tarfile.TarInfo | None:
    source.expect_headers()
    entry = tar.next()
    tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
    source.expect_content()
    return entry


def _stored(entry: tarfile.TarInfo) -> int:
    """Bytes on disk. Segments of a sparse file that are not in order, or lie beyond its end, are made to hurt."""
    segments: list[tuple[int, int]] | None = getattr(entry, "sparse", None)
    if segments is None:
        return entry.size
    end = 0
    for offset, size in segments:
        if offset < end or size < 0 or offset + size > entry.size:
            raise Invalid(f"{entry.name!r} has segments that make no sense", op="import")
        end = offset + size
    return sum(size for _, size in segments)


def _link(links: Mapping[Path, str]) -> None:
    for target in links:
        if not links.keys().isdisjoint(target.parents):
            raise Invalid(f"{target.name!r} lies below a link", op="import")
    for target, said in links.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(said)


def _too_large() -> QuotaExceeded:
    return QuotaExceeded("the exported box is larger than it may be", op="import")


def _below(place: Path, entry: tarfile.TarInfo) -> Path:
    """Each part has its own form: a link in its place would be read as what it leads to."""
    parts = Path(entry.name).parts
    whole = (entry.isdir() and entry.name in _TREES) or (entry.isreg() and entry.name in _FILES)
    inside = len(parts) > 1 and parts[0] in _TREES and ".." not in parts
    if not whole and not inside:
        raise Invalid(f"an exported box has no {entry.name!r} of this kind", op="import")
    return place.joinpath(*parts)


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    content = tar.extractfile(entry)
    assert content is not None
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    segments: list[tuple[int, int]] | None = getattr(entry, "sparse", None)
    with os.fdopen(descriptor, "wb") as out:
        for offset, size in segments if segments is not None else ((0, entry.size),):
            content.seek(offset)
            out.seek(offset)
            _copy(content, out, size)
        out.truncate(entry.size)
    target.chmod(entry.mode & 0o777 | 0o600)


def _copy(content: IO[bytes], out: IO[bytes], size: int) -> None:
    while size:
        piece = content.read(min(size, _PIECE))
        if not piece:
            raise Invalid("this is no exported box, or it is cut off", op="import")
        out.write(piece)
        size -= len(piece)
