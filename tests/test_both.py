"""One suite for every form of Hutch: embedded, over a Unix socket, over TCP. The same tests, the same types, the same
errors (DESIGN §3, issue 4.3)."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import (
    BoxBusy,
    Conflict,
    FileChanged,
    FileMissing,
    FileTooLarge,
    Gone,
    Invalid,
    IsDirectory,
    LeaseLost,
    NoMatch,
    NotFound,
    NotRunnable,
    Refused,
    Timeout,
)
from hutch.model.boxes import BoxInfo, Event, VolumeInfo
from hutch.model.files import Edited, FileInfo, FileKind, GrepResult, Matches
from hutch.model.results import Cause, JobInfo, JobState, Result, Usage
from hutch.model.spec import EffectiveSpec
from hutch.model.state import State
from hutch.model.status import Condition
from tests.server.serving import Server, serving

Open = Callable[..., AbstractAsyncContextManager[Hutch]]
PATIENCE = 30.0
ODD = b"odd \xff\xfe name".decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture(params=["embedded", "unix", "tcp"])
def open_hutch(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a Hutch of the form in question; several are several sessions of one owner."""
    form: str = request.param
    server: Server | None = request.getfixturevalue("server") if form != "embedded" else None
    key = server.key("user", f"owner-{os.urandom(4).hex()}") if server is not None and form == "tcp" else ""

    @asynccontextmanager
    async def opened(**options: str) -> AsyncIterator[Hutch]:
        if server is None:
            hutch = Hutch(**options)
        elif form == "unix":
            hutch = Hutch(f"unix:{server.run}/server.sock", **options)
        else:
            hutch = Hutch(server.announcement["url"], key=key, **options)
        async with hutch:
            yield hutch

    return opened


async def test_a_box_and_its_commands(open_hutch: Open) -> None:
    """DESIGN §3: create, exec in all its forms, the result whatever the command did, gone at the end."""
    async with open_hutch() as hutch:
        async with hutch.box(memory_mb=200, labels={"a": "b"}) as box:
            assert isinstance(box.spec, EffectiveSpec)
            assert (box.spec.limits.memory_mb, box.spec.labels["a"]) == (200, "b")
            result = await box.exec("echo out; echo err >&2; exit 3")
            assert isinstance(result, Result)
            assert (result.stdout, result.stderr, result.exit_code, result.verdict.cause) == (
                "out\n", "err\n", 3, Cause.EXIT,
            )  # fmt: skip
            options = {"cwd": "/tmp", "env": {"A": "é"}, "stdin": b"\xff\x00in"}
            result = await box.exec(["sh", "-c", "pwd; echo $A; cat"], **options)  # type: ignore[arg-type]
            assert result.stdout_bytes == "/tmp\né\n".encode() + b"\xff\x00in"
            assert (await box.exec("cat", stdin="text")).stdout == "text"
            assert (await box.exec("id -u", user="root")).stdout == "0\n"
            late = await box.exec("sleep 60", timeout=0.2)
            assert (late.verdict.cause, late.ok) == (Cause.TIMEOUT, False)
            short = await box.exec("head -c 100000 /dev/zero", keep_output=1000)
            assert (len(short.stdout_bytes), short.stdout_total, short.stdout_truncated) == (1000, 100000, True)
            clamped = await box.exec("true", timeout=100_000)
            assert clamped.notes and "timeout" in clamped.notes[0]
            assert isinstance(await box.usage(), Usage)
            info = await box.info()
            assert isinstance(info, BoxInfo)
            assert (info.id, info.state, await box.state()) == (box.id, State.RUNNING, State.RUNNING)
            assert [each.id for each in await hutch.boxes() if each.id == box.id] == [box.id]
            with pytest.raises(NotRunnable):
                await box.exec(["/no/such/program"])
            with pytest.raises(Invalid):
                await box.exec("  ")
        with pytest.raises(Gone):
            await hutch.attach(box.id)
        await hutch.destroy(box.id)


async def test_errors_are_the_builtin_ones_too(open_hutch: Open) -> None:
    """Errors survive the wire: class, code, details, remedy, and the builtin a programmer expects."""
    async with open_hutch() as hutch, hutch.box() as box:
        with pytest.raises(FileNotFoundError) as missing:
            await box.files.read("nowhere")
        assert isinstance(missing.value, FileMissing)
        assert missing.value.code == "file_not_found"
        with pytest.raises(IsADirectoryError):
            await box.files.read("/tmp")
        with pytest.raises(ValueError, match="memry_mb"):
            await hutch.create(memry_mb=1)
        with pytest.raises(NotFound):
            await hutch.attach("a" * 20)
        with pytest.raises(LookupError):
            await box.job("none-1")
        with pytest.raises(Refused):
            await hutch.create(mounts=["/etc:/mnt/etc:rw"])
        job = await box.start("sleep 1000")
        with pytest.raises(TimeoutError) as late:
            await job.wait(0.05)
        assert isinstance(late.value, Timeout)


