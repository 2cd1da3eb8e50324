"""What changes on a box, and what outlives it: the same in every form of Hutch (see conftest.py)."""

import asyncio
import os
from pathlib import Path

import pytest

from hutch.errors import (
    Conflict,
    Invalid,
    NotFound,
    Unsupported,
)
from hutch.model.boxes import Event, State, VolumeInfo
from hutch.model.spec import Retention
from hutch.model.status import Condition
from tests.both.forms import TIMEOUT, Open


async def test_a_temporary_box_becomes_persistent(open_hutch: Open) -> None:
    """`set_retention` on a live box: same id, lease and files, which now outlive a stop. A job that runs would be
    ended, so the box stays as it is until nothing runs (P15, P16)."""
    async with open_hutch() as hutch:
        box = await hutch.create(name=f"n{os.urandom(4).hex()}", idle_timeout_sec=600)
        try:
            await box.files.write("deep/er/f", b"\x00kept")
            await box.exec("ln -s deep/er/f link; chmod 700 deep; echo mine > ~/notes")
            job = await box.start("sleep 600")
            with pytest.raises(Conflict, match=f"job {job.id} runs") as busy:
                await box.change(retention=Retention.PERSISTENT)
            assert busy.value.remedy and await box.files.read("deep/er/f") == b"\x00kept"
            assert (await box.info()).spec.retention is Retention.TEMPORARY
            await job.signal(9)
            await job.wait(TIMEOUT)
            assert await box.change(retention=Retention.PERSISTENT, idle_timeout_sec=500) == ()
            info = await box.info()
            assert (info.spec.retention, info.spec.idle_timeout_sec) == (Retention.PERSISTENT, 500)
            assert (await box.exec("cat link ~/notes; stat -c %a deep")).stdout == "\0keptmine\n700\n"
            await box.stop()
            assert await box.state() is State.STOPPED
            back = await hutch.attach(box.id)
            assert (await back.exec("cat link ~/notes")).stdout == "\0keptmine\n"
        finally:
            await hutch.destroy(box.id, force=True)


async def test_a_box_that_cannot_become_persistent_gives_the_reason_and_keeps_running(open_hutch: Open) -> None:
    """The values of secrets are in no record, so such a box could not come back as it was (P15)."""
    async with open_hutch() as hutch, hutch.box(secrets={"KEY": "hidden"}) as box:
        await box.files.write("f", "here")
        with pytest.raises(Unsupported, match="secrets") as refused:
            await box.change(retention=Retention.PERSISTENT)
        assert "import" in (refused.value.remedy or "")
        assert (await box.exec("cat f; echo $KEY")).stdout == "herehidden\n"


async def test_a_box_that_changes(open_hutch: Open) -> None:
    """Names, limits, idle time and retention of a live box; pause; stop and come back (B14, P15, P16)."""
    name = f"n{os.urandom(4).hex()}"
    async with open_hutch() as hutch:
        async with hutch.box(memory_mb=200) as box:
            await box.rename(name)
            assert (await hutch.find(name)).id == (await hutch.find(box.id[:8])).id == box.id
            assert await box.change(memory_mb=300, idle_timeout_sec=77) == ()
            info = await box.info()
            assert (info.spec.limits.memory_mb, info.spec.idle_timeout_sec) == (300, 77)
            assert box.spec.limits.memory_mb == 300
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


async def test_volumes_and_events(open_hutch: Open) -> None:
    """A volume outlives boxes; what happened is listed in order (P12)."""
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
    """The status names state and provider; providers say what they can do (B25)."""
    async with open_hutch() as hutch:
        status = await hutch.status()
        assert (status.state, status.available, status.provider) == (Condition.READY, True, "native")
        assert "native" in [each.provider for each in await hutch.providers()]
