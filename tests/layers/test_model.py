"""Random histories of files, checkpoints, rollbacks, forks and merges against plain copies of directories."""

import asyncio
import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.api import Box
from hutch.errors import Conflict
from tests.conftest import remove
from tests.layers import file_work
from tests.proofs import write

STEPS = 12
PROCESSES, AT_ONCE = 8, 3
"""Processes among which many histories are divided, and histories that each has under way: while one waits for its
box, another one works."""
# Without its site packages, python starts in half the time, of which the whole test consists.
PROGRAM = ["python3", "-I", "-S", "-X", "utf8", "-c", Path(file_work.__file__).read_text()]


class Pair:
    """A box, and the plain directory that must be the same."""

    def __init__(self, box: Box, plain: Path) -> None:
        self.box = box
        self.plain = plain
        self.states: dict[str, Path] = {}

    async def check(self, *arguments: str) -> None:
        """Do the same in both, and compare everything."""
        wanted = self._done_plainly(*arguments)
        done = await self.box.exec([*PROGRAM, arguments[0], "/workspace", *arguments[1:]])
        assert done.ok, done
        got = done.stdout.splitlines()
        assert got == wanted, f"{arguments}: only in the box {_only(got, wanted)}, only beside it {_only(wanted, got)}"

    def _done_plainly(self, kind: str, *arguments: str) -> list[str]:
        before = Path.cwd()
        try:
            return file_work.main(kind, str(self.plain), *arguments)
        finally:
            os.chdir(before)

    def save(self, name: str) -> None:
        self.states[name] = _copied(self.plain, self.plain.parent / f"{self.plain.name}-{name}")

    def load(self, name: str) -> None:
        shutil.rmtree(self.plain)
        _copied(self.states[name], self.plain)


def _only(one: list[str], other: list[str]) -> list[str]:
    return sorted(set(one) - set(other))


