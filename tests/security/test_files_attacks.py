"""Attacks on files: ways to the host's, links and races against file operations, the image, and kept stores."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.security.attacks import Arena, Sentinel, outcome, python

from hutch.errors import HutchError
from hutch.providers.native.spawn.child_steps import SPILL
from hutch.sync import Box

# ---- reading the host's files

FIND = """
found = []
def look(path, depth):
    try:
        entries = list(os.scandir(path))
    except OSError:
        return
    for entry in entries:
        if entry.name == name:
            found.append(entry.path)
        # Through /proc/PID/root and cwd once: what they show is walked as the box's own tree already.
        if entry.is_dir(follow_symlinks=False) and depth < 40:
            look(entry.path, depth + 1)
look("/", 0)
for pid in [entry for entry in os.listdir("/proc") if entry.isdigit()]:
    for way in ("root", "cwd", "task/" + pid + "/root"):
        for path in (file, file.rpartition("/")[0], "../../../../.." + file, name):
            if os.path.exists(f"/proc/{pid}/{way}/{path}"):
                found.append(f"/proc/{pid}/{way}/{path}")
for path in (file, "/proc/self/root" + file, "/../../../.." + file, "/proc/1/root" + file):
    if os.path.exists(path):
        found.append(path)
tell(found)
"""


def test_no_way_leads_to_a_host_file(arena: Arena, sentinel: Sentinel) -> None:
    """Threat: a file of the host that everybody may read is found somewhere in the box: by its path, by climbing,
    through /proc/*/root and cwd, or by walking the whole tree."""
    target = {"name": sentinel.NAME, "file": str(sentinel.file)}
    with arena.box() as box:
        assert outcome(box, FIND, **target) == []
    with arena.box(mounts=[f"{sentinel.directory}:/mnt:ro"]) as box:
        assert f"/mnt/{sentinel.NAME}" in outcome(box, FIND, **target), "control: where it is mounted, it is found"


def test_host_paths_are_not_revealed(arena: Arena, image: Path, scratch: Path) -> None:
    """Threat: mount tables and maps show where the host keeps images, state and sockets."""
    code = """
        text = ""
        for name in ("mountinfo", "mounts", "maps", "cgroup", "environ"):
            text += open(f"/proc/self/{name}").read()
        text += open("/proc/1/mountinfo").read() + repr(os.environ)
        tell([path for path in paths if path in text])
    """
    paths = [str(arena.place), str(scratch)]
    with arena.box() as box:
        assert outcome(box, code, paths=paths) == []
    with arena.box(image=f"dir:{image}") as box:
        reply = b"".join(box.files.read(f"/proc/self/{name}") for name in ("mountinfo", "mounts", "cgroup")).decode()
        assert [path for path in paths if path in reply] == []
    with arena.box(mounts=[f"{scratch}:/mnt:ro"]) as box:
        assert outcome(box, code, paths=paths) == [str(scratch)], "control: a mounted directory does show its source"


# ---- file operations, done by the guest, on names that the box's user controls


def operations(box: Box, path: str, target: Path) -> dict[str, Callable[[], Any]]:
    """Every operation that takes a path, aimed at `path`."""
    files = box.files
    return {
        "read": lambda: files.read(path),
        "open": lambda: list(files.open(path)),
        "write": lambda: files.write(path, "changed", parents=False),
        "append": lambda: files.write(path, "changed", append=True, parents=False),
        "edit": lambda: files.edit(path, "secret", "changed"),
        "digest": lambda: files.digest(path),
        "list": lambda: files.list(path),
        "mkdir": lambda: files.mkdir(f"{path}/new"),
        "move": lambda: files.move(path, "/tmp/moved"),
        "remove": lambda: files.remove(f"{path}/{Sentinel.NAME}", recursive=True),
        "glob": lambda: files.glob("*", root=path),
        "grep": lambda: files.grep("secret", root=path),
        "copy_out": lambda: files.copy_out(path, target),
        "exec": lambda: box.exec("true", cwd=path),
    }


def refused(work: Callable[[], Any]) -> bool:
    try:
        answer = work()
    except HutchError:
        return True
    # A search in a place that cannot be entered may also answer that there is nothing.
    return getattr(answer, "paths", getattr(answer, "matches", None)) in ((), [])


def test_links_to_host_paths(arena: Arena, sentinel: Sentinel, scratch: Path) -> None:
    """Threat: a link in the box that points to a host path is followed on the host by a file operation."""
    with arena.box() as box:
        box.exec(["ln", "-s", str(sentinel.file), "file"])
        box.exec(["ln", "-s", str(sentinel.directory), "directory"])
        paths = ("file", "directory", f"directory/{sentinel.NAME}", f"../../../..{sentinel.file}")
        for path in paths:
            for name, work in operations(box, path, scratch / "out").items():
                # The link itself may be copied and moved. What writes may make that very path in the box.
                if name not in ("copy_out", "move", "write", "append", "mkdir"):
                    assert refused(work), (name, path)
        for path in paths:
            for work in operations(box, path, scratch / "out").values():
                refused(work)
                assert sentinel.unchanged()
    # Control: on the host that very link leads to the sentinel.
    link = scratch / "control"
    link.symlink_to(sentinel.file)
    assert link.read_text() == sentinel.secret


def test_magic_links(arena: Arena, scratch: Path) -> None:
    """Threat: /proc/self is the guest for a file operation: its descriptors (one of a host directory), its root.

    Landlock is left out, the wall behind. Ordinary files of /proc can be read.
    """
    with arena.box("landlock") as box:
        box.exec("ln -s /proc/self/fd way; ln -s /proc/self/root top")
        paths = [f"/proc/self/fd/{number}" for number in range(16)]
        for path in (
            *paths,
            "way/5",
            "top",
            "top/etc",
            "/proc/self/cwd",
            "/proc/thread-self/root",
            "/proc/1/task/1/fd/5",
        ):
            for name, work in operations(box, path, scratch / "out").items():
                if name == "move" and "/" not in path:
                    continue  # the user's own link is moved, not what it leads to
                if name == "copy_out" and path == "top":
                    continue
                assert refused(work), (name, path)
        assert spill_of(arena, box) == []
        assert b"Name:" in box.files.read("/proc/self/status")


def test_control_magic_links_lead_to_the_host(arena: Arena, scratch: Path) -> None:
    """The same operations without the one defence: they read and change the directory that the guest holds."""
    with arena.box("landlock", "magic links") as box:
        box.exec("ln -s /proc/self/fd way; ln -s /proc/self/root top")
        held = f"/proc/self/fd/{SPILL}"
        for way in (held, f"way/{SPILL}", f"/proc/1/task/1/fd/{SPILL}"):
            for name, work in operations(box, way, scratch / "out").items():
                if name in ("list", "mkdir", "copy_out", "exec"):
                    assert not refused(work), (name, way)
            assert spill_of(arena, box) == ["new"]
            box.files.remove(f"{way}/new")
            box.files.write(f"{way}/new", "from the box")
            assert box.files.read(f"{held}/new") == b"from the box"
            assert not refused(lambda way=way: box.files.glob("*", root=way))
            box.files.move(f"{way}/new", "/tmp/moved", overwrite=True)
            assert spill_of(arena, box) == []
        assert box.files.list("top") and box.files.list("/proc/self/cwd") and box.files.read("/proc/self/exe")


def spill_of(arena: Arena, box: Box) -> list[str]:
    """What lies in the directory of the host that the guest holds."""
    (directory,) = arena.place.glob(f"*/r/{box.id}/spill")
    return sorted(path.name for path in directory.iterdir())


