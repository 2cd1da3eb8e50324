"""Skills in real native boxes: visible at once, never writable, separate for each owner."""

import asyncio
import json
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

AT = "/workspace/.skills"


@asynccontextmanager
async def opened(top: Path, **settings: Any) -> AsyncIterator[Hutch]:
    async with Hutch(state_dir=top / "state", run_dir=run_dir(top), mount_roots=[str(top)], **settings) as hutch:
        yield hutch


async def said(box: Any, command: str, **options: Any) -> str:
    result = await box.exec(command, **options)
    return str(result.stdout + result.stderr)


async def test_shown_in_a_running_box(tmp_path: Path) -> None:
    """Installed, changed and removed skills are seen without recreating the box (B12, lesson 40)."""
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path, "another"))
        box = await hutch.create()
        assert await said(box, f"ls -A {AT}") == "another\n"
        await hutch.skills.install(skill(tmp_path, run="#!/bin/sh\necho one\n"))
        assert await said(box, f"{AT}/demo/run") == "one\n"
        await hutch.skills.write_file("demo", "run", "#!/bin/sh\necho two\n")
        assert await said(box, f"{AT}/demo/run") == "two\n"
        await hutch.skills.rollback("demo")
        assert await said(box, f"{AT}/demo/run") == "one\n"
        async with hutch.box() as later:
            assert await said(later, f"ls {AT}") == "another\ndemo\n"
        await hutch.skills.remove("demo")
        assert await said(box, f"ls -A {AT}") == "another\n"
        kinds = [event.reason.split(" from ")[0] for event in await hutch.events() if event.kind == "skill"]
    assert kinds == ["installed another", "installed demo", "edited demo", "rolled back demo", "removed demo"]


async def test_the_first_skill_reaches_boxes_that_were_made_without(tmp_path: Path) -> None:
    """An owner without skills pays nothing for them, and need not recreate a box for the first one (B12)."""
    work = tmp_path / "work"
    work.mkdir(mode=0o777)
    async with opened(tmp_path) as hutch, hutch.box() as box, hutch.box(workspace=str(work)):
        assert await said(box, "ls -A /workspace") == ""
        await hutch.skills.install(skill(tmp_path, run="#!/bin/sh\necho one\n"))
        assert await said(box, f"{AT}/demo/run") == "one\n"
        await hutch.skills.write_file("demo", "run", "#!/bin/sh\necho two\n")
        assert await said(box, f"{AT}/demo/run") == "two\n"
        await hutch.skills.remove("demo")
        assert await said(box, f"ls -A {AT}") == ""
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
            assert await said(box, f"cat {AT}/demo/a; ls {AT}") == "1demo\n"
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
            reading = asyncio.create_task(said(box, "python3 read.py", timeout=60))
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
            assert await said(box, f"ls {AT}") == f"of-{owner}\n"
            # The mount's root is the view, so there is no way up to those of others.
            assert "of-" not in (await said(box, f"ls -a {AT}/.. {AT}/../..")).replace(f"of-{owner}", "")
            mounts = await said(box, "grep skills /proc/self/mountinfo")
            assert mounts.count("\n") == 1 and " ro," in mounts


async def test_groups_and_none(tmp_path: Path) -> None:
    """A pipeline's boxes show what is bound to it; others show all, or nothing (B10, B12)."""
    async with opened(tmp_path) as hutch:
        for name in ("one", "two"):
            await hutch.skills.install(skill(tmp_path, name))
        await hutch.skills.bind("pipeline", ["two", "three"])
        async with hutch.box(skills="pipeline") as bound, hutch.box(skills="none") as bare, hutch.box() as whole:
            assert await said(bound, f"ls {AT}") == "two\n"
            assert await said(bare, "ls -A /workspace") == ""
            assert await said(whole, f"ls {AT}") == "one\ntwo\n"
            await hutch.skills.install(skill(tmp_path, "three"))
            assert await said(bound, f"ls {AT}") == "three\ntwo\n"


