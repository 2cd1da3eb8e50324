"""A layer becomes a directory for overlayfs; no archive can do more than that, whatever it contains (S8)."""

import bz2
import gzip
import io
import lzma
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import HutchError, Invalid, Refused
from hutch.images.layers.decompression import DecompressedStream
from hutch.images.layers.unpack import OPAQUE, UnpackResult, unpack
from hutch.images.settings import Bounds
from tests.images.registry_server import Member, digest_of, directory, hard_link, symlink, tar_of
from tests.images.test_tar_entries import header

ATTRIBUTES = (
    "user.kept",
    "user.overlay.redirect",
    "user.overlay.opaque",
    "security.capability",
    "trusted.overlay.opaque",
)


def place(data: bytes, top: Path, bounds: Bounds | None = None) -> UnpackResult:
    top.mkdir()
    bounds = bounds or Bounds()
    return unpack(DecompressedStream(io.BytesIO(data), bounds), str(top), bounds)


def test_files_are_what_the_archive_says(tmp_path: Path, rootless: bool) -> None:
    """Modes, owners, times, hard links and attributes are kept; owners only as root."""
    data = tar_of(
        directory("d", mode=0o2750, uid=7, gid=8, mtime=1_500_000_000),
        ("d/f", {"data": b"f", "mode": 0o4755, "uid": 7, "gid": 8, "mtime": 1_500_000_001.25}),
        hard_link("d/h", "d/f"),
        symlink("d/s", "/nowhere"),
        ("d/p", {"type": tarfile.FIFOTYPE, "mode": 0o644}),
        ("d/x", {"data": b"", "pax_headers": {f"SCHILY.xattr.{name}": "y" for name in ATTRIBUTES}}),
        ("dev/null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("dev/sda", {"type": tarfile.BLKTYPE, "devmajor": 8, "devminor": 0}),
        ("forgotten/by/the/list", {"data": b"x"}),
    )  # fmt: skip
    facts = place(data, tmp_path / "top")
    top = tmp_path / "top"
    assert facts == UnpackResult(digest_of(data), 2, 9, 2)
    found = (top / "d/f").stat()
    assert stat.S_IMODE(found.st_mode) == 0o4755 and found.st_mtime_ns == 1_500_000_001_250_000_000
    assert (top / "d/h").stat().st_ino == found.st_ino and found.st_nlink == 2
    assert os.readlink(top / "d/s") == "/nowhere"
    assert stat.S_ISFIFO((top / "d/p").stat().st_mode)
    assert os.listxattr(top / "d/x") == ["user.kept"], "attributes that steer overlayfs or give rights are left out"
    assert (top / "d").stat().st_mtime == 1_500_000_000
    assert stat.S_IMODE((top / "forgotten").stat().st_mode) == 0o755
    assert list((top / "dev").iterdir()) == [], "devices are left out, also 0:0, which would be a deletion"
    if rootless:
        assert found.st_uid == os.geteuid() and stat.S_IMODE((top / "d").stat().st_mode) == 0o2750 | 0o700
    else:
        assert (found.st_uid, found.st_gid) == (7, 8) and stat.S_IMODE((top / "d").stat().st_mode) == 0o2750


def is_deletion(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def test_deletions_are_overlay_s_own(tmp_path: Path) -> None:
    data = tar_of(
        directory("a"), ("a/.wh.gone", {}), ("a/.wh..wh..opq", {}), ("a/.wh..wh.plnk", {}),
        ("b/.wh.gone", {}), (".wh.c", {}), ("c/new", {"data": b"n"}), (".wh.d", {}), directory("d"), directory("e"),
        (".wh.e", {}), ("f", {"data": b"f"}), (".wh.f", {}), (".wh.g", {}), ("g", {"data": b"g"}), (".wh...", {}),
        (".wh.", {}),
    )  # fmt: skip
    place(data, tmp_path / "top")
    top = tmp_path / "top"
    assert is_deletion(top / "a/gone") and is_deletion(top / "b/gone")
    opaque = {name for name in "abcde" if OPAQUE in os.listxattr(top / name)}
    assert opaque == {"a", "c", "d", "e"}, "a directory that is deleted and made again hides what was below"
    assert (top / "f").read_text() == "f" and (top / "g").read_text() == "g", "a deletion is about the layers below"
    assert sorted(path.name for path in top.iterdir()) == list("abcdefg")


def twice(data: bytes) -> bytes:
    return gzip.compress(data[:700]) + gzip.compress(data[700:])


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes, twice])
def test_every_packing_gives_the_same(tmp_path: Path, pack: Any) -> None:
    data = tar_of(("f", {"data": os.urandom(300_000)}))
    assert place(pack(data), tmp_path / "top").diff_id == digest_of(data)


