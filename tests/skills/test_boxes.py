"""Skills in real native boxes: visible at once, never writable, separate for each owner."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.config import Config
from hutch.errors import FileTooLarge, NotFound, QuotaExceeded, Refused
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.embedded import Hutch
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.owner_view import OwnerView
from hutch.keeper.store.store import MemoryStore
from hutch.model.capabilities import Capabilities
from hutch.model.spec import Spec
from hutch.providers.native.provider import NativeProvider
from hutch.skills import tool_call
from hutch.skills.sources import Directory
from hutch.tools import Tools
from tests.skills.make_skill import manifest, run_dir, skill
from tests.skills.wheels import npm_archive, wheel

pytestmark = pytest.mark.slow

AT = "/workspace/.skills"


@asynccontextmanager
async def opened(top: Path, **settings: Any) -> AsyncIterator[Hutch]:
    async with Hutch(state_dir=top / "state", run_dir=run_dir(top), mount_roots=[str(top)], **settings) as hutch:
        yield hutch


async def output_of(box: Any, command: str, **options: Any) -> str:
    result = await box.exec(command, **options)
    return str(result.stdout + result.stderr)


async def test_shown_in_a_running_box(tmp_path: Path) -> None:
    """Installed, changed and removed skills are seen without recreating the box (B12, lesson 40)."""
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path, "another"))
        box = await hutch.create()
        assert await output_of(box, f"ls -A {AT}") == "another\n"
        await hutch.skills.install(skill(tmp_path, run="#!/bin/sh\necho one\n"))
        assert await output_of(box, f"{AT}/demo/run") == "one\n"
        await hutch.skills.write_file("demo", "run", "#!/bin/sh\necho two\n")
        assert await output_of(box, f"{AT}/demo/run") == "two\n"
        await hutch.skills.rollback("demo")
        assert await output_of(box, f"{AT}/demo/run") == "one\n"
        async with hutch.box() as later:
            assert await output_of(later, f"ls {AT}") == "another\ndemo\n"
        await hutch.skills.remove("demo")
        assert await output_of(box, f"ls -A {AT}") == "another\n"
        kinds = [event.reason.split(" from ")[0] for event in await hutch.events() if event.kind == "skill"]
    assert kinds == ["installed another", "installed demo", "edited demo", "rolled back demo", "removed demo"]


async def test_the_first_skill_reaches_boxes_that_were_made_without(tmp_path: Path) -> None:
    """An owner without skills pays nothing for them, and need not recreate a box for the first one (B12)."""
    work = tmp_path / "work"
    work.mkdir(mode=0o777)
    async with opened(tmp_path) as hutch, hutch.box() as box, hutch.box(workspace=str(work)):
        assert await output_of(box, "ls -A /workspace") == ""
        await hutch.skills.install(skill(tmp_path, run="#!/bin/sh\necho one\n"))
        assert await output_of(box, f"{AT}/demo/run") == "one\n"
        await hutch.skills.write_file("demo", "run", "#!/bin/sh\necho two\n")
        assert await output_of(box, f"{AT}/demo/run") == "two\n"
        await hutch.skills.remove("demo")
        assert await output_of(box, f"ls -A {AT}") == ""
        assert os.listdir(work) == [], "a workspace of the host gets no files that nobody put there"


async def test_never_writable(tmp_path: Path, rootless: bool) -> None:
    """Skills are read-only for the box's user and for its root, and the host's files stay as they were (B39)."""
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path, a="1"))
        async with hutch.box(workdir="/tmp") as box:
            for user in ("user",) if rootless else ("user", "root"):
                for command in (
                    f"echo x > {AT}/demo/a", f"touch {AT}/new", f"rm -rf {AT}/demo", f"chmod 777 {AT}/demo/a",
                    f"mv {AT} /workspace/away", f"rmdir {AT}", f"umount {AT}", f"mount -o remount,rw {AT}",
                    f"mkdir /tmp/m && mount --bind /tmp/m {AT}", f"ln {AT}/demo/a /tmp/linked",
                ):  # fmt: skip
                    result = await box.exec(command, user=user)
                    assert result.exit_code != 0, (user, command)
            assert await output_of(box, f"cat {AT}/demo/a; ls {AT}") == "1demo\n"
        assert await hutch.skills.read_file("demo", "a") == b"1"


async def test_a_reader_never_finds_it_missing(tmp_path: Path) -> None:
    """A version is swapped in one step: a reader sees the old one or the new one, complete."""
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path, first="0", second="0"))
        async with hutch.box() as box:
            # Both files are read through one descriptor of the directory, so that they are of one version.
            reader = (
                "import os\n"
                f"while not os.path.exists('/workspace/stop'):\n"
                f"    d = os.open('{AT}/demo', os.O_RDONLY)\n"
                "    try:\n"
                "        one, two = (open(os.open(n, os.O_RDONLY, dir_fd=d)).read() for n in ('first', 'second'))\n"
                "    except FileNotFoundError: pass\n"  # swapped away and removed between two opens
                "    else: assert one == two, (one, two)\n"
                "    os.close(d)\n"
                "print('never missing')\n"
            )
            await box.files.write("read.py", reader)
            reading = asyncio.create_task(output_of(box, "python3 read.py", timeout=60))
            for number in range(1, 30):
                text = str(number).encode()
                await hutch.skills.change_files("demo", {"first": text, "second": text})
            await box.files.write("stop", "")
            assert await reading == "never missing\n"


async def test_each_owner_sees_its_own(tmp_path: Path) -> None:
    """One owner's skills, and the store itself, are not visible in another's box."""
    async with opened(tmp_path) as hutch:
        keeper = hutch._keeper
        for owner in ("ann", "bob"):
            await OwnerView(keeper, owner).skills.install(Directory(str(skill(tmp_path / owner, f"of-{owner}"))))
        boxes = {}
        for owner in ("ann", "bob"):
            live = await keeper.create(Spec(), session="s", owner=owner)
            boxes[owner] = BoxHandle(keeper, live, "s")
        for owner, box in boxes.items():
            assert await output_of(box, f"ls {AT}") == f"of-{owner}\n"
            # The mount's root is the view, so there is no way up to those of others.
            assert "of-" not in (await output_of(box, f"ls -a {AT}/.. {AT}/../..")).replace(f"of-{owner}", "")
            mounts = await output_of(box, "grep skills /proc/self/mountinfo")
            assert mounts.count("\n") == 1 and " ro," in mounts


async def test_groups_and_none(tmp_path: Path) -> None:
    """A pipeline's boxes show what is bound to it; others show all, or nothing (B10, B12)."""
    async with opened(tmp_path) as hutch:
        for name in ("one", "two"):
            await hutch.skills.install(skill(tmp_path, name))
        await hutch.skills.bind("pipeline", ["two", "three"])
        async with hutch.box(skills="pipeline") as bound, hutch.box(skills="none") as bare, hutch.box() as whole:
            assert await output_of(bound, f"ls {AT}") == "two\n"
            assert await output_of(bare, "ls -A /workspace") == ""
            assert await output_of(whole, f"ls {AT}") == "one\ntwo\n"
            await hutch.skills.install(skill(tmp_path, "three"))
            assert await output_of(bound, f"ls {AT}") == "three\ntwo\n"


