"""Checkpoints in the file of an exported box: each as a whole tree, whose files are those of the next state where both
are the same.

This stands on the public protocols like the export itself: a checkpoint is read from a fork of the box, and comes to
life again as a state of the new box in which it is frozen, oldest first. What differs from one state to the next is all
that is copied into the new box, so that its layers share as much as those of the old one.
"""

import asyncio
import filecmp
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from hutch.api import Box
from hutch.errors import FileTooLarge, HutchError, NotRunnable, QuotaExceeded, Unsupported
from hutch.keeper.locks import run_uncancelled
from hutch.model.layers import Checkpoint
from hutch.model.record import Record
from hutch.model.skills import INSTALLED_AT

DIRECTORY = "checkpoints"
MAX_CARRIED = 64
"""Most checkpoints that a file carries: the newest."""
Tree = Literal["workspace", "home"]


class CarriedCheckpoint(Record, frozen=True, kw_only=True):
    """A checkpoint in the file of an exported box. Its trees lie in `checkpoints/NUMBER`, oldest first."""

    name: str
    created_at: float
    trees: tuple[Tree, ...]


# --- out of a box ---------------------------------------------------------------------------------------------------


async def copy_out(
    box: Box, here: Path, places: Mapping[Tree, str], notes: list[str]
) -> tuple[CarriedCheckpoint, ...]:  # fmt: skip
    """Copy the checkpoints that a caller has made to `here`, beside the present trees, the newest first.

    All that is there has at most the size of the box's disk, and twice that while a checkpoint is copied: files with
    many names would otherwise come out many times in each.
    """
    try:
        every = await box.checkpoints()
    except Unsupported:
        return ()
    made = [each for each in every if not each.automatic]
    if len(every) > len(made):
        notes.append(f"{len(every) - len(made)} automatic checkpoints are not carried")
    if len(made) > MAX_CARRIED:
        notes.append(f"{len(made) - MAX_CARRIED} older checkpoints are not carried")
        made = made[-MAX_CARRIED:]
    if made and not box.spec.read_only_root:
        notes.append("of the checkpoints only workspace and home are carried")
    carried: list[CarriedCheckpoint] = []
    newer, most = here, box.spec.limits.disk_mb << 20
    for number in reversed(range(len(made))):
        target = here / DIRECTORY / str(number)
        try:
            trees = await _copy_one(box, made[number], target, places, most)
            for tree in trees:
                await run_uncancelled(asyncio.to_thread(_share, newer / tree, target / tree))
            if await asyncio.to_thread(bytes_on_disk, here) > most:
                raise QuotaExceeded("with it they have more than the box's disk can hold", op="export")
        except HutchError as error:
            notes.append(f"checkpoints up to {made[number].name or made[number].id} are not carried: {error.message}")
            await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
            return _renumbered(here, number + 1, carried)
        carried.insert(0, CarriedCheckpoint(name=made[number].name, created_at=made[number].created_at, trees=trees))
        newer = target
    return tuple(carried)


def _renumbered(here: Path, first: int, carried: list[CarriedCheckpoint]) -> tuple[CarriedCheckpoint, ...]:
    """Give the checkpoints that could be copied the numbers from 0 on."""
    for number in range(len(carried)):
        (here / DIRECTORY / str(first + number)).rename(here / DIRECTORY / str(number))
    return tuple(carried)


async def _copy_one(
    box: Box, checkpoint: Checkpoint, target: Path, places: Mapping[Tree, str], most: int
) -> tuple[Tree, ...]:
    """Copy the trees of a checkpoint, together at most `most` bytes."""
    target.mkdir(parents=True)
    (fork,) = await box.fork(checkpoint=checkpoint.id)
    try:
        trees: list[Tree] = []
        for tree, place in places.items():
            if await fork.files.exists(place):
                left = most - await asyncio.to_thread(bytes_on_disk, target)
                await fork.files.copy_out(place, target / tree, most=max(0, left))
                trees.append(tree)
        return tuple(trees)
    except (PermissionError, FileTooLarge) as error:
        raise HutchError(f"{error}", op="export") from error
    finally:
        await run_uncancelled(fork.destroy())


def bytes_on_disk(directory: Path) -> int:
    """Count what a tree takes. Holes of sparse files do not count, and a file with several names counts once."""
    total, seen = 0, set[tuple[int, int]]()
    for top, _, names in os.walk(directory):
        for name in names:
            facts = os.lstat(os.path.join(top, name))
            if facts.st_nlink > 1:
                if (facts.st_dev, facts.st_ino) in seen:
                    continue
                seen.add((facts.st_dev, facts.st_ino))
            total += facts.st_blocks * 512
    return total


def _share(newer: Path, older: Path) -> None:
    """Make the files of a tree that the newer one has too names of the same files."""
    for top, directories, names in os.walk(older):
        beside = newer / Path(top).relative_to(older)
        if beside.is_symlink() or not beside.is_dir():
            directories.clear()  # a link of the box may lead anywhere on this machine
            continue
        for name in names:
            path, other = Path(top, name), beside / name
            if _same_file(path, other):
                path.unlink()
                os.link(other, path, follow_symlinks=False)


