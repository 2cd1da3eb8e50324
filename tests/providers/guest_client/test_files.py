"""Files over a link to a real guest: typed answers, typed errors, streams, and what happens when a caller leaves."""

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.guest.guest_process import TIMEOUT, GuestProcess, running_guest, until

from hutch.api import Files
from hutch.errors import (
    FileChanged,
    FileDenied,
    FileFailed,
    FileMissing,
    FileThere,
    FileTooLarge,
    HutchError,
    Invalid,
    IsDirectory,
    NoMatch,
    NotDirectory,
    Unavailable,
)
from hutch.model.files import Change, FileKind
from hutch.providers.guest_client.files import GuestFiles
from hutch.providers.guest_client.link import Link


@pytest.fixture(scope="module")
def shared_guest() -> Iterator[GuestProcess]:
    with running_guest() as guest:
        yield guest


@pytest.fixture
def guest(shared_guest: GuestProcess) -> Iterator[GuestProcess]:
    """One guest for the module; each test finds an empty workdir."""
    yield shared_guest
    for name in os.listdir(shared_guest.workdir):
        path = shared_guest.workdir / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@asynccontextmanager
async def files_of(guest: GuestProcess) -> AsyncIterator[Files]:
    async with guest.link() as link:
        yield GuestFiles(answering(link), lambda _: 1 << 40)


def sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def answering(link: Link):  # type: ignore[no-untyped-def]
    async def connect() -> Link:
        return link

    return connect


async def test_content_survives(guest: GuestProcess) -> None:
    content = os.urandom(3_000_000)
    async with files_of(guest) as files:
        info = await files.write("a/b", content, mode=0o640)
        assert (info.path, info.kind, info.size, info.mode) == ("a/b", FileKind.FILE, len(content), 0o640)
        assert await files.read("a/b") == content
        assert await files.read("a/b", offset=1_000_000, limit=2_000) == content[1_000_000:1_002_000]
        assert b"".join([part async for part in files.open("a/b", offset=7)]) == content[7:]
        assert await files.digest("a/b") == hashlib.sha256(content).hexdigest()
        await files.write("a/b", "text ü", append=True)
        assert (await files.read("a/b"))[-7:] == "text ü".encode()
        assert await files.read("a/b", offset=10**12) == b""


async def test_a_write_from_an_iterator(guest: GuestProcess) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%05d" % number * 20_000

    async with files_of(guest) as files:
        assert (await files.write("big", parts(), sync=True)).size == 10_000_000
        assert await files.read("big", offset=9_999_995) == b"00099"


async def test_text_and_lines(guest: GuestProcess) -> None:
    (guest.workdir / "file").write_bytes(b"one\r\ntwo\xff\nthree")
    async with files_of(guest) as files:
        assert await files.read_text("file") == "one\r\ntwo�\nthree"
        assert await files.read_lines("file") == (["one\r", "two�", "three"], True)
        assert await files.read_lines("file", start=2, count=1) == (["two�"], False)
        await files.write("empty", b"")
        assert await files.read_lines("empty") == ([], True)


async def test_names(guest: GuestProcess) -> None:
    odd = "new\nline \udcff 🐇"
    async with files_of(guest) as files:
        await files.mkdir("x/y")
        await files.write(f"x/{odd}", b"1")
        (guest.workdir / "x/link").symlink_to("y")
        listed = await files.list("x")
        assert [(info.path, info.kind) for info in listed] == [
            ("x/link", FileKind.SYMLINK), (f"x/{odd}", FileKind.FILE), ("x/y", FileKind.DIRECTORY),
        ]  # fmt: skip
        assert listed[0].target == "y"
        await files.move(f"x/{odd}", "moved")
        assert await files.exists("moved")
        assert not await files.exists(f"x/{odd}")
        assert (await files.stat("moved")).size == 1
        await files.remove("x", recursive=True)
        await files.remove("x", missing_ok=True)
        assert [info.path for info in await files.list()] == ["moved"]


async def test_a_directory_with_many_entries(guest: GuestProcess) -> None:
    for number in range(3000):
        (guest.workdir / f"{number:04}{'x' * 200}").touch()
    async with files_of(guest) as files:
        assert [info.path[:4] for info in await files.list()] == [f"{number:04}" for number in range(3000)]
        assert len((await files.glob("*")).paths) == 3000
        assert (await files.glob("*", limit=10)).complete is False