async def test_a_workspace_of_the_host_keeps_no_trace(tmp_path: Path) -> None:
    """The mount point in a host directory is an empty directory and is removed with the last box; a user's own
    directory of that name is never covered; a read-only workspace shows skills too."""
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path))
        work = tmp_path / "work"
        work.mkdir()
        work.chmod(0o777)
        one = await hutch.create(workspace=str(work))
        two = await hutch.create(workspace=f"{work}:ro")
        for box in (one, two):
            assert await output_of(box, f"ls {AT}") == "demo\n"
        assert os.listdir(work / ".skills") == []
        await one.destroy()
        assert await output_of(two, f"ls {AT}") == "demo\n"
        await two.destroy()
        assert os.listdir(work) == []
        (work / ".skills").mkdir()
        (work / ".skills" / "mine").write_text("mine")
        async with hutch.box(workspace=str(work)) as box:
            assert await output_of(box, f"ls {AT}") == "mine\n"
        assert os.listdir(work / ".skills") == ["mine"]
        assert any("shows no skills" in event.reason for event in await hutch.events() if event.kind == "warning")


async def test_a_box_that_found_no_room_leaves_no_mount_point(tmp_path: Path) -> None:
    async with opened(tmp_path, max_boxes=1, queue_sec=0) as hutch:
        await hutch.skills.install(skill(tmp_path))
        work = tmp_path / "work"
        work.mkdir()
        async with hutch.box():
            with pytest.raises(QuotaExceeded):
                await hutch.create(workspace=str(work))
        assert os.listdir(work) == []


async def test_a_volume_and_a_persistent_box(tmp_path: Path) -> None:
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path))
        volume = await hutch.volumes.create("notes")
        async with hutch.box(workspace="volume:notes") as box:
            assert await output_of(box, f"ls {AT}; touch kept") == "demo\n"
        assert os.listdir(volume.path) == ["kept"]
        box = await hutch.create(retention="persistent")
        assert await output_of(box, f"ls {AT}") == "demo\n"
        await box.stop()
        await hutch.skills.install(skill(tmp_path, "second"))
        again = await hutch.attach(box.id)
        assert await output_of(again, f"ls {AT}") == "demo\nsecond\n"
        await again.destroy()