async def test_a_workspace_of_the_host_keeps_no_trace(tmp_path: Path) -> None:
    """The mount point in a host directory is an empty directory and goes with the last box; a user's own directory
    of that name is never covered; a read-only workspace shows skills too."""
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(skill(tmp_path))
        work = tmp_path / "work"
        work.mkdir()
        work.chmod(0o777)
        one = await hutch.create(workspace=str(work))
        two = await hutch.create(workspace=f"{work}:ro")
        for box in (one, two):
            assert await said(box, f"ls {AT}") == "demo\n"
        assert os.listdir(work / ".skills") == []
        await one.destroy()
        assert await said(two, f"ls {AT}") == "demo\n"
        await two.destroy()
        assert os.listdir(work) == []
        (work / ".skills").mkdir()
        (work / ".skills" / "mine").write_text("mine")
        async with hutch.box(workspace=str(work)) as box:
            assert await said(box, f"ls {AT}") == "mine\n"
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
            assert await said(box, f"ls {AT}; touch kept") == "demo\n"
        assert os.listdir(volume.path) == ["kept"]
        box = await hutch.create(retention="persistent")
        assert await said(box, f"ls {AT}") == "demo\n"
        await box.stop()
        await hutch.skills.install(skill(tmp_path, "second"))
        again = await hutch.attach(box.id)
        assert await said(again, f"ls {AT}") == "demo\nsecond\n"
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
        assert await said(box, f"ls {AT}") == "of-ann\n"
        await OwnerView(keeper, "ann").skills.install(Directory(str(skill(tmp_path, "later"))))
        assert await said(box, f"ls {AT}") == "later\nof-ann\n"
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
        assert await said(handle, f"ls {AT}") == "demo\n"
        assert not (await tools.call("activate_skill", {"name": "demo"})).is_error
        plant = f"rm {AT}/demo/run; echo 'echo planted' > {AT}/demo/run; echo planted > {AT}/demo/extra; mv {AT} moved"
        told = await said(handle, plant)
        if mounts and not rootless:
            assert told.count("Read-only file system") == 3 and "busy" in told, told
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
            await said(full, f"mkdir {AT}; echo mine > {AT}/mine")
            await said(linked, f"mkdir elsewhere; ln -s elsewhere {AT}")
            await hutch.skills.install(skill(tmp_path, run="#!/bin/sh\necho one\n"))
            assert await said(full, f"ls {AT}; {AT}/demo/run") == "demo\nmine\none\n"
            assert "skills" not in await said(linked, "grep elsewhere /proc/self/mountinfo")


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
            assert await said(box, f"{AT}/demo/run") == "one\n"
            await hutch.skills.write_file("demo", "run", "#!/bin/sh\necho two\n")
            await hutch.skills.install(skill(tmp_path, "second"))
            assert await said(box, f"{AT}/demo/run; ls {AT}") == "two\ndemo\nsecond\n"
            await hutch.skills.remove("second")
            assert await said(box, f"ls {AT}") == "demo\n"
            await box.exec(f"rm -rf {AT}; echo in the way > {AT}")
            await hutch.skills.install(skill(tmp_path, "third"))
            warnings = [event for event in await hutch.events() if event.kind == "warning"]
            assert warnings and warnings[-1].box_id == box.id
            assert await said(box, "echo well") == "well\n"


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
            assert await said(box, f"cp -r {place.path} {edit} && echo 2 > {edit}/a && ln -s a {edit}/link") == ""
            with pytest.raises(Refused, match="symlink"):
                await hutch.skills.save("demo", box)
            await box.exec(f"rm {edit}/link")
            saved = await hutch.skills.save("demo", box)
            assert (saved.versions, saved.digest != before.digest) == (2, True)
            assert await said(box, f"cat {AT}/demo/a; test -x {AT}/demo/run && echo x") == "2\nx\n"
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
            assert await said(box, "python3 -c 'import tiny_dep; tiny_dep.answer()'", env=env) == "42 from the wheel\n"
            assert await said(box, "node -e 'console.log(require(\"tiny-node\"))'", env=env) == "from node\n"
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
            assert await said(box, f"ls {AT}") == "demo\n"
        await hutch.skills.write_file("demo", "SKILL.md", manifest())
        assert (await hutch.skills.get("demo")).warning == ""