def watched(arena: Arena, box: Box) -> list[str]:
    """What a watch reports when the directories above it are replaced by links to the one that the guest holds.

    No race has to be won: the guest opens what is new below a watch by its path, on which the links then stand.
    """
    (held,) = arena.place.glob(f"*/r/{box.id}/spill")
    seen: list[str] = []
    box.exec("mkdir -p p/top")
    with box.files.watch("p/top") as changes:
        (held / "n").mkdir()
        (held / "n").chmod(0o755)
        box.exec(f"mv p q; mkdir p; ln -s /proc/self/fd/{SPILL} p/top; mkdir q/top/n")
        for change in changes:
            seen.append(change.path)
            if change.path == "p/top/n":  # told after the guest has looked at it
                (held / "n/of the host").touch()
                box.exec("touch q/top/last")
            if change.path == "p/top/last":
                break
    return seen


def test_a_watch_through_a_magic_link(arena: Arena) -> None:
    """Threat: a watch follows links that were put on its path after it was allowed, and reports what happens in a
    directory of the host. Landlock does not govern inotify, so that nothing stands behind."""
    with arena.box() as box:
        assert watched(arena, box) == ["p/top/n", "p/top/last"]
    with arena.box("magic links") as control:
        assert "p/top/n/of the host" in watched(arena, control)


