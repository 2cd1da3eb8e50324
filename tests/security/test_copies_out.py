"""What leaves a box for the host's disk is the box's word: exports and copies have at most what the box's disk holds,
whatever its programs and its guest say, and lie where nobody else can reach them (lesson 47, B21)."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.serving import serving

from hutch import Hutch
from hutch.errors import FileTooLarge, Invalid, QuotaExceeded
from hutch.guest.files.trees import DATA, HOLE, PIECE
from hutch.keeper.archives.system_archive import OVERHEAD_BYTES, SystemArchive
from hutch.providers.guest_client.local_trees import unpacked
from hutch.providers.guest_client.trees import max_copy_bytes

DISK_MB = 16
LIE = "#!/bin/sh\nexec head -c 300000000 /dev/zero\n"
"""A `tar` that writes 300 MB: bounded, so that it cannot hurt where it succeeds."""
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's boxes have no root who could lie")


def on_disk(place: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in place.rglob("*") if path.is_file())


async def biggest(place: Path, most: list[int]) -> None:
    """How much lay in a directory at its fullest."""
    while True:
        most.append(on_disk(place) if place.exists() else 0)
        await asyncio.sleep(0.02)


@NEEDS_ROOT
@pytest.mark.parametrize("lies", [False, True], ids=["control", "attack"])
async def test_a_box_whose_tar_lies_fills_no_disk(lies: bool, tmp_path: Path) -> None:
    """Class: a box's own program is believed by the host. The rest of the box is exported, and the notes say what is
    not. The control is a box whose tar tells the truth."""
    with serving() as server:
        async with Hutch(f"unix:{server.run}/server.sock") as hutch:
            async with hutch.box(profile="code", disk_mb=DISK_MB, memory_mb=256) as box:
                await box.files.write("data", b"x" * 1000)
                await box.exec("echo changed >/etc/motd", user="root")
                if lies:
                    made = await box.exec(f"printf %s '{LIE}' >/usr/local/sbin/tar && chmod 755 /usr/local/sbin/tar",
                                          user="root")  # fmt: skip
                    assert made.ok, made.stderr
                most: list[int] = []
                watching = asyncio.ensure_future(biggest(server.state / "spool", most))
                moved = await box.export(tmp_path / "box.hutch")
                watching.cancel()
        assert ("system" in moved.parts) is not lies, moved.notes
        assert "workspace" in moved.parts
        assert any("tar wrote is no archive" in note or "larger than" in note for note in moved.notes) is lies
        assert max(most) <= 2 * (DISK_MB << 20) + OVERHEAD_BYTES
        assert not list((server.state / "spool").iterdir())
        assert (server.state / "spool").stat().st_mode & 0o777 == 0o700


async def test_sparse_files_are_carried_as_what_they_are(tmp_path: Path) -> None:
    """A file of 8 GB with one block of data is that block: the export is small, and the new box has the same file."""
    async with Hutch(state_dir=str(tmp_path / "state")) as hutch:
        async with hutch.box(disk_mb=DISK_MB, memory_mb=64) as box:
            made = await box.exec(
                "truncate -s 8G hollow && printf mark | dd of=hollow bs=1 seek=5000000000 conv=notrunc"
            )
            assert made.ok, made.stderr
            await box.export(tmp_path / "box.hutch")
            assert await box.files.copy_out("hollow", tmp_path / "hollow") == 8 << 30
        assert on_disk(tmp_path) < 4 << 20
        copy = await hutch.import_box(tmp_path / "box.hutch")
        seen = await copy.exec("stat -c %s hollow; dd if=hollow bs=1 skip=5000000000 count=4 status=none; du -k hollow")
        assert seen.stdout.startswith("8589934592\nmark"), seen
        assert int(seen.stdout.split("mark")[1].split()[0]) < 1000
        await copy.destroy()


async def endless(kind: int) -> AsyncIterator[bytes]:
    """The stream of a guest that does not stop: 256 MB of one file, or a million of files."""
    head = json.dumps({"path": "", "kind": "directory", "mode": 493, "mtime": 0}).encode() + b"\n"
    yield head
    if kind == DATA:
        yield json.dumps({"path": "f", "kind": "file", "mode": 420, "mtime": 0}).encode() + b"\n"
        for _ in range(256):
            yield PIECE.pack(DATA, 1 << 20) + bytes(1 << 20)
        return
    for number in range(1_000_000):
        entry = {"path": f"f{number}", "kind": "symlink", "target": "x"}
        yield json.dumps(entry).encode() + b"\n"


@pytest.mark.parametrize("kind", [DATA, HOLE], ids=["bytes", "names"])
async def test_a_guest_that_sends_for_ever_is_stopped(kind: int, tmp_path: Path) -> None:
    """Whatever the stream says: no more bytes than may come, and no more names than so many bytes could have. Names
    are the costlier half, so the bound is asked for with few bytes."""
    with pytest.raises(FileTooLarge):
        await unpacked(endless(kind), "x", tmp_path / "out", most=4 << 20)
    assert on_disk(tmp_path) <= 5 << 20
    assert sum(1 for _ in (tmp_path / "out").iterdir()) <= 1 << 16


async def test_a_copy_out_of_a_box_has_at_most_its_disk(tmp_path: Path) -> None:
    """Through the box's own handle. A file with many names is copied once for each: the sum is what is bounded, and a
    caller who means it says so."""
    async with Hutch(state_dir=str(tmp_path / "state")) as hutch:
        async with hutch.box(disk_mb=DISK_MB, memory_mb=64) as box:
            made = await box.exec(
                "mkdir t && head -c 6000000 /dev/urandom >t/0 && for i in 1 2 3; do ln t/0 t/$i; done"
            )
            assert made.ok, made.stderr
            with pytest.raises(FileTooLarge):
                await box.files.copy_out("t", tmp_path / "copy")
            assert on_disk(tmp_path / "copy") <= DISK_MB << 20
            with pytest.raises(QuotaExceeded):
                await box.export(tmp_path / "box.hutch")
            assert not list(tmp_path.glob("box.hutch*")) and not list(tmp_path.glob("hutch-export-*"))
            assert await box.files.copy_out("t", tmp_path / "all", most=64 << 20) == 24_000_000
            assert max_copy_bytes(box.spec, "t") == DISK_MB << 20 < max_copy_bytes(box.spec, "/usr")


async def test_checkpoints_of_a_box_fill_no_disk(tmp_path: Path) -> None:
    """Each checkpoint has a small file with many names, which fits the box's disk once and an export not at all. The
    older ones stay behind, and the notes say so; those that fit are carried."""
    many = "rm -rf t && mkdir t && head -c 1200000 /dev/urandom >t/0 && for i in 1 2 3 4 5 6 7; do ln t/0 t/$i; done"
    with serving() as server:
        async with Hutch(f"unix:{server.run}/server.sock") as hutch:
            async with hutch.box(disk_mb=DISK_MB, memory_mb=128) as box:
                for name in ("a", "b", "c", "d", "e"):
                    made = await box.exec(many)
                    assert made.ok, made.stderr
                    await box.checkpoint(name)
                await box.exec("rm -rf t; echo small >t")
                most: list[int] = []
                watching = asyncio.ensure_future(biggest(server.state / "spool", most))
                moved = await box.export(tmp_path / "box.hutch")
                watching.cancel()
        assert max(most) <= 2 * (DISK_MB << 20) + OVERHEAD_BYTES, max(most)
        assert any("checkpoints up to d are not carried" in note for note in moved.notes), moved.notes
    async with Hutch(state_dir=str(tmp_path / "state")) as hutch:
        copy = await hutch.import_box(tmp_path / "box.hutch")
        assert [each.name for each in await copy.checkpoints()] == ["e"]
        await copy.destroy()


def test_what_is_no_archive_of_plain_files_is_refused() -> None:
    """Headers are checked as they come: kinds, sizes, counts, and the end."""
    import io
    import tarfile

    def of(*entries: tuple[str, bytes, int]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, kind, size in entries:
                entry = tarfile.TarInfo(name)
                entry.type, entry.size = kind, size
                tar.addfile(entry, io.BytesIO(bytes(size)))
        return out.getvalue()

    def taken(data: bytes, *, entries: int = 10) -> None:
        archive = SystemArchive(1 << 20, entries)
        for start in range(0, len(data), 1000):
            archive.feed(data[start : start + 1000])
        archive.end()

    good = of(("a" * 300, tarfile.REGTYPE, 5000), ("b", tarfile.SYMTYPE, 0))
    taken(good)
    for bad in (b"", good[:700], good[:-10240], b"x" * 2048, of(("dev", tarfile.CHRTYPE, 0))):
        with pytest.raises(Invalid):
            taken(bad)
    with pytest.raises(QuotaExceeded):
        taken(of(*[(str(number), tarfile.REGTYPE, 0) for number in range(11)]))
    with pytest.raises(QuotaExceeded):
        taken(bytes(OVERHEAD_BYTES + (2 << 20)))
