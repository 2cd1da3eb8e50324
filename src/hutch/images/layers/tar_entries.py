"""Reading an untrusted tar: one pass, bounded memory, every header checked.

The standard library's tarfile reads extended headers of any size into memory and, in the Python versions we support,
loops for ever on a negative size. Sparse members are refused, because their claimed size costs nothing.
"""

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, Protocol

from hutch.errors import Invalid

BLOCK = 512
_MAX_EXTENDED_HEADER = 1 << 20
"""Largest extended header; names have at most 4096 bytes, attributes 64 kB."""
_MAX_SIZE = 1 << 62
_NANOSECONDS = 1_000_000_000
_MAX_MTIME = 1 << 33

FILE, LINK, SYMLINK, DEVICE, DIRECTORY, FIFO = "file", "link", "symlink", "device", "directory", "fifo"
_KINDS = {
    b"0": FILE, b"\0": FILE, b"7": FILE, b"1": LINK, b"2": SYMLINK, b"3": DEVICE, b"4": DEVICE, b"5": DIRECTORY,
    b"6": FIFO,
}  # fmt: skip
_XATTR = "SCHILY.xattr."


class Stream(Protocol):
    """What an archive is read from; fewer bytes than asked for mean the end."""

    def read(self, count: int, /) -> bytes: ...


class Entry(NamedTuple):
    """One member. Its names are as written, not yet checked."""

    name: str
    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    """Nanoseconds."""
    target: str
    xattrs: dict[str, bytes]


