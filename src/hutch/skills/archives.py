"""Unpacking untrusted zip files, without relying on anything they say about themselves."""

import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hutch.errors import FileTooLarge, Invalid, Refused
from hutch.skills.content import EXCLUDED_NAMES, MAX_FILES, MAX_PACKAGE_BYTES, Budget, check_path, write_file

MAX_RATIO = 200
RATIO_FROM = 1 << 20
"""The ratio of a smaller file is not checked; zeros shrink a thousandfold."""
MAX_ENTRIES = 2 * MAX_FILES
"""Directories and excluded names count too."""
_PIECE = 1 << 16
_CENTRAL = b"PK\x01\x02"
"""The signature before each entry of the archive's directory."""
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def unpack(archive: bytes, name: str, into: Path) -> None:
    """Unpack an archive. Raises Refused, FileTooLarge or Invalid with the entry's name; `into` may then hold a part."""
    if len(archive) > MAX_PACKAGE_BYTES:
        raise FileTooLarge(
            f"the archive has more than {MAX_PACKAGE_BYTES >> 20} MB", details={"limit": MAX_PACKAGE_BYTES}
        )
    # The library creates an object for each entry before they can be counted, and a million of them take a gigabyte.
    _check_count(archive.count(_CENTRAL))
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            _unpack(opened, into)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise Invalid(f"{os.path.basename(name)} is not a zip file that can be read: {error}") from error


def _unpack(archive: zipfile.ZipFile, into: Path) -> None:
    entries = archive.infolist()
    _check_overlaps(entries)
    budget = Budget()
    seen: set[str] = set()
    for entry in entries:
        name = _checked_name(entry)
        if name is None:
            continue
        if name in seen:
            # Programs differ in which one they use, so what was reviewed might not be what is installed.
            raise Refused(f"{name} is in the archive twice")
        seen.add(name)
        budget.add_file(name, entry.file_size)
        budget.add_bytes(-entry.file_size)
        with archive.open(entry) as reading:
            data = b"".join(_bounded(reading, entry, budget))
        write_file(os.path.join(into, name), data, executable=bool((entry.external_attr >> 16) & 0o111))


def _check_count(entries: int) -> None:
    if entries > MAX_ENTRIES:
        raise FileTooLarge(f"the archive has {entries} entries, and {MAX_ENTRIES} are allowed")


def _checked_name(entry: zipfile.ZipInfo) -> str | None:
    """Return None for a directory, or for a name that is never content."""
    raw = getattr(entry, "orig_filename", entry.filename)
    if "\0" in raw or "\\" in raw:
        raise Refused(f"entry {raw[:200]!a} holds characters that no name in a package may have")
    name = entry.filename
    if name.endswith("/"):
        if name != "/":
            check_path(name.rstrip("/"))
        return None
    check_path(name)
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        kind = "symbolic link" if stat.S_ISLNK(mode) else "special file"
        raise Refused(f"{name} is a {kind}, and a skill holds only files", remedy="put a copy in its place")
    if entry.flag_bits & _ENCRYPTED:
        raise Refused(f"{name} is encrypted", remedy="pack it without a password")
    if entry.compress_type not in _METHODS:
        raise Refused(f"{name} is packed by a method other than deflate", remedy="pack it with deflate")
    return None if EXCLUDED_NAMES.intersection(name.split("/")) else name


def _check_overlaps(entries: list[zipfile.ZipInfo]) -> None:
    """Refuse entries that share bytes of the archive: that is how 40 kB become terabytes within a plausible ratio."""
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise Refused(f"{entry.filename[:200]!r} overlaps another entry of the archive")
        end = entry.header_offset + 30 + entry.compress_size


def _bounded(reading: IO[bytes], entry: zipfile.ZipInfo, budget: Budget) -> Iterator[bytes]:
    """Yield the content and count what comes out, because the declared size is only a claim."""
    size = 0
    while piece := reading.read(_PIECE):
        size += len(piece)
        budget.add_bytes(len(piece))
        if size > entry.file_size:
            raise Refused(f"{entry.filename} is larger than the archive says")
        if size > RATIO_FROM and size > MAX_RATIO * max(entry.compress_size, 1):
            raise Refused(f"{entry.filename} unpacks to more than {MAX_RATIO} times its packed size")
        yield piece