async def test_errors_are_the_builtin_ones_too(guest: GuestProcess) -> None:
    """Lesson 18: a caller catches FileNotFoundError, wherever the file is."""
    (guest.workdir / "file").write_bytes(b"content content")
    os.mkfifo(guest.workdir / "fifo")
    async with files_of(guest) as files:
        with pytest.raises(FileMissing) as caught:
            await files.read("missing")
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.op == "files.read"
        assert caught.value.details["name"] == "ENOENT"
        with pytest.raises(FileThere):
            await files.mkdir("file", exist_ok=False)
        with pytest.raises(NotDirectory):
            await files.list("file")
        with pytest.raises(IsDirectory):
            await files.write(".", b"")
        with pytest.raises(FileFailed):
            await files.read("fifo")
        with pytest.raises(NoMatch) as many:
            await files.edit("file", "content", "x")
        assert many.value.details["count"] == 2
        with pytest.raises(FileChanged):
            await files.edit("file", "content", "x", replace_all=True, expect="0" * 64)
        with pytest.raises(Invalid):
            await files.edit("file", "", "x")
        with pytest.raises(Invalid):
            await files.read("nul\0")
        with pytest.raises(Invalid):
            await files.grep("(")
        with pytest.raises(FileMissing):
            await files.grep("x", root="missing")
        with pytest.raises(FileMissing):
            await anext(files.watch("missing"))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is denied to root")
async def test_a_denied_file(guest: GuestProcess) -> None:
    (guest.workdir / "sealed").touch(mode=0o444)
    async with files_of(guest) as files:
        with pytest.raises(FileDenied):
            await files.write("sealed", b"x")
        with pytest.raises(FileDenied):
            await files.read("/etc/shadow")


async def test_a_large_file_is_read_in_ranges_or_pieces(guest: GuestProcess) -> None:
    sparse(guest.workdir / "large", (64 << 20) + 1)
    async with files_of(guest) as files:
        with pytest.raises(FileTooLarge):
            await files.read("large")
        assert await files.read("large", offset=1 << 20, limit=10) == bytes(10)
        size = 0
        async for part in files.open("large"):
            size += len(part)
        assert size == (64 << 20) + 1


async def test_edit(guest: GuestProcess) -> None:
    """Lesson 19, through the link: bytes that JSON could not carry arrive as they are."""
    (guest.workdir / "file").write_bytes(b"a\xff\x00\r\nb")
    async with files_of(guest) as files:
        edited = await files.edit("file", b"\xff\x00", b"\xfe\x01\x02")
        assert (edited.replaced, edited.size) == (1, 7)
        assert (guest.workdir / "file").read_bytes() == b"a\xfe\x01\x02\r\nb"
        await files.edit("file", "b", "ü", expect=edited.digest)
        assert (guest.workdir / "file").read_bytes().endswith("ü".encode())


async def test_search(guest: GuestProcess) -> None:
    """Lesson 20: real glob, partial grep that says so."""
    async with files_of(guest) as files:
        for path in ("src/a.py", "src/x/y/b.py", "src/x/c.txt"):
            await files.write(path, f"name = {path!r}\n")
        assert (await files.glob("src/**/*.py")).paths == ("src/a.py", "src/x/y/b.py")
        found = await files.grep(r"name = '(.*)b\.py'", glob="*.py")
        assert [(hit.path, hit.line, hit.text) for hit in found.hits] == [("src/x/y/b.py", 1, "name = 'src/x/y/b.py'")]
        assert (found.complete, found.files_searched) == (True, 2)
        limited = await files.grep("name", limit=1)
        assert (len(limited.hits), limited.complete) == (1, False)
        assert "limit" in limited.note
        await files.write("src/x/z", b"n" * 5000)
        partial = await files.grep("name|(n+)+!", timeout_sec=1.0)
        assert len(partial.hits) == 3
        assert (partial.complete, partial.note) == (False, "stopped after 1 s")
    await until(lambda: guest.children() == [])  # the killed search is reaped


