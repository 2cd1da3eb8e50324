"""Files, trees, searches and watches: the same in every form of Hutch (see conftest.py)."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hutch.errors import (
    FileChanged,
    FileMissing,
    FileTooLarge,
    Invalid,
    IsDirectory,
    NoMatch,
)
from hutch.model.files import Edited, FileInfo, FileKind, GrepResult, Matches
from tests.both.forms import TIMEOUT, Open

ODD = b"odd \xff\xfe name".decode("utf-8", "surrogateescape")


async def test_files(open_hutch: Open) -> None:
    """Every operation on files that is about content and names."""
    async with open_hutch() as hutch, hutch.box() as box:
        files = box.files
        info = await files.write("d/file.txt", "one\ntwo\nthree\n", mode=0o640)
        assert isinstance(info, FileInfo)
        assert (info.path, info.size, info.mode & 0o777) == ("d/file.txt", 14, 0o640)
        await files.write("d/file.txt", b"four\n", append=True)
        assert await files.read("d/file.txt", offset=4, limit=3) == b"two"
        assert await files.read("d/file.txt", offset=100) == b""
        assert await files.read_text("d/file.txt") == "one\ntwo\nthree\nfour\n"
        assert await files.read_lines("d/file.txt", start=2, count=2) == (["two", "three"], False)
        assert await files.read_lines("d/file.txt", start=4) == (["four"], True)
        edited = await files.edit("d/file.txt", "two", "2")
        assert isinstance(edited, Edited)
        assert edited.digest == await files.digest("d/file.txt")
        await files.edit("d/file.txt", b"e", b"\xff\x00", replace_all=True, expect=edited.digest)
        assert await files.read("d/file.txt") == b"on\xff\x00\n2\nthr\xff\x00\xff\x00\nfour\n"
        with pytest.raises(FileChanged):
            await files.edit("d/file.txt", "2", "3", expect=edited.digest)
        with pytest.raises(NoMatch):
            await files.edit("d/file.txt", "not there", "x")
        await files.mkdir("e/f")
        with pytest.raises(FileExistsError):
            await files.mkdir("e", exist_ok=False)
        await files.move("d/file.txt", "e/moved")
        with pytest.raises(FileExistsError):
            await files.write("e/other", "x")
            await files.move("e/other", "e/moved")
        await files.move("e/other", "e/moved", overwrite=True)
        assert [(each.path, each.kind) for each in await files.list("e")] == [
            ("e/f", FileKind.DIRECTORY), ("e/moved", FileKind.FILE),
        ]  # fmt: skip
        assert (await files.exists("e/moved"), await files.exists("e/other")) == (True, False)
        await files.remove("e/none", missing_ok=True)
        with pytest.raises(FileMissing):
            await files.remove("e/none")
        await files.remove("e", recursive=True)
        with pytest.raises(FileMissing):
            await files.stat("e")
        with pytest.raises(IsDirectory):
            await files.write("/tmp", "x")


async def test_large_files_and_streams(open_hutch: Open) -> None:
    """Content of any size in pieces, both ways; a read without a limit says when it is too large."""

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(64):
            yield bytes([number]) * 100_003

    async with open_hutch() as hutch, hutch.box(disk_mb=512, memory_mb=512) as box:
        info = await box.files.write("big", pieces())
        assert info.size == 64 * 100_003
        got = b"".join([piece async for piece in box.files.open("big", offset=100_000)])
        assert got == b"".join([piece async for piece in pieces()])[100_000:]
        assert await box.files.read("/proc/self/stat", limit=1)
        await box.exec("truncate -s 65M huge")
        with pytest.raises(FileTooLarge):
            await box.files.read("huge")
        reading = box.files.open("huge")
        assert await anext(reading)
        await reading.aclose()  # type: ignore[attr-defined]

        async def broken() -> AsyncIterator[bytes]:
            yield b"x"
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError):
            await box.files.write("half", broken())
        assert not await box.files.exists("half"), "a write that breaks off changes nothing"


async def test_searching(open_hutch: Open) -> None:
    async with open_hutch() as hutch, hutch.box() as box:
        for name in ("a/one.py", "a/b/two.py", "a/three.txt"):
            await box.files.write(name, f"import {name}\nneedle\n")
        found = await box.files.glob("**/*.py")
        assert isinstance(found, Matches)
        assert sorted(found.paths) == ["a/b/two.py", "a/one.py"]
        assert not (await box.files.glob("**/*", limit=1)).complete
        hits = await box.files.grep("NEEDLE", ignore_case=True, glob="*.py")
        assert isinstance(hits, GrepResult)
        assert sorted((hit.path, hit.line, hit.text) for hit in hits.hits) == [
            ("a/b/two.py", 2, "needle"), ("a/one.py", 2, "needle"),
        ]  # fmt: skip
        with pytest.raises(Invalid):
            await box.files.grep("(")


async def test_names_of_any_bytes(open_hutch: Open, tmp_path: Path) -> None:
    """A file's name need not be UTF-8: every operation takes it and returns it."""
    async with open_hutch() as hutch, hutch.box() as box:
        files = box.files
        assert (await files.write(f"d/{ODD}", "x")).path == f"d/{ODD}"
        assert [each.path for each in await files.list("d")] == [f"d/{ODD}"]
        assert (await files.stat(f"d/{ODD}")).path == f"d/{ODD}"
        assert await files.read(f"d/{ODD}") == b"x"
        assert (await files.glob("d/*")).paths == (f"d/{ODD}",)
        assert (await files.grep("x", root="d")).hits[0].path == f"d/{ODD}"
        assert (await files.edit(f"d/{ODD}", "x", "y")).path == f"d/{ODD}"
        assert await files.digest(f"d/{ODD}")
        await files.move(f"d/{ODD}", f"d/{ODD}2")
        assert (await box.exec(["ls", f"d/{ODD}2"])).ok
        await files.copy_out("d", tmp_path / "out")
        assert os.listdir(tmp_path / "out") == [f"{ODD}2"]
        await files.copy_in(tmp_path / "out", f"d/{ODD}3")
        assert await files.exists(f"d/{ODD}3/{ODD}2")
        await files.remove(f"d/{ODD}2")
        assert not await files.exists(f"d/{ODD}2")
        with pytest.raises(FileMissing):
            await files.read(f"d/{ODD}")


