"""Zip files of strangers, unpacked without trust in anything they say about themselves."""

import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hutch.errors import FileTooLarge, Invalid, Refused
from hutch.skills.content import LEFT_OUT, MOST_BYTES, MOST_FILES, Budget, check_plain, write_file

MOST_RATIO = 200
RATIO_FROM = 1 << 20
"""A small file may shrink as much as it likes; zeros shrink a thousandfold."""
MOST_ENTRIES = 2 * MOST_FILES
"""With directories and what is left out."""
_PIECE = 1 << 16
_CENTRAL = b"PK\x01\x02"
"""Before each entry of the archive's directory."""
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def unpack(archive: bytes, name: str, into: Path) -> None:
    """Raises Refused, FileTooLarge or Invalid, with the entry's name; then `into` may hold a part."""
    if len(archive) > MOST_BYTES:
        raise FileTooLarge(f"the archive has more than {MOST_BYTES >> 20} MB", details={"limit": MOST_BYTES})
    # The library makes an object of each entry before anybody can ask how many there are, and a million is a gigabyte.
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
            # Which one counts differs from program to program: what was looked at might not be what is installed.
            raise Refused(f"{name} stands twice in the archive")
        seen.add(name)
        budget.add_file(name, entry.file_size)
        budget.add_bytes(-entry.file_size)
        with archive.open(entry) as reading:
            data = b"".join(_bounded(reading, entry, budget))
        write_file(os.path.join(into, name), data, executable=bool((entry.external_attr >> 16) & 0o111))


def _check_count(entries: int) -> None:
    if entries > MOST_ENTRIES:
        raise FileTooLarge(f"the archive has {entries} entries, and {MOST_ENTRIES} are allowed")


def _checked_name(entry: zipfile.ZipInfo) -> str | None:
    """None: a directory, or something that is never content."""
    raw = getattr(entry, "orig_filename", entry.filename)
    if "\0" in raw or "\\" in raw:
        raise Refused(f"entry {raw[:200]!a} holds characters that no name in a package may have")
    name = entry.filename
    if name.endswith("/"):
        if name != "/":
            check_plain(name.rstrip("/"))
        return None
    check_plain(name)
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        kind = "symbolic link" if stat.S_ISLNK(mode) else "special file"
        raise Refused(f"{name} is a {kind}, and a skill holds only files", remedy="put a copy in its place")
    if entry.flag_bits & _ENCRYPTED:
        raise Refused(f"{name} is encrypted", remedy="pack it without a password")
    if entry.compress_type not in _METHODS:
        raise Refused(f"{name} is packed by a method other than deflate", remedy="pack it with deflate")
    return None if LEFT_OUT.intersection(name.split("/")) else name


def _check_overlaps(entries: list[zipfile.ZipInfo]) -> None:
    """Entries that share bytes of the archive are how 40 kB become terabytes within an honest-looking ratio."""
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise Refused(f"{entry.filename[:200]!r} overlaps another entry of the archive")
        end = entry.header_offset + 30 + entry.compress_size


def _bounded(reading: IO[bytes], entry: zipfile.ZipInfo, budget: Budget) -> Iterator[bytes]:
    """The declared size is only a claim: what comes out is counted."""
    size = 0
    while piece := reading.read(_PIECE):
        size += len(piece)
        budget.add_bytes(len(piece))
        if size > entry.file_size:
            raise Refused(f"{entry.filename} is larger than the archive says")
        if size > RATIO_FROM and size > MOST_RATIO * max(entry.compress_size, 1):
            raise Refused(f"{entry.filename} unpacks to more than {MOST_RATIO} times its packed size")
        yield piece
