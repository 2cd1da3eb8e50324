"""The tar reader: everything tarfile writes is read the same way, and everything malformed is Invalid, quickly."""

import io
import struct
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.errors import HutchError, Invalid
from hutch.images.layers.tar_entries import Reader
from tests.images.registry_server import directory, hard_link, symlink, tar_of


def read(data: bytes) -> list[tuple[str, str, bytes]]:
    reader = Reader(io.BytesIO(data))
    found = []
    for entry in reader:
        content = b""
        while piece := reader.content(7000):
            content += piece
        found.append((entry.name, entry.kind, content))
    return found


def header(
    name: bytes = b"file", size: bytes = b"00000000000\0", kind: bytes = b"0", magic: bytes = b"ustar\x0000"
) -> bytes:
    """Build a header with a correct checksum."""
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108] = b"0000644\0"
    block[108:116] = block[116:124] = b"0000000\0"
    block[124:136] = size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_what_tarfile_writes_is_read_alike() -> None:
    long = "d/" * 60 + "x" * 150
    members = [
        directory("d"),
        ("d/f", {"data": b"x" * 20000}),
        symlink("s", long),
        hard_link("h", "d/f"),
        (long, {"data": b"l"}),
    ]
    wanted = [
        ("d/", "directory", b""), ("d/f", "file", b"x" * 20000), ("s", "symlink", b""), ("h", "link", b""),
        (long, "file", b"l"),
    ]  # fmt: skip
    assert read(tar_of(*members)) == wanted
    for kind in (tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
            info = tarfile.TarInfo("é" * 40 + "/" + "b" * 60)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        assert read(out.getvalue()) == [("é" * 40 + "/" + "b" * 60, "file", b"abc")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(size=b"\xff" * 12), "negative size"),
        (header(size=b"\x80" + b"\x7f" * 11), "a size of"),
        (header(size=b"77777777777\0"), "ends too early"),
        (header(size=b"0000000089a\0"), "a size of"),
        (header(kind=b"S"), "sparse"),
        (header(kind=b"?"), "unknown kind"),
        (header(kind=b"x", size=b"77777777777\0"), "extended header"),
        (header(kind=b"L", size=b"\x80\0\0\0\0\0\x7f\0\0\0\0\0"), "extended header"),
        (header()[:-1] + b"\1", "checksum"),
        (header(kind=b"x", size=b"00000000012\0") + b"99999 a=b\n".ljust(512, b"\0"), "without its length"),
        (header(kind=b"x", size=b"00000000012\0") + b"10 abcdef\n".ljust(512, b"\0"), "without a value"),
        (header(kind=b"x", size=b"00000000031\0") + b"25 GNU.sparse.major=1.00\n".ljust(512, b"\0") + header(), "spar"),
        (header(kind=b"x", size=b"00000000014\0") + b"12 size=-5\n\n".ljust(512, b"\0") + header(), "size"),
        (header(kind=b"x", size=b"00000000013\0") + b"11 path=a\0\n".ljust(512, b"\0") + header(), "NUL"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_crooked_headers_are_refused(data: bytes, reason: str) -> None:
    """Negative, huge and false sizes, sparse members and nested headers are all refused."""
    with pytest.raises(Invalid, match=reason):
        read(data + bytes(1024))


def test_an_end_inside_a_header_is_damage() -> None:
    with pytest.raises(Invalid, match="inside a header"):
        read(header()[:100])


@given(st.binary(max_size=3000))
def test_noise_never_does_more_than_fail(data: bytes) -> None:
    try:
        read(data)
    except HutchError:
        return


@given(st.data())
def test_a_spoiled_archive_never_does_more_than_fail(data: st.DataObject) -> None:
    """An archive with bytes changed anywhere is read or refused, without a loop or another error."""
    spoiled = bytearray(tar_of(directory("a"), ("a/b", {"data": b"c" * 600}), symlink("d", "e")))
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    for offset in range(0, len(spoiled), 512):  # with correct checksums, so that the damage is reached
        block = spoiled[offset : offset + 512]
        if len(block) == 512 and any(block):
            total = sum(block) - sum(block[148:156]) + 256
            spoiled[offset + 148 : offset + 156] = struct.pack("8s", b"%06o\0 " % total)
    try:
        read(bytes(spoiled))
    except HutchError:
        return
