"""From a packed stream to its bytes, whatever it was packed with, never more at once than asked for.

Everything that comes out is hashed (the layer's diff id) and counted against the bounds of a bomb.
"""

import bz2
import hashlib
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from hutch.errors import HutchError, Invalid, Refused, Unsupported
from hutch.images.settings import Bounds

_PIECE = 1 << 18
_FREE = 256 << 20
"""Output that is never too much: a file of zeros packs a thousandfold in all honesty."""
_HEADERS = 2048
"""Bytes of an archive that one entry may cost besides its content: two headers with theirs, and padding."""
_MAGIC = {
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz",
}  # fmt: skip


class _Unpacker(Protocol):
    """bz2's and lzma's decompressors have this form, zlib's is given it below."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Readable(Protocol):
    """What of a file is needed here."""

    def read(self, count: int = -1, /) -> bytes: ...


class Unpacked:
    """The bytes of a packed file, read forward."""

    def __init__(self, packed: Readable, bounds: Bounds) -> None:
        self._packed = packed
        self._bounds = bounds
        self._sha = hashlib.sha256()
        self._ready = bytearray()
        self._source = packed.read(_PIECE)
        self._taken = len(self._source)
        self.kind = kind_of(self._source)
        self._unpacker = _unpacker(self.kind)
        # zstandard bounds its output only when it does the reading.
        self._frames = _zstd(_Source(self._given)) if self.kind == "zstd" else None
        self.size = 0

    def read(self, count: int, /) -> bytes:
        """Fewer bytes than asked for only at the end."""
        while len(self._ready) < count:
            piece = self._piece()
            if not piece:
                break
            self._ready += piece
        data = bytes(self._ready[:count])
        del self._ready[:count]
        return data

    def drain(self) -> str:
        """Read to the end, where a tar has its padding; the digest of all that came out."""
        self._ready.clear()
        while self._piece():
            pass
        return f"sha256:{self._sha.hexdigest()}"

    def _piece(self) -> bytes:
        try:
            piece = self._next()
        except Exception as error:  # each library has an error class of its own, and one is not always there
            if isinstance(error, HutchError):
                raise
            raise Invalid(f"not a readable archive: damaged {self.kind}: {error}") from error
        self._sha.update(piece)
        self.size += len(piece)
        if self.size > (self._bounds.unpacked_mb << 20) + self._bounds.entries * _HEADERS:
            raise Refused(
                f"the archive unpacks to more than {self._bounds.unpacked_mb} MB",
                remedy="if you trust it, raise images.bounds.unpacked_mb",
            )
        if self.size > _FREE and self.size > self._taken * self._bounds.ratio:
            raise Refused(
                f"the archive unpacks to more than {self._bounds.ratio} times its size",
                remedy="if you trust it, raise images.bounds.ratio",
            )
        return piece

    def _next(self) -> bytes:
        if self._frames is not None:
            return bytes(self._frames.read(_PIECE))
        if self._unpacker is None:
            return self._given()
        while True:
            if self._unpacker.eof:
                rest = self._unpacker.unused_data or self._more()
                if not rest.strip(b"\0"):
                    return b""
                self._source, self._unpacker = rest, _unpacker(self.kind)  # packed files may be joined
                assert self._unpacker is not None
            elif self._unpacker.needs_input and not self._source:
                self._source = self._more()
                if not self._source:
                    raise EOFError("it ends too early")
            source, self._source = self._source, b""
            piece = self._unpacker.decompress(source, _PIECE)
            if piece:
                return piece

    def _given(self) -> bytes:
        piece, self._source = self._source, b""
        return piece or self._more()

    def _more(self) -> bytes:
        data = self._packed.read(_PIECE)
        self._taken += len(data)
        return data


class _Gzip:
    """zlib's object in the form of the others."""

    def __init__(self) -> None:
        self._object = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._object.unconsumed_tail

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._object.decompress(self._object.unconsumed_tail + data, max(0, max_length))


def kind_of(beginning: bytes) -> str:
    """gzip, zstd, bzip2, xz, or "tar" for what is not packed."""
    return next((kind for magic, kind in _MAGIC.items() if beginning.startswith(magic)), "tar")


def _unpacker(kind: str) -> _Unpacker | None:
    if kind == "gzip":
        return _Gzip()
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    if kind == "xz":
        return lzma.LZMADecompressor(memlimit=1 << 28)
    return None


class _Source:
    """A file of what a function gives."""

    def __init__(self, given: Callable[[], bytes]) -> None:
        self._given = given

    def read(self, _count: int = -1) -> bytes:
        return self._given()


def _zstd(source: _Source) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported(
            "this layer is packed with zstd, which needs a package", remedy="pip install 'hutch[zstd]'"
        ) from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    return unpacker.stream_reader(source, read_across_frames=True)  # type: ignore[arg-type]  # it only reads