async def test_a_command_that_is_read_along(open_hutch: Open) -> None:
    """Streams: pieces as they come, the result at the end, nothing lost; leaving early kills."""
    async with open_hutch() as hutch, hutch.box() as box:
        stream = box.stream("cat; echo err >&2; seq 200000", stdin="in\n")
        parts = {"stdout": b"", "stderr": b""}
        async for name, data in stream:
            parts[name] += data
        assert parts["stderr"] == b"err\n"
        assert parts["stdout"] == b"in\n" + b"".join(b"%d\n" % number for number in range(1, 200_001))
        assert stream.result.ok
        assert not await box.jobs()
        pieces = aiter(box.stream("yes"))
        await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]
        assert not await box.jobs()
        with pytest.raises(Invalid):
            _ = box.stream("true").result
        with pytest.raises(NotRunnable):
            async for _ in box.stream(["/no/such"]):
                pass


async def test_cancelling_kills(open_hutch: Open) -> None:
    """A caller that goes away takes its command along."""
    async with open_hutch() as hutch, hutch.box() as box:
        running = asyncio.create_task(box.exec("touch begun; sleep 1000; touch ended"))
        while not await box.files.exists("begun"):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while (await box.exec("pgrep -x sleep")).ok:
            await asyncio.sleep(0.01)


async def test_jobs(open_hutch: Open) -> None:
    """A process as a resource: read by cursor, written, signalled, resized, waited for, forgotten."""
    async with open_hutch() as hutch, hutch.box() as box:
        job = await box.start("cat; echo bye >&2", name="cat")
        await job.write("one\n")
        chunk = await job.read(wait=PATIENCE)
        assert (chunk.data, chunk.cursor, chunk.eof) == (b"one\n", 4, False)
        await job.write(b"two\n")
        assert (await job.read(wait=PATIENCE)).data == b"two\n", "it goes on where the last read ended"
        assert (await job.read(1, limit=2)).data == b"ne"
        info = await job.info()
        assert isinstance(info, JobInfo)
        assert (info.name, info.state) == ("cat", JobState.RUNNING)
        with pytest.raises(Conflict):
            await box.forget(job.id)
        await job.close_stdin()
        result = await job.wait(PATIENCE)
        assert (result.stdout, result.stderr, result.exit_code) == ("one\ntwo\n", "bye\n", 0)
        again = await box.job(job.id)
        got = [piece async for piece in again.follow(stdout=4)]
        assert sorted(got) == [("stderr", b"bye\n"), ("stdout", b"two\n")]
        with pytest.raises(Conflict):
            await job.write("x")
        await box.forget(job.id)
        assert not await box.jobs()
        shell = await box.start(
            "trap 'stty size; exit 5' USR1; stty size; while :; do sleep 0.01; done", pty=True, rows=11, cols=22
        )
        assert b"11 22" in (await shell.read(wait=PATIENCE)).data
        await shell.resize(33, 44)
        await shell.signal(10)
        assert (await shell.wait(PATIENCE)).exit_code == 5
        assert b"33 44" in (await shell.read(wait=PATIENCE)).data
        with pytest.raises(Invalid):
            await job.read(stream="stdin")


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
    """A file's name need not be UTF-8: every operation takes it and tells it."""
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
                async with asyncio.timeout(PATIENCE):
                    change = await anext(changes)
                seen.append((change.path, change.kind))
            assert ("d", "created") in seen
        with pytest.raises(FileMissing):
            async with box.files.watch("nowhere"):
                pass


async def test_trees(open_hutch: Open, tmp_path: Path) -> None:
    """Whole trees both ways: modes, symlinks, into a directory that is there; what cannot be read is told."""
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


async def test_leases_between_sessions(open_hutch: Open) -> None:
    """P6: busy for others, takeover, and an old handle is refused however late it comes."""
    async with open_hutch() as hutch:
        first, second = hutch.for_session("one"), hutch.for_session("two")
        assert (first.session, second.session) == ("one", "two")
        box = await first.create()
        try:
            with pytest.raises(BoxBusy):
                await second.attach(box.id)
            with pytest.raises(BoxBusy):
                await second.destroy(box.id)
            taken = await second.attach(box.id, takeover=True)
            with pytest.raises(LeaseLost):
                await box.exec("true")
            with pytest.raises(LeaseLost):
                await box.renew()
            await taken.release()
            with pytest.raises(LeaseLost):
                await box.exec("true")
            with pytest.raises(LeaseLost):
                await taken.exec("true")
            again = await first.attach(box.id)
            assert (await again.exec("true")).ok
            await again.renew()
            lease = (await again.info()).lease
            assert lease is not None and lease.holder == "one" and lease.seconds == 600
        finally:
            await hutch.destroy(box.id, force=True)


