"""What differs between two states of a box's files. Standard library only.

Only the layers that the states do not have in common are walked, so the cost depends on what was changed and not on
how many files there are. What a name finally is, the kernel says: each state is mounted as a read-only overlay.
"""

import errno
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from hutch.linux import kernel
from hutch.providers.native.layers import trees
from hutch.providers.native.layers.view import State, View, umount
from hutch.providers.native.rootfs.root import upper_directory as upper

MAX_CHANGES = 20_000
MAX_DEPTH = 2000
_TEXT_BYTES = 256 << 10
_ALL_TEXT_BYTES = 2 << 20
_TEXT_SECONDS = 5
_UNTIED = kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
_KINDS = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip


class Entry(NamedTuple):
    """What a name is in one state."""

    path: str
    kind: str
    facts: os.stat_result


class Difference(NamedTuple):
    """One name that differs: `before` or `after` is None if it does not exist there."""

    path: str
    before: Entry | None
    after: Entry | None


@contextmanager
def mounted(name: str, layers: State, lowest: State, part: int) -> Iterator[str]:
    """The read-only overlay of a state, at a place in the base that no process of the box sees."""
    place = f"v-{name}"
    with suppress(FileExistsError):
        os.mkdir(place, 0o755)
    lowers = [upper(each, part) for each in layers]
    lowers = [each for each in lowers if os.path.isdir(each)] + lowest
    if len(lowers) == 1:  # an overlay without an upper layer needs two
        with suppress(FileExistsError):
            os.mkdir("v-empty", 0o755)
        lowers.append("v-empty")
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("compare", place, "overlay", flags, f"lowerdir={':'.join(lowers)},userxattr")
    try:
        yield place
    finally:
        umount(place)
        with suppress(OSError):
            os.rmdir(place)


def compare(view: View, start: State, end: State, *, with_text: bool) -> dict[str, Any]:
    """The differences as plain data: kind, type, size and, if asked for, a text diff of each."""
    found: list[dict[str, Any]] = []
    for part, prefix, lowest in parts(view):
        with mounted("a", start, lowest, part) as before, mounted("b", end, lowest, part) as after:
            text = _Text() if with_text else None
            for each in differences(before, after, touched(start, end, part)):
                if len(found) >= MAX_CHANGES:
                    return {"changes": found, "truncated": True}
                found.append(_plain(each, prefix, text))
    return {"changes": sorted(found, key=lambda each: str(each["path"])), "truncated": False}


def parts(view: View) -> list[tuple[int, str, State]]:
    """The overlays of a box: number, mount point below the root with a slash behind, and lowest layers."""
    return [(0, "", view.image), *((part, f"{place}/", lowest) for part, (place, lowest) in view.parts.items())]


def touched(start: State, end: State, part: int = 0) -> dict[str, bool]:
    """Names in the layers that only one of the states has; True if all below the name may differ too."""
    shared = 0
    while shared < min(len(start), len(end)) and start[-1 - shared] == end[-1 - shared]:
        shared += 1
    found: dict[str, bool] = {}
    for layer in {*start[: len(start) - shared], *end[: len(end) - shared]}:
        top = upper(layer, part)
        if os.path.isdir(top):
            _collect(top, found)
    return found


def _collect(top: str, found: dict[str, bool]) -> None:
    pending = [""]
    while pending:
        below = pending.pop()
        for entry in os.scandir(f"{top}/{below}"):
            path = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                found[path] = found.get(path, False) or trees.is_opaque(entry.path)
                pending.append(f"{path}/")
            else:
                found[path] = True  # a file may stand where another state has a directory


def differences(before: str, after: str, names: dict[str, bool]) -> Iterator[Difference]:
    """Compare these names in two directories, parents first."""
    done: set[str] = set()
    pending = sorted(names, reverse=True)
    while pending:
        path = pending.pop()
        if path in done:
            continue
        done.add(path)
        old, new = look(before, path), look(after, path)
        if old is None and new is None:
            continue
        if old is None or new is None or not same(before, old, after, new):
            yield Difference(path, old, new)
        one_sided = old is None or new is None or old.kind != new.kind
        if names.get(path, False) or one_sided:
            below = {
                *(_names(before, path) if old is not None and old.kind == "directory" else ()),
                *(_names(after, path) if new is not None and new.kind == "directory" else ()),
            }
            for name in sorted(below, reverse=True):
                names[f"{path}/{name}"] = True
                pending.append(f"{path}/{name}")


