"""Decompression of a stream in any known format, never more at once than asked for.

All output is hashed (for the layer's diff id) and counted against the limits for decompression bombs.
"""

import bz2
import hashlib
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from hutch.errors import HutchError, Invalid, Refused, Unsupported
from hutch.images.settings import Bounds

_CHUNK = 1 << 18
_UNCHECKED_BYTES = 256 << 20
"""Output below this size is never refused: a file of zeros legitimately compresses a thousandfold."""
_ENTRY_OVERHEAD = 2048
"""Bytes of an archive that one entry may need besides its content: two headers with extensions, and padding."""
_MAGIC = {
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz",
}  # fmt: skip


class _Decompressor(Protocol):
    """The interface of bz2's and lzma's decompressors; `_Gzip` adapts zlib's to it."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Readable(Protocol):
    """The part of a file's interface that is needed here."""

    def read(self, count: int = -1, /) -> bytes: ...


class DecompressedStream:
    """The decompressed bytes of a file, read forward."""

    def __init__(self, packed: Readable, bounds: Bounds) -> None:
        self._packed = packed
        self._bounds = bounds
        self._sha = hashlib.sha256()
        self._ready = bytearray()
        self._source = packed.read(_CHUNK)
        self._packed_size = len(self._source)
        self.kind = kind_of(self._source)
        self._decompressor = _decompressor(self.kind)
        # zstandard bounds its output only when it does the reading.
        self._frames = _zstd(_Source(self._next_input)) if self.kind == "zstd" else None
        self.size = 0

    def read(self, count: int, /) -> bytes:
        """Return fewer bytes than asked for only at the end."""
        while len(self._ready) < count:
            piece = self._piece()
            if not piece:
                break
            self._ready += piece
        data = bytes(self._ready[:count])
        del self._ready[:count]
        return data

    def drain(self) -> str:
        """Read to the end, where a tar has its padding, and return the digest of all output."""
        self._ready.clear()
        while self._piece():
            pass
        return f"sha256:{self._sha.hexdigest()}"

    def _piece(self) -> bytes:
        try:
            piece = self._next()
        except Exception as error:  # each library has its own error class, and one library is optional
            if isinstance(error, HutchError):
                raise
            raise Invalid(f"not a readable archive: damaged {self.kind}: {error}") from error
        self._sha.update(piece)
        self.size += len(piece)
        if self.size > (self._bounds.unpacked_mb << 20) + self._bounds.entries * _ENTRY_OVERHEAD:
            raise Refused(
                f"the archive unpacks to more than {self._bounds.unpacked_mb} MB",
                remedy="if you trust it, raise images.bounds.unpacked_mb",
            )
        if self.size > _UNCHECKED_BYTES and self.size > self._packed_size * self._bounds.ratio:
            raise Refused(
                f"the archive unpacks to more than {self._bounds.ratio} times its size",
                remedy="if you trust it, raise images.bounds.ratio",
            )
        return piece

    def _next(self) -> bytes:
        if self._frames is not None:
            return bytes(self._frames.read(_CHUNK))
        if self._decompressor is None:
            return self._next_input()
        while True:
            if self._decompressor.eof:
                rest = self._decompressor.unused_data or self._read_more()
                if not rest.strip(b"\0"):
                    return b""
                self._source, self._decompressor = (
                    rest,
                    _decompressor(self.kind),
                )  # files may be concatenated
                assert self._decompressor is not None
            elif self._decompressor.needs_input and not self._source:
                self._source = self._read_more()
                if not self._source:
                    raise EOFError("it ends too early")
            source, self._source = self._source, b""
            piece = self._decompressor.decompress(source, _CHUNK)
            if piece:
                return piece

    def _next_input(self) -> bytes:
        piece, self._source = self._source, b""
        return piece or self._read_more()

    def _read_more(self) -> bytes:
        data = self._packed.read(_CHUNK)
        self._packed_size += len(data)
        return data


class _Gzip:
    """Adapts zlib's decompressor to the interface of the others."""

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
    """Return gzip, zstd, bzip2, xz, or "tar" for uncompressed data."""
    return next((kind for magic, kind in _MAGIC.items() if beginning.startswith(magic)), "tar")


def _decompressor(kind: str) -> _Decompressor | None:
    if kind == "gzip":
        return _Gzip()
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    if kind == "xz":
        return lzma.LZMADecompressor(memlimit=1 << 28)
    return None


class _Source:
    """A file-like object that reads from a function."""

    def __init__(self, read_input: Callable[[], bytes]) -> None:
        self._next_input = read_input

    def read(self, _count: int = -1) -> bytes:
        return self._next_input()


def _zstd(source: _Source) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported(
            "this layer is packed with zstd, which needs a package", remedy="pip install 'hutch[zstd]'"
        ) from error
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    return decompressor.stream_reader(source, read_across_frames=True)  # type: ignore[arg-type]  # it only reads