async def test_looking_takes_no_lease(open_hutch: Open) -> None:
    """P8: an observer reads and extends nothing; every change is refused."""
    async with open_hutch() as hutch:
        box = await hutch.create()
        try:
            await box.files.write("f", "seen")
            job = await box.start("echo told; sleep 1000")
            await job.read(wait=PATIENCE)
            await box.release()
            before = await hutch.find(box.id)
            seen = await hutch.observe(box.id)
            assert await seen.files.read("f") == b"seen"
            assert (await (await seen.job(job.id)).read()).data == b"told\n"
            assert [each.id for each in await seen.jobs()] == [job.id]
            assert (await seen.info()).lease is None
            for refused in (
                seen.exec("true"), seen.start("true"), seen.files.write("f", "x"), seen.files.remove("f"),
                seen.pause(), seen.rename("x"), seen.destroy(), (await seen.job(job.id)).signal(9),
                seen.change(memory_mb=1), seen.forget(job.id),
            ):  # fmt: skip
                with pytest.raises(PermissionError):
                    await refused
            after = await hutch.find(box.id)
            assert (after.used_at - before.used_at < 0.001, after.lease, after.epoch) == (True, None, before.epoch)
        finally:
            await hutch.destroy(box.id, force=True)


async def test_a_conversation_finds_its_box(open_hutch: Open) -> None:
    """DESIGN §4, lesson 33: each scope has its own box; leaving releases it; a missing value is an error."""
    values = {"chat": 7, "user": os.urandom(4).hex()}
    async with open_hutch() as hutch:
        async with hutch.box_for("{chat}_{user}", spec={"memory_mb": 200}, **values) as box:
            await box.files.write("f", "mine")
            assert box.spec.limits.memory_mb == 200
        assert (await hutch.find(box.id)).lease is None
        async with hutch.box_for("{chat}_{user}", spec={"memory_mb": 300}, **values) as again:
            assert (again.id, await again.files.read("f")) == (box.id, b"mine")
            assert again.spec.limits.memory_mb == 300, "limits follow (B14)"
        with pytest.raises(Conflict):
            async with hutch.box_for("{chat}_{user}", spec={"network": "on"}, **values):
                pass
        async with hutch.box_for("{chat}_{user}", kind="other", **values) as other:
            assert other.id != box.id
        with pytest.raises(Invalid):
            async with hutch.box_for("{chat}_{user}", chat=1):
                pass
        for each in (box, other):
            await hutch.destroy(each.id)


async def test_current_default_and_working(open_hutch: Open) -> None:
    """P3, P6, P7: a session's current box, the owner's default, and what a call falls through to, with a note."""
    async with open_hutch() as hutch:
        mine = hutch.for_session(f"s{os.urandom(4).hex()}")
        assert await mine.current() is None
        box = await mine.working(memory_mb=128)
        assert await mine.current() == box.id
        assert (await mine.working()).id == box.id
        await hutch.set_default(box.id)
        assert await hutch.default() == box.id
        await mine.leave()
        assert await mine.current() is None
        other = hutch.for_session(f"t{os.urandom(4).hex()}")
        assert (await other.switch(box.id)).id == box.id
        fresh = await mine.working(memory_mb=128)
        assert fresh.id != box.id
        assert any("held by another session" in note for note in fresh.notes)
        await hutch.destroy(fresh.id, force=True)
        after = await mine.working(memory_mb=128)
        assert any("files are lost" in note for note in after.notes)
        for each in (box, after):
            await hutch.destroy(each.id, force=True)


async def test_a_box_that_changes(open_hutch: Open) -> None:
    """B14, P15, P16: names, limits, idle time and retention of a live box; pause; stop and come back."""
    name = f"n{os.urandom(4).hex()}"
    async with open_hutch() as hutch:
        async with hutch.box(memory_mb=200) as box:
            await box.rename(name)
            assert (await hutch.find(name)).id == (await hutch.find(box.id[:8])).id == box.id
            assert await box.change(memory_mb=300, idle_timeout_sec=77) == ()
            info = await box.info()
            assert (info.spec.limits.memory_mb, info.spec.idle_timeout_sec) == (300, 77)
            assert box.spec.limits.memory_mb == 300
            assert await box.change(retention="persistent") == ("retention",)  # type: ignore[arg-type]
            with pytest.raises(Invalid):
                await box.change(memmory=1)
            with pytest.raises(Conflict):
                async with hutch.box(name=name):
                    pass
            await box.pause()
            assert await box.state() is State.PAUSED
            assert (await box.exec("echo awake")).stdout == "awake\n"
        lasting = await hutch.create(retention="persistent")
        try:
            await lasting.files.write("f", "kept")
            await lasting.stop()
            assert await lasting.state() is State.STOPPED
            back = await hutch.attach(lasting.id)
            assert await back.files.read("f") == b"kept"
        finally:
            await hutch.destroy(lasting.id, force=True)


