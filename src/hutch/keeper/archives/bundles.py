"""The file of an exported box: a compressed tar with a manifest, trees and one inner archive.

A hostile file does no harm: only files, directories and links are unpacked, every name stays below the target
directory, and links are created last, so that nothing is ever written through one.
"""

import errno
import gzip
import os
import secrets
import stat
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from hutch.errors import FileMissing, HutchError, Invalid, QuotaExceeded

MANIFEST = "hutch.json"
_TREES = ("workspace", "home")
_FILES = (MANIFEST, "system.tar")
_PARTS = (MANIFEST, *_TREES, "system.tar", "checkpoints")
_CHUNK_BYTES = 1 << 20
_MAX_ENTRIES = 2_000_000
_MAX_HEADER_BYTES = 4 * _CHUNK_BYTES
_MAX_SEGMENTS = 80_000
"""Limit for a sparse file, whose list of segments (two numbers of up to 20 digits each) is part of its headers."""


def pack(place: Path, file: Path) -> None:
    """Write the parts in the directory `place` to `file`, manifest first. The file appears whole or not at all."""
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
    """Add a file or a tree, without owners. Anything but files, directories and links is skipped.

    A further name of a file, which two states of the box share, is a link to the first.
    """
    entry = tar.gettarinfo(path, name)
    if entry is None or not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
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
    tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all members otherwise.
    if entry.isdir():
        for child in sorted(path.iterdir()):
            _add(tar, child, f"{name}/{child.name}")


def _add_sparse(tar: tarfile.TarFile, entry: tarfile.TarInfo, file: IO[bytes]) -> None:
    """Add a file with holes, in the sparse format 1.0 of GNU tar, which every tarfile can read."""
    segments = _segments(file.fileno(), entry.size)
    numbers = [len(segments), *(number for segment in segments for number in segment)]
    listed = "".join(f"{number}\n" for number in numbers).encode()
    listed += bytes(-len(listed) % tarfile.BLOCKSIZE)
    entry.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": entry.name,
        "GNU.sparse.realsize": str(entry.size),
    }  # fmt: skip
    entry.size = len(listed) + sum(size for _, size in segments)
    tar.addfile(entry, cast(IO[bytes], _SparseReader(listed, segments, file)))