def look(top: str, path: str) -> Entry | None:
    """What a name is. Below a link there is nothing: where a link of the box leads must not be looked at."""
    above, _, name = f"{top}/{path}".rpartition("/")
    try:
        parent = kernel.openat2(kernel.AT_FDCWD, above, os.O_PATH | os.O_DIRECTORY, _UNTIED)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    try:
        facts = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    finally:
        os.close(parent)
    return Entry(path, _KINDS.get(stat.S_IFMT(facts.st_mode), "other"), facts)


def same(top: str, one: Entry, other_top: str, other: Entry) -> bool:
    """Whether two entries are the same for whoever uses them; times do not count."""
    a, b = one.facts, other.facts
    if (a.st_mode, a.st_uid, a.st_gid) != (b.st_mode, b.st_uid, b.st_gid):
        return False
    here, there = f"{top}/{one.path}", f"{other_top}/{other.path}"
    if one.kind == "link":
        return os.readlink(here) == os.readlink(there)
    if attributes(here) != attributes(there):
        return False
    if one.kind != "file":
        return True
    return a.st_size == b.st_size and _same_content(here, there)


def attributes(path: str) -> dict[str, bytes]:
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in trees.attribute_names(path)}


def _names(top: str, path: str) -> list[str]:
    return os.listdir(f"{top}/{path}")


def _open(path: str) -> int:
    return kernel.openat2(kernel.AT_FDCWD, path, os.O_RDONLY | os.O_NONBLOCK, _UNTIED)


def _same_content(here: str, there: str) -> bool:
    with open(_open(here), "rb") as one, open(_open(there), "rb") as other:
        while True:
            piece = one.read(1 << 18)
            if piece != other.read(1 << 18):
                return False
            if not piece:
                return True


def _plain(each: Difference, prefix: str, text: "_Text | None") -> dict[str, Any]:
    kind = "changed" if each.before and each.after else "added" if each.after else "removed"
    shown = each.after or each.before
    assert shown is not None
    found: dict[str, Any] = {"path": f"/{prefix}{each.path}", "kind": kind, "type": shown.kind}
    for name, entry in (("before", each.before), ("after", each.after)):
        if entry is not None:
            found[f"size_{name}"] = entry.facts.st_size if entry.kind == "file" else 0
            found[f"mode_{name}"] = stat.S_IMODE(entry.facts.st_mode)
    if text is not None:
        found["text"] = text.of(each)
    return found


class _Text:
    """Writes unified diffs within a bound of bytes and time: the content is the box's, and may be made to be slow."""

    def __init__(self) -> None:
        self._left = _ALL_TEXT_BYTES

    def of(self, each: Difference) -> str | None:
        """The diff of a text file; None if it is no text, or too much."""
        sides = []
        for top, entry in (("v-a", each.before), ("v-b", each.after)):
            if entry is None:
                sides.append("")
                continue
            if entry.kind != "file" or entry.facts.st_size > _TEXT_BYTES:
                return None
            with open(_open(f"{top}/{each.path}"), "rb") as file:
                data = file.read(_TEXT_BYTES)
            if b"\0" in data:
                return None
            try:
                sides.append(data.decode())
            except UnicodeDecodeError:
                return None
        if self._left <= 0:
            return None
        found = _diff(sides[0], sides[1], f"/{each.path}")
        self._left -= len(found or "")
        return found


class _TooSlow(Exception):
    pass


def _diff(before: str, after: str, path: str) -> str | None:
    from difflib import unified_diff  # `prestart` has loaded it: the box's root has no such file

    def give_up(*_: object) -> None:
        raise _TooSlow

    old = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, _TEXT_SECONDS)
    try:
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in unified_diff(
                before.splitlines(keepends=True), after.splitlines(keepends=True), f"a{path}", f"b{path}"
            )
        )
    except _TooSlow:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