async def test_a_key_makes_a_retry_safe(open_hutch: Open) -> None:
    async with open_hutch() as hutch:
        key = f"{os.urandom(8).hex()} é\r\nX-Evil: 1 %41"
        one, two = await asyncio.gather(hutch.create(key=key), hutch.create(key=key))
        assert one.id == two.id
        await one.destroy()


async def test_volumes_and_events(open_hutch: Open) -> None:
    """P12: a volume outlives boxes; what happened is told in order."""
    name = f"v{os.urandom(4).hex()}"
    async with open_hutch() as hutch:
        made = await hutch.volumes.create(name)
        assert isinstance(made, VolumeInfo)
        with pytest.raises(Conflict):
            await hutch.volumes.create(name)
        async with hutch.box(workspace=f"volume:{name}") as box:
            await box.files.write("f", "stays")
            with pytest.raises(Conflict):
                await hutch.volumes.remove(name)
        async with hutch.box(workspace=f"volume:{name}") as later:
            assert await later.files.read("f") == b"stays"
        async with hutch.box(workspace=f"volume:{name}:none") as without:
            assert not await without.files.exists("/workspace/f")
        assert (await hutch.volumes.get(name)).created_at == made.created_at
        assert name in [each.name for each in await hutch.volumes.all()]
        await hutch.volumes.remove(name)
        with pytest.raises(NotFound):
            await hutch.volumes.get(name)
        events, after = list[Event](), 0
        while page := await hutch.events(after):
            events += page
            after = page[-1].seq
        mine = [event for event in events if event.box_id == box.id]
        assert (mine[0].kind, mine[-1].kind) == ("created", "gone")
        assert [event.seq for event in events] == sorted(event.seq for event in events)


async def test_skills(open_hutch: Open, tmp_path: Path) -> None:
    """Skills of this owner through the same protocol: from a directory of this machine, versions, files, a group."""
    name = f"s{os.urandom(4).hex()}"
    (tmp_path / name / "scripts").mkdir(parents=True)
    (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: what it does\n---\n\n# Do it\n")
    (tmp_path / name / "scripts" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / name / "scripts" / "run.sh").chmod(0o755)
    async with open_hutch() as hutch:
        skills = hutch.skills
        assert [found.name for found in await skills.scan(tmp_path)] == [name]
        preview = await skills.preview(tmp_path / name)
        made = await skills.install(tmp_path / name, digest=preview.digest)
        assert (made.name, made.description, made.digest) == (name, "what it does", preview.digest)
        assert name in [each.name for each in await skills.all()]
        assert "# Do it" in await skills.body(name)
        files = {each.path: each.executable for each in await skills.files(name)}
        assert files == {"SKILL.md": False, "scripts/run.sh": True}
        assert await skills.read_file(name, "scripts/run.sh") == b"#!/bin/sh\necho ran\n"
        changed = await skills.write_file(name, "notes.md", "new", expect=made.digest)
        assert [each.digest for each in await skills.versions(name)] == [changed.digest, made.digest]
        assert (await skills.rollback(name)).digest == made.digest
        assert (await skills.bind(f"g{name}", [name])).skills == (name,)
        assert await skills.bind(f"g{name}", []) is not None
        again = await skills.install(await skills.export(name))
        assert again.digest == made.digest
        with pytest.raises(NotFound):
            await skills.get("none-such")
        await skills.remove(name)


async def test_receipts(open_hutch: Open) -> None:
    """What was done is on record, through the same protocol."""
    async with open_hutch() as hutch, hutch.box() as box:
        await box.exec("echo hi")
        await hutch.receipts.note(box.id, "note.approved", {"by": "me"})
        while not {"exec", "note.approved"} <= {each.op for each in await hutch.receipts.list(box.id)}:
            await asyncio.sleep(0.01)
        assert box.id in [each.box for each in await hutch.receipts.chains()]
        assert all(check.ok for check in await hutch.receipts.verify(box.id))
        lines = b"".join([piece async for piece in hutch.receipts.export(box.id)]).splitlines()
        assert any(b"note.approved" in line for line in lines)


async def test_what_there_is(open_hutch: Open) -> None:
    """B25: the status names state and provider; providers say what they can do."""
    async with open_hutch() as hutch:
        status = await hutch.status()
        assert (status.state, status.available, status.provider) == (Condition.READY, True, "native")
        assert "native" in [each.provider for each in await hutch.providers()]