class Reader:
    """Iterates over the entries; a file's content must be read with `content` before the next entry."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._left = 0
        self._padding = 0
        self.offset = 0
        """Number of bytes read; for a file, the position of its content."""

    def __iter__(self) -> Iterator[Entry]:
        long: dict[str, str] = {}
        extended: dict[str, bytes] = {}
        global_records: dict[str, bytes] = {}
        while True:
            header = self._header()
            if header is None:
                return
            kind = header[156:157]
            if kind in b"LKxgX" and kind:
                data = self._extended(header)
                if kind == b"L":
                    long["path"] = _text(data)
                elif kind == b"K":
                    long["linkpath"] = _text(data)
                elif kind == b"g":
                    global_records |= _records(data)
                    if sum(map(len, global_records.values())) > _MAX_EXTENDED_HEADER:
                        raise _damaged("global headers without end")
                else:
                    extended |= _records(data)
                continue
            entry = _entry(header, global_records | extended, long)
            long, extended = {}, {}
            if entry.kind == FILE:
                self._left = entry.size
                self._padding = -entry.size % BLOCK
            yield entry
            self._skip()

    def content(self, limit: int) -> bytes:
        """Return the next bytes of the current file; empty at its end."""
        count = min(limit, self._left)
        data = self._read_exactly(count)
        self._left -= count
        return data

    def skip_content(self, file: BinaryIO) -> None:
        """Skip the content of the current file by seeking in `file`, which is the stream."""
        length = self._left + self._padding
        if file.seek(0, os.SEEK_END) < self.offset + self._left:
            raise _damaged("it ends too early")
        file.seek(self.offset + length)
        self.offset += length
        self._left = self._padding = 0

    def _skip(self) -> None:
        while self._left:
            self.content(1 << 20)
        self._read_exactly(self._padding)
        self._padding = 0

    def _header(self) -> bytes | None:
        """Return None at the end: a block of zeros, or no block at all."""
        header = self._stream.read(BLOCK)
        self.offset += len(header)
        if not header or header == bytes(BLOCK):
            return None
        if len(header) < BLOCK:
            raise _damaged("it ends inside a header")
        records = _number(header[148:156], "checksum")
        total = sum(header) - sum(header[148:156]) + 8 * 32
        if records != total:
            raise _damaged("a header's checksum is wrong")
        return header

    def _extended(self, header: bytes) -> bytes:
        size = _number(header[124:136], "size")
        if size > _MAX_EXTENDED_HEADER:
            raise _damaged(f"an extended header of {size} bytes")
        data = self._read_exactly(size)
        self._read_exactly(-size % BLOCK)
        return data

    def _read_exactly(self, count: int) -> bytes:
        if count == 0:
            return b""
        data = self._stream.read(count)
        self.offset += len(data)
        if len(data) < count:
            raise _damaged("it ends too early")
        return data


def _entry(header: bytes, records: dict[str, bytes], long: dict[str, str]) -> Entry:
    flag = header[156:157]
    if flag == b"S" or any(name.startswith("GNU.sparse") for name in records):
        raise Invalid("the archive holds a sparse file", remedy="make it without --sparse")
    kind = _KINDS.get(flag)
    if kind is None:
        raise _damaged(f"an entry of unknown kind {flag!r}")
    name = _text(header[0:100])
    if header[257:262] == b"ustar" and header[257:265] != b"ustar  \0" and (prefix := _text(header[345:500])):
        name = f"{prefix}/{name}"
    name = _decode(records["path"]) if "path" in records else long.get("path", name)
    target = _decode(records["linkpath"]) if "linkpath" in records else long.get("linkpath", _text(header[157:257]))
    if "\0" in name or "\0" in target:
        raise _damaged("a name with a NUL in it")
    if kind == FILE and name.endswith("/"):
        kind = DIRECTORY  # as in archives from before 1988
    size = _decimal(records, "size", header[124:136])
    return Entry(
        name, kind, _number(header[100:108], "mode") & 0o7777, _id(records, "uid", header[108:116]),
        _id(records, "gid", header[116:124]), size if kind == FILE else 0, _time(records, header[136:148]), target,
        {key.removeprefix(_XATTR): value for key, value in records.items() if key.startswith(_XATTR)},
    )  # fmt: skip


def _decimal(records: dict[str, bytes], key: str, field: bytes) -> int:
    if key not in records:
        return _number(field, key)
    text = records[key]
    if not text.isdigit() or len(text) > 19 or int(text) > _MAX_SIZE:
        raise _damaged(f"a {key} of {text[:40]!r}")
    return int(text)


def _id(records: dict[str, bytes], key: str, field: bytes) -> int:
    """Map an id outside of 32 bits, which the kernel would refuse, to nobody."""
    number = _decimal(records, key, field)
    return number if number < 0xFFFFFFFF else 65534


def _time(records: dict[str, bytes], field: bytes) -> int:
    """Return 0 for a time before 1970 or an invalid one, because it is no reason to refuse an image."""
    if "mtime" in records:
        whole, _, rest = records["mtime"].partition(b".")
        if not whole.isdigit() or len(whole) > 10 or (rest and not rest.isdigit()):
            return 0
        return int(whole) * _NANOSECONDS + int(rest[:9].ljust(9, b"0"))
    try:
        return min(_number(field, "mtime"), _MAX_MTIME) * _NANOSECONDS
    except Invalid:
        return 0


def _number(field: bytes, what: str) -> int:
    """Parse octal digits, or base 256 if the first bit is set; negative numbers are refused."""
    if field[0] & 0x80:
        if field[0] == 0xFF:
            raise _damaged(f"a negative {what}")
        number = int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:])
    else:
        text = field.partition(b"\0")[0].strip()
        if text and not all(digit in b"01234567" for digit in text):
            raise _damaged(f"a {what} of {text!r}")
        number = int(text or b"0", 8)
    if number > _MAX_SIZE:
        raise _damaged(f"a {what} of {number}")
    return number


def _records(data: bytes) -> dict[str, bytes]:
    """Parse extended headers: lines of "LENGTH KEY=VALUE", where the length includes itself."""
    found: dict[str, bytes] = {}
    while data and data[0]:
        digits, space, _ = data[:20].partition(b" ")
        if not space or not digits.isdigit() or not len(digits) + 3 <= int(digits) <= len(data):
            raise _damaged("an extended header without its length")
        record, data = data[: int(digits)], data[int(digits) :]
        key, equals, value = record[len(digits) + 1 :].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise _damaged("an extended header without a value")
        found[_decode(key)] = value[:-1]
    return found


def _text(field: bytes) -> str:
    return _decode(field.partition(b"\0")[0])


def _decode(data: bytes) -> str:
    """Decode a name. To the kernel it is bytes, so what is not UTF-8 is preserved."""
    return data.decode("utf-8", "surrogateescape")


def _damaged(why: str) -> Invalid:
    return Invalid(f"not a readable archive: {why}", remedy="fetch or make it again")