async def test_a_watch(open_hutch: Open) -> None:
    """In place when entered; changes in order, odd names too; a wait that times out loses nothing."""
    async with open_hutch() as hutch, hutch.box() as box:
        async with box.files.watch() as changes:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(changes)
            await box.files.mkdir("d")
            await box.exec(["touch", ODD])
            seen: list[tuple[str, str]] = []
            while (ODD, "created") not in seen:
                async with asyncio.timeout(TIMEOUT):
                    change = await anext(changes)
                seen.append((change.path, change.kind))
            assert ("d", "created") in seen
        with pytest.raises(FileMissing):
            async with box.files.watch("nowhere"):
                pass


async def test_trees(open_hutch: Open, tmp_path: Path) -> None:
    """Whole trees both ways: modes, symlinks, into a directory that is there; what cannot be read is reported."""
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(os.urandom(3_000_000))
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("deep/file")
    async with open_hutch() as hutch, hutch.box() as box:
        assert await box.files.copy_in(tree, "copy") >= 3_000_000
        assert (await box.exec("copy/run.sh; readlink copy/link")).stdout == "ran\ndeep/file\n"
        assert await box.files.copy_in(tree / "run.sh", "copy/deep") > 0
        assert await box.files.exists("copy/deep/run.sh")
        assert await box.files.copy_out("copy", tmp_path / "back") >= 3_000_000
        assert (tmp_path / "back/deep/file").read_bytes() == (tree / "deep" / "file").read_bytes()
        assert os.readlink(tmp_path / "back/link") == "deep/file"
        with pytest.raises(FileMissing):
            await box.files.copy_out("nowhere", tmp_path / "none")
        with pytest.raises(FileMissing):
            await box.files.copy_in(tmp_path / "nowhere", "x")
