"""Trees as streams: they survive a round trip, and a hostile stream stays inside its target."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.guest.files.trees import DATA, END, HOLE, PIECE, Unpacker, pack
from hutch.guest.operations import Failure


def packed(path: Path) -> bytes:
    return b"".join(block or b"" for block in pack(os.open(path, os.O_RDONLY), str(path)))


@contextmanager
def unpacker(directory: Path, name: str = "target", into: str = "") -> Iterator[Unpacker]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield Unpacker(descriptor, name, into)
    finally:
        os.close(descriptor)


def unpack(stream: bytes, directory: Path, name: str = "target", into: str = "", size: int = 1000) -> dict[str, Any]:
    with unpacker(directory, name, into) as work:
        try:
            for start in range(0, len(stream), size):
                work.data(stream[start : start + size])
            return work.end()
        except BaseException:
            work.abort()
            raise


def entry(path: str, kind: str = "file", content: bytes = b"evil", **fields: Any) -> bytes:
    header = {"path": path, "kind": kind, "mode": 0o644, "mtime": 0, **fields}
    line = json.dumps(header).encode() + b"\n"
    return line + PIECE.pack(DATA, len(content)) + content + PIECE.pack(END, 0) if kind == "file" else line


TOP = entry("", "directory", mode=0o755)


def test_a_tree_survives(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub/empty").mkdir(parents=True)
    (source / "sub/run").write_bytes(os.urandom(600_000))
    (source / "sub/run").chmod(0o751)
    os.utime(source / "sub/run", ns=(5, 1_600_000_000_123_456_789))
    (source / "link").symlink_to("/etc/passwd")
    (source / "new\nline \udcff").write_bytes(b"odd")
    (source / "sealed").mkdir()
    (source / "sealed/file").touch()
    (source / "sealed").chmod(0o555)
    os.mkfifo(source / "fifo")
    reply = unpack(packed(source), tmp_path)
    target = tmp_path / "target"
    assert reply == {"files": 3, "bytes": 600_003, "skipped": ["fifo"]}
    assert (target / "sub/run").read_bytes() == (source / "sub/run").read_bytes()
    info = (target / "sub/run").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_mtime_ns) == (0o751, 1_600_000_000_123_456_789)
    assert os.readlink(target / "link") == "/etc/passwd"
    assert (target / "new\nline \udcff").read_bytes() == b"odd"
    assert (target / "sealed/file").exists()
    assert stat.S_IMODE((target / "sealed").stat().st_mode) == 0o555
    assert (target / "sub/empty").is_dir()
    assert sorted(os.listdir(target)) == ["link", "new\nline \udcff", "sealed", "sub"]
    for directory in (source, target):
        (directory / "sealed").chmod(0o755)


def test_a_file_goes_to_the_name_or_into_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    stream = packed(tmp_path / "file")
    unpack(stream, tmp_path, "copy", "file")
    assert (tmp_path / "copy").read_bytes() == b"content"
    (tmp_path / "directory").mkdir()
    unpack(stream, tmp_path, "directory", "file")
    assert (tmp_path / "directory/file").read_bytes() == b"content"
    with pytest.raises(Failure) as caught:
        unpack(stream, tmp_path, "directory")
    assert caught.value.code == "is_directory"
    assert sorted(os.listdir(tmp_path)) == ["copy", "directory", "file"]


def test_a_directory_that_is_there_is_merged_and_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir(mode=0o700)
    (tmp_path / "source/new").write_bytes(b"new")
    (tmp_path / "target").mkdir()
    (tmp_path / "target").chmod(0o755)
    (tmp_path / "target/old").write_bytes(b"old")
    unpack(packed(tmp_path / "source"), tmp_path)
    assert sorted(os.listdir(tmp_path / "target")) == ["new", "old"]
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o755


def test_holes_stay_holes(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"island")
    stream = packed(tmp_path / "sparse")
    assert len(stream) < 1 << 20
    unpack(stream, tmp_path)
    info = (tmp_path / "target").stat()
    assert (info.st_size, info.st_blocks * 512 < 1 << 20) == (1 << 40, True)
    with open(tmp_path / "target", "rb") as file:
        file.seek((1 << 30) - 1)
        assert file.read(8) == b"\0island\0"


@pytest.mark.parametrize(
    "name",
    ["../evil", "/evil", "a/../../evil", "..", ".", "", "a//b", "./evil", "evil/", "nul\0", "/".join("d" * 300)],
)
@pytest.mark.parametrize("kind", ["file", "directory", "symlink", "skipped"])
def test_names_that_leave_the_target_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "inside").mkdir()
    with pytest.raises(Failure) as caught:
        unpack(TOP + entry(name, kind, target="x"), tmp_path / "inside")
    assert caught.value.code == "refused"
    assert os.listdir(tmp_path) == ["inside"]
    assert os.listdir(tmp_path / "inside/target") == []


def test_a_symlink_is_made_and_never_used(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").mkdir()
    link = entry("way", "symlink", target=str(tmp_path / "outside"))
    for hostile in (
        entry("way/evil"), entry("way", "directory"), entry("way/d", "directory"),
        entry("way/l", "symlink", target="x"),
    ):  # fmt: skip
        with pytest.raises(Failure):
            unpack(TOP + link + hostile, tmp_path / "inside")
        assert os.listdir(tmp_path / "outside") == []
    # A file of the same name replaces the link and does not follow it.
    (tmp_path / "outside/file").write_bytes(b"safe")
    file_link = entry("name", "symlink", target=str(tmp_path / "outside/file"))
    unpack(TOP + file_link + entry("name"), tmp_path / "inside")
    assert (tmp_path / "outside/file").read_bytes() == b"safe"
    assert (tmp_path / "inside/target/name").read_bytes() == b"evil"


def test_setuid_bits_are_dropped(tmp_path: Path) -> None:
    unpack(entry("", "directory", mode=0o7777) + entry("file", mode=0o6755), tmp_path)
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "target/file").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "stream",
    [
        b"", b"\n", b"[]\n", b"{}\n", b"null\n", b"\xff\n", b"[" * 100_000, entry("", "symlink", target="x"),
        entry("x"),
        entry("", "device"), entry("", mode="x"), entry("", mode=None), entry("", mtime=1 << 70), TOP + b"half a line",
        entry("")[:-3], TOP + entry("")[:-20], TOP + entry("x", "symlink", target=7), entry("") + entry("x"),
        TOP + entry("\ud800"),
        entry("", "file")[:-PIECE.size] + PIECE.pack(9, 9),
        entry("", "file")[:-PIECE.size] + PIECE.pack(HOLE, (1 << 64) - 1),
        entry("", "file")[:-PIECE.size] + PIECE.pack(HOLE, (1 << 63) - 10),
    ],
    ids=range(22),
)  # fmt: skip
def test_a_broken_stream_is_refused_and_leaves_no_draft(tmp_path: Path, stream: bytes) -> None:
    with pytest.raises(Failure) as caught:
        unpack(stream, tmp_path)
    assert caught.value.code in ("refused", "file_failed")
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name.startswith(".hutch-")]


@given(stream=st.binary(max_size=300), size=st.integers(1, 40))
def test_any_bytes_are_refused_or_unpacked(tmp_path_factory: pytest.TempPathFactory, stream: bytes, size: int) -> None:
    for whole in (stream, TOP + stream, entry("")[: -PIECE.size] + stream):
        try:
            unpack(whole, tmp_path_factory.getbasetemp(), "any", size=size)
        except Failure as failure:
            assert failure.code in ("refused", "file_failed", "is_directory", "not_directory", "file_exists"), failure


@given(cut=st.integers(1, 1 << 17))
def test_pieces_of_any_size_give_the_same_tree(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    base = tmp_path_factory.getbasetemp() / "pieces"
    content = bytes(range(256)) * 600
    (base / "source").mkdir(parents=True, exist_ok=True)
    (base / "source/a").write_bytes(content)
    (base / "source/b").write_bytes(b"")
    unpack(packed(base / "source"), base, size=cut)
    assert (base / "target/a").read_bytes() == content


SWAP = """
import ctypes, sys
libc = ctypes.CDLL(None)
first, second = (name.encode() for name in sys.argv[1:])
while True:  # RENAME_EXCHANGE: each name is always there, as the one or the other
    libc.renameat2(-100, first, -100, second, 2)
"""


def test_a_file_swapped_for_a_symlink_while_it_is_packed(tmp_path: Path) -> None:
    """The stream is well-formed and never contains a byte of what a symlink points to."""
    (tmp_path / "secret").write_bytes(b"SECRET")
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"public")
    (source / "b").symlink_to(tmp_path / "secret")
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, source / "a", source / "b"])
    try:
        for _ in range(1500):
            stream = packed(source)
            assert b"SECRET" not in stream
            unpack(stream, tmp_path)
    finally:
        swapping.kill()
        swapping.wait()
