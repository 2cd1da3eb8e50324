"""The file of an exported box: a compressed tar with a manifest, trees and one inner archive. Hostile ones are refused.

Unpacking needs no trust: only files, directories and links; every name stays below; links are made last, so that
nothing is ever written through one.
"""

import gzip
import os
import secrets
import shutil
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


def pack(place: Path, file: Path) -> None:
    """All of the directory `place`; the file is there as a whole or not at all. The manifest comes first."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}~")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as tar:
            for name in _PARTS:
                if (place / name).exists():
                    tar.add(place / name, name, filter=_nobodys)
        draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)


def unpack(file: Path, place: Path, *, most: int = 1 << 40) -> None:
    """Invalid: it is no such file, or one that was made to hurt. `most` bounds what it may become."""
    try:
        with gzip.open(file, "rb") as raw:
            source = _Forward(raw, most)
            with tarfile.open(fileobj=cast(IO[bytes], source), mode="r:") as tar:
                links = _unpack(tar, place, most)
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
        return self._raw.read(size)

    def _allowed(self, position: int) -> int:
        # The end of an archive is padded, and read for in whole pieces.
        if position > self._most + 4 * _PIECE:
            raise _too_large()
        return position


def _unpack(tar: tarfile.TarFile, place: Path, most: int) -> dict[Path, str]:
    """Everything but the links, which are returned."""
    links: dict[Path, str] = {}
    count = 0
    while (entry := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
        count += 1
        most -= max(0, entry.size)
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


def _link(links: Mapping[Path, str]) -> None:
    for target in links:
        if not links.keys().isdisjoint(target.parents):
            raise Invalid(f"{target.name!r} lies below a link", op="import")
    for target, said in links.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(said)


def _too_large() -> QuotaExceeded:
    return QuotaExceeded("the exported box is larger than it may be", op="import")


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Owners mean nothing elsewhere; what is no file, directory or link cannot be carried."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isreg() or entry.isdir() or entry.issym() else None


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
    with os.fdopen(descriptor, "wb") as out:
        shutil.copyfileobj(content, out, _PIECE)
    target.chmod(entry.mode & 0o777 | 0o600)