def test_zstd(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    data = tar_of(("f", {"data": os.urandom(300_000)}))
    packed = zstandard.ZstdCompressor().compress(data[:1000]) + zstandard.ZstdCompressor().compress(data[1000:])
    assert place(packed, tmp_path / "top").diff_id == digest_of(data)
    with pytest.raises(Invalid, match="not a readable archive"):
        place(packed[:-200], tmp_path / "cut")


def test_zstd_without_its_package_says_which(tmp_path: Path) -> None:
    packed = tmp_path / "layer"
    packed.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    code = (
        "import sys; sys.modules['zstandard'] = None\n"
        "from hutch.images.layers.decompression import DecompressedStream\nfrom hutch.images.settings import Bounds\n"
        f"DecompressedStream(open({str(packed)!r}, 'rb'), Bounds())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "hutch[zstd]" in done.stderr


HOSTILE: list[tuple[str, list[Member]]] = [
    ("leaves it", [("../outside", {"data": b"x"})]),
    ("leaves it", [("a/../../outside", {"data": b"x"})]),
    ("leaves it", [("/../outside", {"data": b"x"})]),
    ("through a link", [symlink("out", ".."), ("out/outside", {"data": b"x"})]),
    ("through a link", [symlink("out", "/tmp"), ("out/hutch-outside", {"data": b"x"})]),
    ("through a link", [symlink("out", "/tmp"), directory("out/hutch-outside")]),
    ("through a link", [symlink("out", ".."), ("out/.wh.victim", {})]),
    ("through a link", [symlink("out", ".."), ("out/.wh..wh..opq", {})]),
    ("through a link", [symlink("out", ".."), hard_link("h", "out/victim")]),
    ("replaces a file", [symlink("out", ".."), directory("out")]),
    ("through a link or a file", [("f", {"data": b"x"}), ("f/g", {"data": b"x"})]),
    ("leaves it", [hard_link("h", "../victim")]),
    ("not a file of the same layer", [hard_link("h", "/etc/passwd")]),
    ("not a file of the same layer", [directory("d"), hard_link("h", "d")]),
    ("not a file of the same layer", [(".wh.w", {}), hard_link("h", "w")]),
    ("not a file of the same layer", [hard_link("h", "h")]),
    ("directory by a file", [directory("d"), ("d", {"data": b"x"})]),
    ("link to nothing", [("s", {"type": tarfile.SYMTYPE, "linkname": ""})]),
    ("deeper than", [("d/" * 200 + "f", {"data": b"x"})]),
    ("an impossible file name", [("n" * 300, {"data": b"x"})]),
    ("an impossible file name", [symlink("s", "t" * 5000)]),
]


@pytest.mark.parametrize(
    ("reason", "members"), HOSTILE, ids=[f"{number} {each[0]}" for number, each in enumerate(HOSTILE)]
)
def test_no_archive_leaves_its_directory(tmp_path: Path, reason: str, members: list[Member]) -> None:
    """`..`, absolute names, links that lead out, and files under links are refused before anything is written."""
    (tmp_path / "victim").write_text("v")
    with pytest.raises(HutchError, match=reason):
        place(tar_of(*members), tmp_path / "top")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["top", "victim"]
    assert (tmp_path / "victim").read_text() == "v" and (tmp_path / "victim").stat().st_nlink == 1
    assert not Path("/tmp/hutch-outside").exists()


def test_harmless_oddities_land_inside(tmp_path: Path) -> None:
    """An absolute name, the same name twice (the last wins), `./` and doubled slashes are accepted."""
    data = tar_of(
        ("/abs/f", {"data": b"1"}), ("./abs//f", {"data": b"2"}), symlink("twice", "/etc"), ("twice", {"data": b"3"}),
        hard_link("again", "/abs/f"), directory("."),
    )  # fmt: skip
    place(data, tmp_path / "top")
    assert (tmp_path / "top/abs/f").read_text() == "2" and (tmp_path / "top/twice").read_text() == "3"
    assert (tmp_path / "top/again").read_text() == "2"


def test_bombs_are_refused(tmp_path: Path) -> None:
    """Size, number of entries and compression ratio are bounded."""
    many = tar_of(*((f"f{number}", {}) for number in range(50)))
    with pytest.raises(Refused, match="more than 20 entries"):
        place(many, tmp_path / "many", Bounds(entries=20))
    with pytest.raises(Refused, match="more than 1 MB"):
        place(tar_of(("big", {"data": bytes(2 << 20)})), tmp_path / "big", Bounds(unpacked_mb=1))
    # It claims 4 GB and is refused by the claim, before the first byte is written.
    with pytest.raises(Refused, match="more than 100 MB"):
        place(header(size=b"\x80" + (4 << 30).to_bytes(11)), tmp_path / "claim", Bounds(unpacked_mb=100))
    assert list((tmp_path / "claim").iterdir()) == []
    zeros = gzip.compress(bytes(300 << 20), 6)
    with pytest.raises(Refused, match="200 times its size"):
        place(zeros, tmp_path / "zeros")


@pytest.mark.parametrize("spoil", [lambda data: data[:-40], lambda data: data[:50] + b"\0\1\2" + data[53:]])
def test_a_damaged_layer_is_refused(tmp_path: Path, spoil: Any) -> None:
    data = gzip.compress(tar_of(("f", {"data": os.urandom(100_000)})))
    with pytest.raises(Invalid, match="not a readable archive"):
        place(spoil(data), tmp_path / "top")


def test_directories_keep_their_attributes_too(tmp_path: Path) -> None:
    headers = {f"SCHILY.xattr.{name}": "y" for name in ATTRIBUTES}
    place(tar_of(directory("d", mode=0o555, pax_headers=headers), ("d/f", {"data": b"f"})), tmp_path / "top")
    assert os.listxattr(tmp_path / "top/d") == ["user.kept"]


def test_headers_for_all_that_follows_are_bounded_together(tmp_path: Path) -> None:
    """Each one is small, but an archive may have any number, and they would be kept to its end."""
    data = b""
    for number in range(3):
        record = f"SCHILY.xattr.user.x{number}={'y' * 500_000}\n"
        size = len(record) + 7
        record = f"{size} {record}"
        assert len(record) == size
        data += header(b"g", b"%011o\0" % size, b"g") + record.encode() + bytes(-size % 512)
    with pytest.raises(Invalid, match="without end"):
        place(data + header(), tmp_path / "top")