async def test_boxes_of_the_pool(tmp_path: Path) -> None:
    """A box created before it had an owner shows that owner's skills, and no other's."""
    async with opened(tmp_path, pool={"default": 1}) as hutch:
        keeper = hutch._keeper
        await OwnerView(keeper, "ann").skills.install(Directory(str(skill(tmp_path, "of-ann"))))
        while not keeper.pool.waiting()["default"]:
            await asyncio.sleep(0.01)
        live = await keeper.create(Spec(), session="s", owner="ann")
        assert "claimed" in [event.kind for event in await hutch.events()]
        box = BoxHandle(keeper, live, "s")
        assert await output_of(box, f"ls {AT}") == "of-ann\n"
        await OwnerView(keeper, "ann").skills.install(Directory(str(skill(tmp_path, "later"))))
        assert await output_of(box, f"ls {AT}") == "later\nof-ann\n"
        views = tmp_path / "state" / "skills" / "views"
        assert len(list(views.glob(f"*/box-{box.id}"))) == 1
        await box.destroy()
        assert list(views.glob(f"*/*box-{box.id}*")) == []


class Mountless(NativeProvider):
    """The native engine without mounts, like a remote engine."""

    async def probe(self) -> Capabilities:
        return (await super().probe()).but(mounts=False)


@pytest.mark.parametrize("mounts", [True, False])
async def test_a_skill_that_came_later_does_not_run_changed(tmp_path: Path, mounts: bool, rootless: bool) -> None:
    """An owner's first skill appears in boxes that are older than it. Where it can be mounted into a live box it is
    read-only; where it is copied, the box's user owns the copy, but a tool of the skill still runs what was
    installed (B12, B38, lesson 40)."""
    more = "hutch: {tools: [{name: say, description: Says it, command: [./run]}]}\n"
    package = skill(tmp_path, "demo", more, run="#!/bin/sh\necho mine\n")
    async with opened(tmp_path) if mounts else mountless(tmp_path) as hutch:
        tools = Tools(hutch)
        box = (await tools.call("exec", {"command": "true"})).structured["box"]
        await hutch.skills.install(package)
        handle = await hutch.attach(box)
        assert await output_of(handle, f"ls {AT}") == "demo\n"
        assert not (await tools.call("activate_skill", {"name": "demo"})).is_error
        plant = f"rm {AT}/demo/run; echo 'echo planted' > {AT}/demo/run; echo planted > {AT}/demo/extra; mv {AT} moved"
        output = await output_of(handle, plant)
        if mounts and not rootless:
            assert output.count("Read-only file system") == 3 and "busy" in output, output
        ran = await tools.call("demo__say", {})
        assert ran.structured.get("stdout") == "mine\n" and ran.structured["box"] == box, ran.text
        await hutch.skills.write_file("demo", "run", "#!/bin/sh\necho newer\n")
        assert (await tools.call("demo__say", {})).structured["stdout"] == "newer\n"
        await tools.close()


async def test_what_a_box_keeps_where_skills_would_be_is_not_covered(tmp_path: Path) -> None:
    """A directory that the box has filled itself stays as it is, and the skill is copied beside it. A link there
    does not lead out of it (B12)."""
    async with opened(tmp_path) as hutch:
        async with hutch.box() as full, hutch.box() as linked:
            await output_of(full, f"mkdir {AT}; echo mine > {AT}/mine")
            await output_of(linked, f"mkdir elsewhere; ln -s elsewhere {AT}")
            await hutch.skills.install(skill(tmp_path, run="#!/bin/sh\necho one\n"))
            assert await output_of(full, f"ls {AT}; {AT}/demo/run") == "demo\nmine\none\n"
            assert "skills" not in await output_of(linked, "grep elsewhere /proc/self/mountinfo")


@asynccontextmanager
async def mountless(top: Path) -> AsyncIterator[Hutch]:
    config = Config.load(state_dir=top / "state", run_dir=run_dir(top))
    provider = Mountless()
    provider.configure(config.for_provider("native"))
    async with Hutch(keeper=Keeper(config, MemoryStore(), engines=Engines(config, {"native": provider}))) as hutch:
        yield hutch


