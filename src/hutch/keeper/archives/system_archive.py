"""A check of the archive that a box's own `tar` writes of its system, made by the host while it arrives.

The box controls its programs: its `tar` may write for ever, or nonsense. Nothing is unpacked on the host, but what is
kept there must be an archive of plain files and links, and no larger than the box's disk can be.
"""

import tarfile

from hutch.errors import HutchError, Invalid, QuotaExceeded

BLOCK = 512
MAX_HEADER_BYTES = 64 << 10
"""Limit for one long name, or for one header in the pax format."""
OVERHEAD_BYTES = 16 << 20
"""Allowance for headers and padding, which take no space on the box's disk."""
_NAME_TYPES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE)
_FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_SPARSE)
_SPARSE_EXTENDED, _SPARSE_CONTINUED = 482, 504
"""Offsets of the flag that the list of segments goes on: in a sparse header, and in each block after it."""


class SystemArchive:
    """Checks an archive chunk by chunk. It raises QuotaExceeded or Invalid as soon as a chunk must not be kept."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self._left = max_bytes + OVERHEAD_BYTES
        self._entries = max_entries
        self._block = bytearray()
        self._content = 0
        """Bytes to skip until the next header."""
        self._in_segments = False
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        self._left -= len(chunk)
        if self._left < 0:
            raise QuotaExceeded("its archive is larger than the box's disk can be", op="export")
        view = memoryview(chunk)
        while view:
            if self._content and not self._in_segments:
                skipped = min(self._content, len(view))
                self._content -= skipped
                view = view[skipped:]
                continue
            wanted = BLOCK - len(self._block)
            self._block += view[:wanted]
            view = view[wanted:]
            if len(self._block) == BLOCK:
                block, self._block = bytes(self._block), bytearray()
                self._check_block(block)

    def end(self) -> None:
        if self._content or self._block or self._in_segments or not self._ended:
            raise _invalid("it is cut off")

    def _check_block(self, block: bytes) -> None:
        if self._ended:
            return  # This is padding, which `feed` has counted.
        if self._in_segments:
            self._in_segments = bool(block[_SPARSE_CONTINUED])
            return
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            self._ended = True
            return
        except tarfile.HeaderError as error:
            raise _invalid(str(error)) from error
        self._check_header(entry, block)

    def _check_header(self, entry: tarfile.TarInfo, block: bytes) -> None:
        if entry.type not in (*_NAME_TYPES, *_FILE_TYPES) or entry.size < 0:
            raise _invalid(f"an entry of type {entry.type!r} and size {entry.size}")
        if entry.type in _NAME_TYPES and entry.size > MAX_HEADER_BYTES:
            raise _invalid(f"a name of {entry.size} bytes")
        if entry.type in _FILE_TYPES:
            self._entries -= 1
            if self._entries < 0:
                raise QuotaExceeded("its archive has more files than the box's disk can hold", op="export")
        if entry.size > self._left:
            raise QuotaExceeded(f"one file of its archive has {entry.size} bytes", op="export")
        if entry.type == tarfile.GNUTYPE_SPARSE:
            self._in_segments = bool(block[_SPARSE_EXTENDED])
        if entry.type not in (tarfile.LNKTYPE, tarfile.SYMTYPE):
            self._content = -(-entry.size // BLOCK) * BLOCK


def _invalid(what: str) -> HutchError:
    return Invalid(f"what the box's tar wrote is no archive of files and links: {what}", op="export")