def _copied(source: Path, target: Path) -> Path:
    """A copy with hard links, attributes and fifos, as `cp -a` makes it."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


async def history(hutch: Hutch, top: Path, seed: int) -> None:
    chance = random.Random(seed)
    (top / "box").mkdir(parents=True)
    retention = "persistent" if seed % 5 == 4 else "temporary"
    box = await hutch.create(disk_mb=64, retention=retention, skills="none")
    forks: list[Pair] = []
    try:
        pair = Pair(box, top / "box")
        for step in range(STEPS):
            looked = False
            kind = chance.choice(["work", "work", "checkpoint", "rollback", "fork", "merge", "diff"])
            if kind == "work" or step == 0:
                looked = True
                await pair.check("work", str(chance.randrange(10**9)), "12")
            elif kind == "checkpoint":
                await box.checkpoint(f"c{step}")
                pair.save(f"c{step}")
            elif kind == "rollback" and pair.states:
                name = chance.choice(sorted(pair.states))
                await box.rollback(name)
                pair.load(name)
            elif kind == "fork":
                (made,) = await box.fork()
                pair.save(f"fork{step}")
                base = pair.states.pop(f"fork{step}")
                fork = Pair(made, _copied(base, top / f"fork{step}"))
                fork.states["base"] = base
                forks.append(fork)
                await fork.check("work", str(chance.randrange(10**9)), "12")
            elif kind == "merge" and forks:
                await merge(pair, forks.pop())
            elif kind == "diff" and pair.states:
                name = chance.choice(sorted(pair.states))
                assert {each.path for each in (await box.diff(name)).changes} == differing(
                    pair.states[name], pair.plain
                )
            if not looked:
                await pair.check("look")
    finally:
        for fork in forks:
            await fork.box.destroy()
        await box.destroy()
        shutil.rmtree(top)


def entries(top: Path) -> dict[str, object]:
    """Every path below a directory, with what counts of it."""
    found: dict[str, object] = {}
    for path in top.rglob("*"):
        facts = path.lstat()
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = path.read_bytes()
        attributes = {} if path.is_symlink() else {n: os.getxattr(path, n) for n in os.listxattr(path)}
        found[str(path.relative_to(top))] = (facts.st_mode, content, attributes)
    return found


def differing(start: Path, end: Path) -> set[str]:
    before, after = entries(start), entries(end)
    return {f"/workspace/{path}" for path in before | after if before.get(path) != after.get(path)}


async def merge(pair: Pair, fork: Pair) -> None:
    """Merge a fork in both worlds; the plain one by a rule that is simple and slow."""
    base, ours, theirs = (entries(each) for each in (fork.states["base"], pair.plain, fork.plain))
    changed = {path for path in base | theirs if base.get(path) != theirs.get(path)}
    mine = {path for path in base | ours if base.get(path) != ours.get(path)}
    conflicts = {path for path in changed & mine if ours.get(path) != theirs.get(path)}
    for one, other, final in ((changed, ours, theirs), (mine, theirs, ours)):
        for path in one:
            if path in final and (path not in changed & mine or path in conflicts):
                above = path
                while "/" in above:
                    above = above.rpartition("/")[0]
                    if above in (mine if one is changed else changed) and not _is_directory(other.get(above)):
                        conflicts.add(path)
    try:
        done = await pair.box.merge(fork.box.id)
    except Conflict as refused:
        assert {f"/workspace/{path}" for path in conflicts} == set(map(str, _list(refused.details["conflicts"])))
    else:
        assert not conflicts
        wanted = {path for path in changed if ours.get(path) != theirs.get(path)}
        assert {f"/workspace/{path}" for path in wanted} == set(done.paths)
        for path in sorted(wanted, reverse=True):
            target = pair.plain / path
            if path in ours and not (_is_directory(ours[path]) and _is_directory(theirs.get(path))):
                target.rmdir() if target.is_dir() and not target.is_symlink() else target.unlink()
        for path in sorted(wanted):
            if path in theirs:
                _bring(fork.plain / path, pair.plain / path, is_directory=_is_directory(theirs[path]))
        assert entries(pair.plain) == {
            path: value
            for path in ours | theirs
            if (value := (theirs if path in wanted else ours).get(path)) is not None
        }
    await fork.box.destroy()


def _bring(source: Path, target: Path, *, is_directory: bool) -> None:
    if not is_directory:
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
        return
    target.mkdir(exist_ok=True)
    target.chmod(source.lstat().st_mode & 0o7777)
    for name in os.listxattr(target):
        if name not in os.listxattr(source):
            os.removexattr(target, name)
    for name in os.listxattr(source):
        os.setxattr(target, name, os.getxattr(source, name))


def _is_directory(entry: object) -> bool:
    return isinstance(entry, tuple) and (entry[0] & 0o170000) == 0o040000


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


@pytest.mark.parametrize("seed", range(8))
async def test_a_history_is_the_same_as_with_plain_copies(seed: int, tmp_path: Path) -> None:
    async with Hutch() as hutch:
        await history(hutch, tmp_path / "history", seed)


@pytest.mark.proof
def test_2000_histories() -> None:
    """Issue 20: 2,000 random sequences are the same as with plain copies."""
    shares = [range(1000 + number, 3000, PROCESSES) for number in range(PROCESSES)]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        assert sum(pool.map(share, shares)) == 2000
    write("layer-histories", sequences=2000, steps=STEPS)


def share(seeds: range) -> int:
    """Run some of the histories in a process of its own, whose plain copies hold up no others; return how many."""
    top = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    top.chmod(0o755)

    async def run() -> None:
        left = iter(seeds)

        async def some(hutch: Hutch) -> None:
            for seed in left:
                await history(hutch, top / str(seed), seed)

        async with Hutch(state_dir=str(top / "s"), run_dir=str(top / "r")) as hutch, asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(some(hutch))

    try:
        asyncio.run(run())
    finally:
        remove(top)
    return len(seeds)