def _same_file(one: Path, other: Path) -> bool:
    try:
        here, there = one.lstat(), other.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(here.st_mode) or (here.st_mode, here.st_size) != (there.st_mode, there.st_size):
        return False
    return os.path.samestat(here, there) or filecmp.cmp(one, other, shallow=False)


# --- into a box -----------------------------------------------------------------------------------------------------


async def copy_in(
    box: Box, here: Path, carried: tuple[CarriedCheckpoint, ...], places: Mapping[Tree, str], notes: list[str]
) -> dict[Tree, Path]:  # fmt: skip
    """Make the checkpoints again in a new box; return the trees that it has afterwards."""
    present: dict[Tree, Path] = {}
    shows_skills = bool(carried) and await box.files.exists(INSTALLED_AT)
    for number, checkpoint in enumerate(carried):
        for tree in checkpoint.trees:
            if place := places.get(tree):
                source = here / DIRECTORY / str(number) / tree
                if shows_skills and tree == "workspace":
                    # The new box has its owner's skills mounted there read-only.
                    skills = source / os.path.basename(INSTALLED_AT)
                    await asyncio.to_thread(shutil.rmtree, skills, ignore_errors=True)
                await bring(box, present.get(tree), source, place)
                present[tree] = source
        try:
            await box.checkpoint(checkpoint.name)
        except HutchError as error:  # the files are what matters; the present ones follow
            notes.append(f"checkpoints from {checkpoint.name or number} on are not carried: {error.message}")
            break
    return present


async def bring(box: Box, before: Path | None, after: Path, place: str) -> None:
    """Give a directory of the box, whose content is `before`, the content of `after`. Only what differs is copied."""
    if before is None:
        await box.files.copy_in(after, place)
        return
    draft = after.with_name(f"{after.name}.changes")
    try:
        gone, modes = await run_uncancelled(asyncio.to_thread(_changes, before, after, draft))
        for path in gone:
            await box.files.remove(f"{place}/{path}", recursive=True, missing_ok=True)
        if draft.exists():
            await box.files.copy_in(draft, place)
        for path, mode in modes.items():  # a copy leaves the mode of a directory that is there already
            with suppress(NotRunnable):  # an image without this program keeps the old modes
                await box.exec(["chmod", f"{mode:o}", "--", f"{place}/{path}"])
    finally:
        await run_uncancelled(asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True))


def _changes(before: Path, after: Path, draft: Path) -> tuple[list[str], dict[str, int]]:
    """Write what is new in `after` to `draft`; return the topmost paths that must go first, and changed modes of
    directories."""
    gone: list[str] = []
    modes: dict[str, int] = {}
    directories: set[Path] = set()
    pending = [("", True)]  # with whether `before` has a directory there: a link of the box may lead anywhere
    while pending:
        below, was_there = pending.pop()
        old, new = _entries(before / below) if was_there else {}, _entries(after / below)
        gone += [os.path.join(below, name) for name in old if not _stays(old[name], new.get(name))]
        for name, facts in new.items():
            path = os.path.join(below, name)
            if stat.S_ISDIR(facts.st_mode):
                present = name in old and stat.S_ISDIR(old[name].st_mode)
                pending.append((path, present))
                if present:
                    if old[name].st_mode != facts.st_mode:
                        modes[path] = stat.S_IMODE(facts.st_mode)
                else:
                    directories |= _make(draft / path, draft)
            elif name not in old or not _same(before / path, after / path):
                directories |= _make((draft / path).parent, draft)
                os.link(after / path, draft / path, follow_symlinks=False)
    for directory in directories:
        # Also one that was only needed to hold a change has the mode that it has in the new state.
        mode = (after / directory.relative_to(draft)).lstat().st_mode
        directory.chmod(stat.S_IMODE(mode) | 0o700)
    return gone, modes


def _entries(directory: Path) -> dict[str, os.stat_result]:
    try:
        skipped = os.path.basename(INSTALLED_AT)  # the new box has its owner's skills mounted there
        return {each.name: each.stat(follow_symlinks=False) for each in os.scandir(directory) if each.name != skipped}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _stays(old: os.stat_result, new: os.stat_result | None) -> bool:
    """Whether a name need not be removed before it is copied: only a file is written over a file."""
    if new is None:
        return False
    kinds = stat.S_IFMT(old.st_mode), stat.S_IFMT(new.st_mode)
    return kinds in ((stat.S_IFDIR, stat.S_IFDIR), (stat.S_IFREG, stat.S_IFREG)) or (
        kinds == (stat.S_IFLNK, stat.S_IFLNK) and os.path.samestat(old, new)
    )


def _same(before: Path, after: Path) -> bool:
    if after.is_symlink():
        return before.is_symlink() and before.readlink() == after.readlink()
    return _same_file(after, before)


def _make(directory: Path, draft: Path) -> set[Path]:
    """Make a directory of the draft, with those above it; return all of them."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {each for each in (directory, *directory.parents) if each.is_relative_to(draft)}