SWAP = """
import itertools
os.makedirs("real/deep", exist_ok=True)
for name in ("real/a", "real/deep/b"):
    open(name, "w").write("inside")
if not os.path.lexists("link"):
    os.symlink(host, "link")
libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
if not os.path.lexists("x"):
    os.rename("real", "x")
print("ready", flush=True)
while True:
    libc.renameat2(-100, b"x", -100, b"link", 2)  # RENAME_EXCHANGE: there is never a moment without
    time.sleep(0.0002)
"""


@contextmanager
def swapping(box: Box, host: Path) -> Iterator[None]:
    """While a process of the box exchanges the directory `x` with a link to `host`, again and again."""
    job = box.start(python(SWAP, host=str(host)))
    assert job.read(wait=30.0).data.startswith(b"ready")
    try:
        yield
    finally:
        job.signal(9)
        job.wait(30)


def test_races_against_file_operations(arena: Arena, sentinel: Sentinel, scratch: Path) -> None:
    """Threat: the box's user swaps a directory for a link while an operation is between two steps. Whatever each
    operation answers, no byte of the host is read, changed or removed."""
    with arena.box() as box:
        with swapping(box, sentinel.directory):
            for turn in range(12):
                for work in (
                    lambda: box.files.read(f"x/{sentinel.NAME}"),
                    lambda: box.files.list("x"),
                    lambda: box.files.write(f"x/{sentinel.NAME}", "changed", parents=False),
                    lambda: box.files.write(f"x/{sentinel.NAME}", "changed", append=True, parents=False),
                    lambda: box.files.grep("secret", root="x"),
                    lambda: box.files.remove("x/deep", recursive=True),
                    lambda: box.files.mkdir("x/deep/more"),
                ):
                    try:
                        answer = work()
                    except HutchError:
                        continue
                    assert sentinel.secret not in repr(answer)
                assert sentinel.unchanged(), turn
        box.files.remove("x", recursive=True, missing_ok=True)
        box.files.remove("link", recursive=True, missing_ok=True)
    assert sentinel.unchanged()


def test_control_the_race_can_be_won(sentinel: Sentinel, scratch: Path) -> None:
    """The same swaps on the host, and a reader that trusts the path: it soon reads what the link leads to."""
    command = python(SWAP, host=str(sentinel.directory))
    with subprocess.Popen(command, cwd=scratch, stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == b"ready\n"
            deadline = time.monotonic() + 30
            seen = ""
            while seen != sentinel.secret and time.monotonic() < deadline:
                with suppress(OSError):
                    seen = (scratch / "x" / sentinel.NAME).read_text()
            assert seen == sentinel.secret
        finally:
            swapper.kill()


def test_races_against_copying_out(arena: Arena, sentinel: Sentinel, scratch: Path) -> None:
    """Threat: copy_out writes on the host, and the box decides which names and links it is sent."""
    with arena.box() as box, swapping(box, sentinel.directory):
        for turn in range(10):
            target = scratch / f"out-{turn % 3}"  # used again, so that a link of an earlier turn lies in the way
            try:
                box.files.copy_out(".", target)
            except HutchError:
                continue
            for path in target.rglob("*"):
                assert path.is_symlink() or not path.is_file() or path.read_text() == "inside", path
    assert sentinel.unchanged()


def test_copying_out_over_a_link_that_was_copied_before(arena: Arena, sentinel: Sentinel, scratch: Path) -> None:
    """Threat: a first copy leaves a link to a host directory in the target, a second one writes through it."""
    target = scratch / "out"
    with arena.box() as box:
        box.exec(["ln", "-s", str(sentinel.directory), "tree"])
        box.exec("mkdir t && mv tree t/x")
        copied_link(box, target)
        box.exec(f"rm t/x && mkdir t/x && echo changed > t/x/{sentinel.NAME}")
        with suppress(HutchError):
            box.files.copy_out("t", target)
        assert sentinel.unchanged()
        if not os.path.lexists(target / "x"):
            (target / "x").symlink_to(sentinel.directory)
    if (target / "x").is_symlink():
        # Control: a copy that follows the link, as `cp -r` of the host would, does change the sentinel.
        (target / "x" / sentinel.NAME).write_text("changed")
        assert not sentinel.unchanged()
        sentinel.changed_on_purpose()


def copied_link(box: Box, target: Path) -> None:
    try:
        box.files.copy_out("t", target)
    except HutchError:
        target.mkdir(exist_ok=True)