def _segments(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Return offset and length of the data in a file. GNU tar expects an empty last segment at its end."""
    found: list[tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # The rest is a hole.
        position = min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
        found.append((begin, position - begin))
        if len(found) > _MAX_SEGMENTS:
            raise QuotaExceeded(
                f"a file has more than {_MAX_SEGMENTS} holes", op="export", retryable=False,
                remedy="copy it to one without holes: cp --sparse=never",
            )  # fmt: skip
    return [*found, (size, 0)]


class _SparseReader:
    """The file that `addfile` reads: the list of segments, then their data."""

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
    """Unpack a file to at most `most` bytes.

    Raises:
        Invalid: It is no exported box, or a hostile one.
        QuotaExceeded: It would become larger than `most` bytes.
        FileMissing: There is no such file.
    """
    try:
        with gzip.open(file, "rb") as raw:
            source = _ForwardReader(raw, most)
            with tarfile.open(fileobj=cast(IO[bytes], source), mode="r:") as tar:
                links = _unpack(tar, source, place, most)
            while source.read(_CHUNK_BYTES):
                pass  # Reads up to the checksum at the end.
        _create_links(links)
    except HutchError:
        raise
    except FileNotFoundError as error:
        raise FileMissing(f"there is no {file}", op="import") from error
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise Invalid(f"this is no exported box, or it is cut off: {error}", op="import") from error


class _ForwardReader:
    """A stream that tarfile can neither rewind nor read in large chunks.

    Sizes in a hostile archive are negative, to make its reader loop for ever, or huge, to use up all memory.
    """

    def __init__(self, raw: gzip.GzipFile, most: int) -> None:
        self._raw = raw
        self._most = most
        self._in_headers = _MAX_HEADER_BYTES
        """Bytes that may still be read before the next entry must be complete."""

    def expect_headers(self) -> None:
        """Limit what follows: tarfile keeps an entry's headers in memory, even an endless list of segments."""
        self._in_headers = _MAX_HEADER_BYTES

    def expect_content(self) -> None:
        self._in_headers = self._most + 4 * _CHUNK_BYTES

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._raw.tell()

    def seek(self, position: int) -> None:
        if position < self.tell():
            raise Invalid("this is no exported box: it leads back into itself", op="import")
        self._raw.seek(self._allowed(position))

    def read(self, size: int) -> bytes:
        if size > 2 * _CHUNK_BYTES:
            raise Invalid(f"this is no exported box: it has a header of {size} bytes", op="import")
        self._allowed(self.tell() + size)
        self._in_headers -= size
        if self._in_headers < 0:
            raise Invalid("this is no exported box: an entry has headers of megabytes", op="import")
        return self._raw.read(size)

    def _allowed(self, position: int) -> int:
        # The end of an archive is padded, and read in whole chunks.
        if position > self._most + 4 * _CHUNK_BYTES:
            raise _too_large()
        return position


def _unpack(tar: tarfile.TarFile, source: _ForwardReader, place: Path, most: int) -> dict[Path, str]:
    """Unpack everything but the links, which are returned."""
    links: dict[Path, str] = {}
    count = 0
    while (entry := _next(tar, source)) is not None:
        count += 1
        most -= max(0, _size_on_disk(entry))
        if most < 0:
            raise _too_large()
        target = _target_path(place, entry)
        if count > _MAX_ENTRIES or target in links:
            raise Invalid(f"{entry.name!r} stands twice, or is one of too many", op="import")
        if entry.isdir():
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.chmod(entry.mode & 0o777 | 0o700)
        elif entry.issym():
            links[target] = entry.linkname
        elif entry.islnk():
            _link(_target_path(place, entry, entry.linkname), target)
        elif entry.isreg():
            _write(tar, entry, target)
        else:
            raise Invalid(f"{entry.name!r} is neither file, directory nor link", op="import")
    return links


def _next(tar: tarfile.TarFile, source: _ForwardReader) -> tarfile.TarInfo | None:
    source.expect_headers()
    entry = tar.next()
    tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all members otherwise.
    source.expect_content()
    return entry


def _size_on_disk(entry: tarfile.TarInfo) -> int:
    """Return the bytes on disk. Segments that are out of order or lie beyond the end of the file are refused."""
    segments: list[tuple[int, int]] | None = getattr(entry, "sparse", None)
    if segments is None:
        return entry.size
    end = 0
    for offset, size in segments:
        if offset < end or size < 0 or offset + size > entry.size:
            raise Invalid(f"{entry.name!r} has segments that make no sense", op="import")
        end = offset + size
    return sum(size for _, size in segments)


def _create_links(links: Mapping[Path, str]) -> None:
    for target in links:
        if not links.keys().isdisjoint(target.parents):
            raise Invalid(f"{target.name!r} lies below a link", op="import")
    for target, destination in links.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(destination)


def _too_large() -> QuotaExceeded:
    return QuotaExceeded("the exported box is larger than it may be", op="import")


def _target_path(place: Path, entry: tarfile.TarInfo, name: str = "") -> Path:
    """Return the path of an entry, or of the file that it links to. A link in place of a part is refused: it would be
    followed later."""
    name = name or entry.name
    parts = Path(name).parts
    checkpoints = parts[:1] == ("checkpoints",)
    if checkpoints and (len(parts) < 3 or not (parts[1].isascii() and parts[1].isdigit())):
        if entry.isdir() and len(parts) < 3:
            return place.joinpath(*parts)
        raise Invalid(f"an exported box has no {name!r} of this kind", op="import")
    below = parts[2:] if checkpoints else parts
    whole = (entry.isdir() and len(below) == 1 and below[0] in _TREES) or (entry.isreg() and name in _FILES)
    inside = len(below) > 1 and below[0] in _TREES and ".." not in parts
    if not whole and not inside:
        raise Invalid(f"an exported box has no {name!r} of this kind", op="import")
    return place.joinpath(*parts)


def _link(source: Path, target: Path) -> None:
    """Give a file a further name. Links that lead elsewhere do not exist yet, so that the source is what it seems."""
    if not source.exists() or not stat.S_ISREG(source.lstat().st_mode):
        raise Invalid(f"{source.name!r} is no file that could be linked", op="import")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.link(source, target, follow_symlinks=False)


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
        chunk = content.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise Invalid("this is no exported box, or it is cut off", op="import")
        out.write(chunk)
        size -= len(chunk)