async def test_others_are_served_while_one_waits(guest: GuestProcess) -> None:
    """A reader that does not read and a search without an end hold up no other request."""
    sparse(guest.workdir / "large", 1 << 30)
    (guest.workdir / "trap").write_bytes(b"a" * 5000)
    async with files_of(guest) as files:
        reader = aiter(files.open("large"))
        await anext(reader)
        search = asyncio.create_task(files.grep("(a+)+b", root="trap", timeout_sec=60))
        for number in range(50):
            await files.write("small", str(number))
            assert await files.read_text("small") == str(number)
        assert not search.done()
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search
    await until(lambda: guest.children() == [])  # a cancelled search is killed


async def test_a_caller_that_gives_up_leaves_nothing(guest: GuestProcess) -> None:
    """Lesson 21: the temporary file is removed when the writer fails, is cancelled, or loses its connection."""

    def is_clean() -> bool:
        return os.listdir(guest.workdir) == []

    async def failing() -> AsyncIterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1000)
            await asyncio.sleep(0)

    async with files_of(guest) as files:
        with pytest.raises(ZeroDivisionError):
            await files.write("new", failing())
        await until(is_clean)  # a failed write is removed
        task = asyncio.create_task(files.write("new", endless()))
        while is_clean():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(is_clean)  # a cancelled write is removed
        task = asyncio.create_task(files.write("new", endless()))
        while is_clean():
            await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await task
    await until(is_clean)  # the write of a lost connection is removed


async def test_nothing_stays_open(guest: GuestProcess) -> None:
    sparse(guest.workdir / "large", 100 << 20)
    async with files_of(guest) as files:
        await files.exists(".")
        before = len(guest.descriptors())
        for _ in range(5):
            reader = aiter(files.open("large"))
            await anext(reader)
            await reader.aclose()  # type: ignore[attr-defined]
            async with files.watch() as changes:  # type: ignore[attr-defined]
                await files.write("x", b"")
                await anext(changes)
            async for _part in files.open("large"):
                break
            for path in ("missing/x", "large/x"):
                with pytest.raises(HutchError):
                    await files.read(path)
        await until(lambda: _settled(guest, before))  # every descriptor is closed


def _settled(guest: GuestProcess, before: int) -> bool:
    return len(guest.descriptors()) <= before + 1  # one more for a reader that the collector has not closed yet


async def test_watch(guest: GuestProcess) -> None:
    async with files_of(guest) as files:
        async with files.watch() as changes:  # type: ignore[attr-defined]
            await files.write("new/file", b"x")
            seen: set[tuple[str, str]] = set()
            async with asyncio.timeout(TIMEOUT):
                async for change in changes:
                    assert isinstance(change, Change)
                    seen.add((change.kind, change.path))
                    if ("moved_to", "new/file") in seen or ("created", "new/file") in seen:
                        break
        assert ("created", "new") in seen


async def test_a_wait_for_changes_may_time_out_and_go_on(guest: GuestProcess) -> None:
    async with files_of(guest) as files:
        async with files.watch() as changes:  # type: ignore[attr-defined]
            for number in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(changes), 0.05)
                (guest.workdir / str(number)).mkdir()
                change = await asyncio.wait_for(anext(changes), TIMEOUT)
                assert (change.kind, change.path, change.directory) == ("created", str(number), True)


async def test_a_watch_ends_with_what_it_watches(guest: GuestProcess) -> None:
    async with files_of(guest) as files:
        await files.mkdir("d")
        async with files.watch("d") as changes:  # type: ignore[attr-defined]
            await files.remove("d")
            async with asyncio.timeout(TIMEOUT):
                assert [change.kind async for change in changes][-1] == "deleted"


async def test_an_unread_watch_reports_that_it_missed_changes(guest: GuestProcess) -> None:
    """The bound is the kernel's queue; neither the guest nor the link holds more than its window."""
    bound = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if bound > 100_000:
        pytest.skip(f"the queue holds {bound} events")
    async with files_of(guest) as files:
        async with files.watch() as changes:  # type: ignore[attr-defined]
            link_window, row = 4 << 20, 300
            for number in range((bound + link_window // row) // 2 + 2000):
                os.rename(_made(guest.workdir / "a", number), guest.workdir / ("b" * 200))
                os.rename(guest.workdir / ("b" * 200), guest.workdir / "a")
            async with asyncio.timeout(TIMEOUT):
                async for change in changes:
                    if change.kind == "overflow":
                        break


def _made(path: Path, number: int) -> Path:
    if number == 0:
        path.touch()
    return path
