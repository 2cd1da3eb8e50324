"""Trees between host and box, through a real guest."""

import asyncio
import contextlib
import os
import stat
from pathlib import Path

import pytest
from tests.guest.guest_process import GuestProcess, instance_of, running_guest, until

from hutch.errors import FileFailed, FileMissing, IsDirectory


def tree(base: Path) -> Path:
    (base / "sub/deep").mkdir(parents=True)
    (base / "sub/deep/data").write_bytes(os.urandom(5_000_000))
    (base / "run").write_bytes(b"#!/bin/sh\n")
    (base / "run").chmod(0o755)
    (base / "link").symlink_to("sub/deep/data")
    (base / "odd\n\udcff").write_bytes(b"odd")
    for number in range(300):
        (base / f"sub/{number}").write_bytes(b"%d" % number)
    return base


def sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def contents(base: Path) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    for directory, _, names in os.walk(base):
        for name in names:
            path = Path(directory, name)
            key = str(path.relative_to(base))
            found[key] = os.readlink(path) if path.is_symlink() else path.read_bytes()
    return found


async def test_a_tree_is_copied_in_and_out(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    size = sum(len(content) for content in contents(source).values() if isinstance(content, bytes))
    with running_guest() as guest:
        async with instance_of(guest) as box:
            assert await box.files.copy_in(source, "made/tree") == size
            assert contents(guest.workdir / "made/tree") == contents(source)
            assert stat.S_IMODE((guest.workdir / "made/tree/run").stat().st_mode) == 0o755
            assert await box.files.copy_out("made/tree", tmp_path / "new/back") == size
            assert contents(tmp_path / "new/back") == contents(source)


async def test_single_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with running_guest() as guest:
        async with instance_of(guest) as box:
            assert await box.files.copy_in(tmp_path / "file", "x/renamed") == 7
            assert await box.files.copy_in(str(tmp_path / "file"), ".") == 7
            assert (guest.workdir / "x/renamed").read_bytes() == (guest.workdir / "file").read_bytes() == b"content"
            (tmp_path / "out").mkdir()
            assert await box.files.copy_out("x/renamed", tmp_path / "out") == 7
            assert await box.files.copy_out("x/renamed", tmp_path / "out/other") == 7
            assert sorted(os.listdir(tmp_path / "out")) == ["other", "renamed"]


async def test_what_cannot_be_copied(tmp_path: Path, log_lines: list[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    with running_guest() as guest:
        (guest.workdir / "d/file").mkdir(parents=True)
        os.mkfifo(guest.workdir / "d/fifo")
        async with instance_of(guest) as box:
            with pytest.raises(FileMissing) as caught:
                await box.files.copy_in(tmp_path / "missing", "x")
            assert caught.value.op == "files.copy_in"
            with pytest.raises(FileMissing):
                await box.files.copy_out("missing", tmp_path / "x")
            with pytest.raises(FileFailed):
                await box.files.copy_in(tmp_path / "fifo", "x")
            with pytest.raises(FileFailed):
                await box.files.copy_out("d/fifo", tmp_path / "x")
            with pytest.raises(IsDirectory):
                await box.files.copy_in(tmp_path / "file", "d")
                await box.files.copy_in(tmp_path / "file", "d")
            assert not os.path.lexists(tmp_path / "x")
            await box.files.copy_out("d", tmp_path / "y")
            assert "fifo" in "".join(log_lines)
            assert os.listdir(tmp_path / "y") == ["file"]


async def test_a_sparse_file_of_a_terabyte(tmp_path: Path) -> None:
    sparse(tmp_path / "sparse", 1 << 40)
    with running_guest() as guest:
        async with instance_of(guest) as box:
            assert await box.files.copy_in(tmp_path / "sparse", "sparse") == 1 << 40
            assert (guest.workdir / "sparse").stat().st_blocks < 1000


async def test_a_cancelled_copy_closes_what_it_opened(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(40):
        (tmp_path / f"source/{number}").write_bytes(bytes(1_000_000))
    with running_guest() as guest:
        async with instance_of(guest) as box:
            (guest.workdir / "whole").symlink_to(tmp_path / "source")
            for copy, begun in (
                (box.files.copy_in(tmp_path / "source", "in"), guest.workdir / "in"),
                (box.files.copy_out("whole", tmp_path / "out"), tmp_path / "out"),
            ):
                task = asyncio.create_task(copy)
                while not begun.exists():
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda: not _open_below(guest.pid, tmp_path, guest.workdir))
                assert not _open_below(os.getpid(), tmp_path)
            assert not _drafts(guest, tmp_path)


async def test_a_copy_that_is_cancelled_early_closes_what_it_opened(tmp_path: Path) -> None:
    """A thread that was opening a file when its copy was cancelled still opens it, and nobody else could close it."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_bytes(b"content")
    with running_guest() as guest:
        (guest.workdir / "whole").symlink_to(tmp_path / "source")
        async with instance_of(guest) as box:
            for turns in range(40):
                for copy in (
                    box.files.copy_in(tmp_path / "source", f"in-{turns}"),
                    box.files.copy_out("whole", tmp_path / f"out-{turns}"),
                ):
                    task = asyncio.create_task(copy)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                    assert not _open_below(os.getpid(), tmp_path)


def _open_below(pid: int, *directories: Path) -> list[str]:
    """What a process has open in these directories.

    Not a count of all that it has open: what earlier tests left in cycles of objects is closed whenever Python's
    collector runs.
    """
    places = tuple(f"{directory.resolve()}" for directory in directories)
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return [path for path in found if path.startswith(places)]


def _drafts(guest: GuestProcess, out: Path) -> list[str]:
    every = [*os.walk(guest.workdir), *os.walk(out)]
    return [name for _, _, names in every for name in names if name.startswith(".hutch-")]