async def test_copied_where_nothing_can_be_mounted(tmp_path: Path) -> None:
    """Skills are synchronised after boot and when they change; a failure is a warning event, not a broken box (P11)."""
    async with mountless(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path, run="#!/bin/sh\necho one\n"))
        async with hutch.box() as box:
            assert await output_of(box, f"{AT}/demo/run") == "one\n"
            await hutch.skills.write_file("demo", "run", "#!/bin/sh\necho two\n")
            await hutch.skills.install(skill(tmp_path, "second"))
            assert await output_of(box, f"{AT}/demo/run; ls {AT}") == "two\ndemo\nsecond\n"
            await hutch.skills.remove("second")
            assert await output_of(box, f"ls {AT}") == "demo\n"
            await box.exec(f"rm -rf {AT}; echo in the way > {AT}")
            await hutch.skills.install(skill(tmp_path, "third"))
            warnings = [event for event in await hutch.events() if event.kind == "warning"]
            assert warnings and warnings[-1].box_id == box.id
            assert await output_of(box, "echo well") == "well\n"


async def test_edits_in_a_box_become_a_version(tmp_path: Path) -> None:
    """`skill save` takes the working copy in the skill's state directory (B39)."""
    async with opened(tmp_path) as hutch:
        before = await hutch.skills.install(skill(tmp_path, a="1", run="#!/bin/sh\n"))
        async with hutch.box() as box:
            with pytest.raises(NotFound, match=r"no SKILL\.md"):
                await hutch.skills.save("demo", box)
            place = await hutch.skills.prepare("demo", box)
            assert place.state == "/workspace/.skills-state/demo"
            edit = f"{place.state}/edit"
            assert await output_of(box, f"cp -r {place.path} {edit} && echo 2 > {edit}/a && ln -s a {edit}/link") == ""
            with pytest.raises(Refused, match="symlink"):
                await hutch.skills.save("demo", box)
            await box.exec(f"rm {edit}/link")
            saved = await hutch.skills.save("demo", box)
            assert (saved.versions, saved.digest != before.digest) == (2, True)
            assert await output_of(box, f"cat {AT}/demo/a; test -x {AT}/demo/run && echo x") == "2\nx\n"
            await box.files.write("/tmp/other/SKILL.md", manifest("other"))
            with pytest.raises(ValueError, match="not demo"):
                await hutch.skills.save("demo", box, "/tmp/other")
            await box.exec(f"truncate -s 100M {edit}/huge")
            with pytest.raises(FileTooLarge):
                await hutch.skills.save("demo", box)


DEPENDENCIES = """hutch:
  dependencies:
    pip: ["./tiny_dep-1.0-py3-none-any.whl"]
    npm: ["./tiny-node-1.0.0.tgz"]
  tools:
    - {name: ask, command: [tiny-dep]}
"""


async def test_dependencies_are_prepared_once(tmp_path: Path) -> None:
    """Dependencies are installed in a box of their own, stored by digest, and visible in boxes that ran before."""
    place = skill(tmp_path, more=DEPENDENCIES)
    wheel(place)
    npm_archive(place)
    async with opened(tmp_path) as hutch:
        info = await hutch.skills.install(place)
        async with hutch.box(skills="all") as box:
            ready = await asyncio.gather(*(hutch.skills.prepare("demo", box) for _ in range(3)))
            assert ready[0].warnings == () and ready[0] == ready[2]
            env = ready[0].env
            assert (
                await output_of(box, "python3 -c 'import tiny_dep; tiny_dep.answer()'", env=env)
                == "42 from the wheel\n"
            )
            assert await output_of(box, "node -e 'console.log(require(\"tiny-node\"))'", env=env) == "from node\n"
            result = await box.exec(tool_call.command_line(info, info.tools[0], ready[0], box.spec), env=env)
            assert result.stdout == "42 from the wheel\n", result
            made = [event.box_id for event in await hutch.events() if event.kind == "created"]
            assert len(made) == 2, "one box for the work, one for us"
            await hutch.skills.prepare("demo", box)
            assert (await box.exec(f"touch {AT}/demo/.deps/x")).exit_code != 0
            assert len([event for event in await hutch.events() if event.kind == "created"]) == 2
        assert {file.path for file in await hutch.skills.files("demo")}.isdisjoint({".deps"})
        kept = tmp_path / "state" / "skills" / "dependencies"
        assert len(list(kept.glob("*/*"))) == 1
        await hutch.skills.remove("demo")
        assert list(kept.glob("*/*")) == []


async def test_dependencies_that_fail_are_a_warning(tmp_path: Path) -> None:
    more = 'hutch: {dependencies: {pip: ["./none-1.0-py3-none-any.whl"]}}\n'
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path, more=more))
        async with hutch.box() as box:
            place = await hutch.skills.prepare("demo", box)
            assert len(place.warnings) == 1 and "could not be prepared" in place.warnings[0]
            assert "none-1.0" in (await hutch.skills.get("demo")).warning
            assert await output_of(box, f"ls {AT}") == "demo\n"
        await hutch.skills.write_file("demo", "SKILL.md", manifest())
        assert (await hutch.skills.get("demo")).warning == ""