PROBE = """#!/usr/bin/python3
import ctypes, json, os, socket, subprocess, sys
told = {"given": json.load(sys.stdin)}
def attempt(name, work):
    try:
        work()
        told[name] = "yes"
    except OSError as error:
        told[name] = error.strerror
attempt("inet", lambda: socket.socket(socket.AF_INET))
attempt("inet6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("unix", lambda: socket.socket(socket.AF_UNIX))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", 9)))
attempt("write out", lambda: open("/workspace/out/made", "w").close())
attempt("write data", lambda: open("/workspace/data/made", "w").close())
attempt("read data", lambda: open("/workspace/data/there").close())
attempt("read secret", lambda: open("/workspace/secret").close())
attempt("link out", lambda: os.link("/workspace/out/made", "/workspace/made"))
attempt("read out", lambda: open("/workspace/out/made").close())
attempt("through link", lambda: open("/workspace/out/link").close())
attempt("through root", lambda: open("/proc/self/root/workspace/secret").close())
others = [name for name in os.listdir("/proc") if name.isdigit() and name not in ("1", str(os.getpid()))]
def through(rest):
    errors = []
    for name in others:
        try:
            return open(f"/proc/{name}/{rest}").close()
        except OSError as error:
            errors.append(error)
    raise errors[-1] if errors else OSError(2, "nobody there")
attempt("through descriptor", lambda: through("fd/0"))
attempt("through cwd", lambda: through("cwd/secret"))
def system_call(number, *words):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def in_child(number, *words):  # the box's own filter kills for it
    child = os.fork()
    if child == 0:
        os._exit(ctypes.CDLL(None).syscall(number, *words) < 0)
    if os.waitpid(child, 0)[1]:
        raise OSError(38, "not done")
attempt("x32", lambda: in_child(0x40000000 | 41, 2, 1, 0))
attempt("io_uring", lambda: system_call(425, 8, ctypes.create_string_buffer(256)))
attempt("write state", lambda: open(os.environ["SKILL_STATE"] + "/x", "w").close())
attempt("write tmp", lambda: open("/tmp/x", "w").close())
told["cat"] = subprocess.run(["cat", "/workspace/secret"], capture_output=True).returncode
print(json.dumps(told))
"""


async def _probes(hutch: Hutch, top: Path, **permissions: str) -> None:
    """Create a skill for each name, with a tool that tries everything."""
    for name, rule in permissions.items():
        more = f"hutch: {{tools: [{{name: probe, command: [scripts/probe]}}], permissions: {rule}}}\n"
        await hutch.skills.install(skill(top, name, more, scripts__probe=PROBE))


async def test_declared_paths_hold(tmp_path: Path) -> None:
    """With declared paths, nothing else of the workspace is accessible; what was not declared is as the box is."""
    async with opened(tmp_path) as hutch:
        await _probes(hutch, tmp_path, closed="{paths: [out, 'data:ro']}", none="{paths: []}", open="{}")
        async with hutch.box() as box:
            await box.exec("mkdir out data && touch secret data/there; ln -s ../secret out/link; sleep 1000 < secret &")
            told = await _call(hutch, box, "closed")
            assert told["given"] == {"n": 1}
            assert {told[name] for name in ("write data", "read secret")} == {"Permission denied"}, told
            assert {told[name] for name in ("unix", "write out", "read data", "write state", "write tmp")} == {"yes"}
            assert told["cat"] != 0 and told["link out"] != "yes"
            around = ("through link", "through root", "through descriptor", "through cwd")
            assert "yes" not in {told[name] for name in around}, told
            told = await _call(hutch, box, "none")
            assert {told[name] for name in ("write out", "read data", "read secret")} == {"Permission denied"}
            told = await _call(hutch, box, "open")
            assert {told[name] for name in ("read secret", "write data", *around[:2])} == {"yes"}


