"""The archive that a box's own `tar` writes of its system, looked at by the host as it comes.

The box's programs are the box's: its `tar` may write for ever, or nonsense. Nothing is unpacked on the host, but what
is kept there must be an archive of plain files and links, and no larger than the box's disk can be.
"""

import tarfile

from hutch.errors import HutchError, Invalid, QuotaExceeded

BLOCK = 512
LONGEST_HEADER = 64 << 10
"""Bytes of a name, or of fields in the pax form."""
SLACK = 16 << 20
"""Headers and padding: the disk that they describe does not hold them."""
_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE)
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_SPARSE)
_MORE_SEGMENTS, _STILL_MORE = 482, 504
"""Where a header of a sparse file, and each block after it, says that its list of segments goes on."""


class SystemArchive:
    """Give it every piece; it raises QuotaExceeded or Invalid as soon as one must not be kept."""

    def __init__(self, most: int, entries: int) -> None:
        self._left = most + SLACK
        self._entries = entries
        self._block = bytearray()
        self._content = 0
        """Bytes to pass until the next header."""
        self._in_segments = False
        self._ended = False

    def take(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise QuotaExceeded("its archive is larger than the box's disk can be", op="export")
        view = memoryview(piece)
        while view:
            if self._content and not self._in_segments:
                passed = min(self._content, len(view))
                self._content -= passed
                view = view[passed:]
                continue
            wanted = BLOCK - len(self._block)
            self._block += view[:wanted]
            view = view[wanted:]
            if len(self._block) == BLOCK:
                block, self._block = bytes(self._block), bytearray()
                self._take_block(block)

    def end(self) -> None:
        if self._content or self._block or self._in_segments or not self._ended:
            raise _nonsense("it is cut off")

    def _take_block(self, block: bytes) -> None:
        if self._ended:
            return  # padding, which `take` has counted
        if self._in_segments:
            self._in_segments = bool(block[_STILL_MORE])
            return
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            self._ended = True
            return
        except tarfile.HeaderError as error:
            raise _nonsense(str(error)) from error
        self._take_header(entry, block)

    def _take_header(self, entry: tarfile.TarInfo, block: bytes) -> None:
        if entry.type not in (*_NAMES, *_PLAIN) or entry.size < 0:
            raise _nonsense(f"an entry of type {entry.type!r} and size {entry.size}")
        if entry.type in _NAMES and entry.size > LONGEST_HEADER:
            raise _nonsense(f"a name of {entry.size} bytes")
        if entry.type in _PLAIN:
            self._entries -= 1
            if self._entries < 0:
                raise QuotaExceeded("its archive has more files than the box's disk can hold", op="export")
        if entry.size > self._left:
            raise QuotaExceeded(f"one file of its archive has {entry.size} bytes", op="export")
        if entry.type == tarfile.GNUTYPE_SPARSE:
            self._in_segments = bool(block[_MORE_SEGMENTS])
        if entry.type not in (tarfile.LNKTYPE, tarfile.SYMTYPE):
            self._content = -(-entry.size // BLOCK) * BLOCK


def _nonsense(what: str) -> HutchError:
    return Invalid(f"what the box's tar wrote is no archive of files and links: {what}", op="export")