async def test_declared_tools_hold(tmp_path: Path) -> None:
    """A skill's programs may do to files what its declared tools could do, and no more; declared paths hold as well."""
    async with opened(tmp_path) as hutch:
        await _probes(
            hutch, tmp_path, reads="{tools: [read, grep]}", writes="{tools: [edit]}", nothing="{tools: []}",
            both="{tools: [read], paths: [out]}", boxes="{tools: [box_query], paths: [out]}",
        )  # fmt: skip
        async with hutch.box() as box:
            await box.exec("mkdir out data && touch secret data/there out/made")
            told = {name: await _call(hutch, box, name) for name in ("reads", "writes", "nothing", "both", "boxes")}
            may = {
                name: {what for what in ("read secret", "write data", "write out", "read out") if each[what] == "yes"}
                for name, each in told.items()
            }
            assert may == {
                "reads": {"read secret", "read out"},
                "writes": {"read secret", "write data", "write out", "read out"},
                "nothing": set(),
                "both": {"read out"},
                "boxes": set(),
            }
            assert {each["write state"] for each in told.values()} == {"yes"}
            assert {each["write tmp"] for each in told.values()} == {"yes"}
        preview = await hutch.skills.preview(
            skill(tmp_path, "odd", "hutch: {permissions: {tools: [read, Bash]}}\n"))  # fmt: skip
        assert any("Bash: there is no such tool" in warning for warning in preview.warnings)


async def test_a_skill_cannot_bring_what_confines_it(tmp_path: Path) -> None:
    """A `python3` among its dependencies is on the path of its tools, but is not the one that confines them."""
    more = (
        "hutch: {dependencies: {python: [./tiny_dep-1.0-py3-none-any.whl]}, permissions: {paths: []}, "
        "tools: [{name: probe, command: [scripts/probe]}]}\n"
    )
    place = skill(tmp_path, "sly", more, scripts__probe=PROBE)
    wheel(place, python3='#!/bin/sh\nshift 5\nexec "$@"\n')
    async with opened(tmp_path) as hutch:
        await hutch.skills.install(place)
        async with hutch.box(skills="all") as box:
            await box.exec("touch secret")
            ready = await hutch.skills.prepare("sly", box)
            assert (await box.exec("test -x $SKILL_BIN/python3", env=ready.env)).ok, "its own is there"
            assert (await _call(hutch, box, "sly"))["read secret"] == "Permission denied"


async def test_a_declared_network_holds(tmp_path: Path) -> None:
    """Without a declared network only Unix sockets work, even if the box has a network; what the box cannot provide
    is refused before anything runs."""
    async with opened(tmp_path) as hutch:
        await _probes(hutch, tmp_path, closed="{network: false}", wants="{network: true}", open="{}")
        async with hutch.box() as box:
            assert (await _call(hutch, box, "closed"))["connect"] != "yes"
            with pytest.raises(Refused, match="needs the network"):
                await _call(hutch, box, "wants")
        if "on" not in (await hutch._keeper.engines.capabilities("native")).networks:
            pytest.skip("this machine has no network for boxes of this user")
        async with hutch.box(network="on") as box:
            told = await _call(hutch, box, "closed")
            assert {told[name] for name in ("inet", "inet6", "netlink", "connect")} == {"Permission denied"}, told
            assert "yes" not in (told["x32"], told["io_uring"])
            assert told["unix"] == "yes"
            for name in ("open", "wants"):
                assert (await _call(hutch, box, name))["inet"] == "yes"


async def _call(hutch: Hutch, box: BoxHandle, name: str) -> dict[str, Any]:
    info = await hutch.skills.get(name)
    place = await hutch.skills.prepare(name, box)
    words = tool_call.command_line(info, tool_call.find_tool(info, "probe"), place, box.spec)
    result = await box.exec(words, env=place.env, stdin=tool_call.encode_arguments({"n": 1}))
    assert result.exit_code == 0, result
    told: dict[str, Any] = json.loads(result.stdout)
    return told
