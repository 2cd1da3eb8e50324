"""The merged view of a box as layers: which layers it has, and switching the box to a view of others.

Every layer has a number. Layer `k` is the directory `k` in the base, with the overlay work directory `xk`; layer 0 is
`0` and `w`, as `rootfs.build` makes them. Where a writable root lies over the machine's own files, each of its other
overlays (`u1`, `u2`, ...) has a directory for every layer too, `u1.k`. The mounted overlay is called after its topmost
layer (`layer7`), and the file `7.stack` lists the layers below, topmost first, so that the kernel's own mount table
says what the box sees. A layer of the box that this one was forked from has the name `s0/k`: the other box's base is
mounted read-only at `s0`.

A *state* is a list of layers, topmost first. Standard library only.
"""

import errno
import os
import stat
from contextlib import suppress
from typing import NamedTuple

from hutch.guest.protocol import decode, encode
from hutch.linux import kernel
from hutch.providers.native.rootfs.root import upper_directory as upper
from hutch.providers.native.rootfs.root import work_directory

MERGED, NEXT, OLD, CURRENT = "m", "n", "old", "current"
"""Names in the base: the merged view, the one that is being prepared, the one that was replaced, and the file that
names the topmost layer."""
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
_MOUNTS_AT = ("sys", "mnt", "proc")
"""Directories of every root on which the next view is mounted for the moment in which it takes the place of the old."""
_BIND_ALL = kernel.MS_BIND | kernel.MS_REC
MS_MOVE = 8192
_UNTIED = kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS

State = list[str]


class Mount(NamedTuple):
    """One line of mountinfo (proc(5))."""

    id: int
    parent: int
    device: str
    root: str
    place: str
    """The mount point below the base, without a leading slash."""
    read_only: bool
    kind: str
    source: str
    options: str


def mounts(proc_self: int) -> list[Mount]:
    """The mounts of this process's namespace in the order of their making. `proc_self` is the host's /proc/self."""
    lines = os.fsdecode(read_file("mountinfo", proc_self)).split("\n")[:-1]
    # The masks of /proc come along with it, and are half of all mounts.
    return [_parse(line) for line in lines if " /m/proc/" not in line]


def read_file(name: str, directory: int | None = None) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        content = b""
        while piece := os.read(fd, 1 << 16):
            content += piece
        return content
    finally:
        os.close(fd)


def warm_up() -> None:
    """Do what takes longest the first time in a process: parse mounts, and make a system call."""
    own = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in mounts(own):
            _lowers(each)
        decode(encode([each.place for each in mounts(own)]))
    finally:
        os.close(own)
    with suppress(OSError):
        umount("")  # there is no such path


def _parse(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    number, parent, device, root, place, options = before.split(" ")[:6]
    kind, source, super_options = after.split(" ", 2)
    return Mount(
        int(number), int(parent), device, _unescape(root), _unescape(place).lstrip("/"),
        "ro" in options.split(","), kind, source, super_options,
    )  # fmt: skip


def _unescape(text: str) -> str:
    """Undo the octal escapes of blanks and backslashes in a path of mountinfo."""
    if "\\" not in text:
        return text
    raw, parts = os.fsencode(text), []
    while (at := raw.find(b"\\")) >= 0:
        parts += [raw[:at], bytes([int(raw[at + 1 : at + 4], 8)])]
        raw = raw[at + 4 :]
    return os.fsdecode(b"".join([*parts, raw]))


def foreign(layer: str, kind: str) -> str:
    """The name of another box's layer here, where the bases that hold its layers are `s0`, `s1`, ... or `f0`, ..."""
    if not layer.startswith("s"):
        return f"{kind}0/{layer}"
    number, _, name = layer[1:].partition("/")
    return f"{kind}{int(number) + 1}/{name}"


class View:
    """What the box sees now, read from the mount table of its namespace. The working directory is the base."""

    def __init__(self, proc_self: int) -> None:
        self._proc_self = proc_self
        self._clean_up()
        self.merged = self._all[self._merged]
        self.layer = self.merged.source.removeprefix("layer") if self.merged.source.startswith("layer") else "0"
        self.state: State = [self.layer, *read_stack(self.layer)]
        self.image = [name for name in _lowers(self.merged) if name[0] == "l"]
        self.children = self._below(self.merged)
        self.parts = {
            part: (each.place.removeprefix(f"{MERGED}/"), [f"o{part}"])
            for each in self.children
            if (part := self._part(each))
        }
        """The other overlays of a writable root over the machine's files: their mount points and lowest layers."""

    def _clean_up(self) -> None:
        """Remove what a killed process left half done: a prepared view, and an old one over the new."""
        while True:
            self._all = mounts(self._proc_self)
            stacked = [number for number, each in enumerate(self._all) if each.place == MERGED]
            left = [each for each in self._all if each.place in (NEXT, OLD) or each.place.startswith("v-")]
            if not stacked:
                raise OSError(errno.ENOENT, "the box has no merged view", MERGED)
            if len(stacked) > 1:
                left.append(self._all[stacked[-1]])
            if not left:
                self._merged = stacked[0]
                return
            for each in left:
                umount(each.place)

    def _below(self, top: Mount) -> list[Mount]:
        return [each for each in self._all if each.parent == top.id and each.place.startswith(f"{MERGED}/")]

    def _is_own(self, mount: Mount) -> bool:
        """Whether it is a part of the merged view that is bound onto itself, to be writable in a read-only root."""
        return mount.device == self.merged.device

    def _part(self, mount: Mount) -> int:
        if mount.kind != "overlay" or self._is_own(mount):
            return 0
        found = next((each[9:] for each in mount.options.split(",") if each.startswith("upperdir=u")), "")
        number = found.partition(".")[0]
        return int(number) if number.isdecimal() else 0

    # --- switching --------------------------------------------------------------------------------------------

    def prepare(self, layer: str, below: State) -> None:
        """Mount the view of a new, empty layer over these at `n`, with everything that is mounted in the present one.

        The present view stays as it is.
        """
        write_file(f"{layer}.stack", encode(below))
        self._mount_overlay(layer, below, 0, NEXT, self.image)
        for part, (place, lowest) in self.parts.items():
            self._mount_overlay(layer, below, part, f"{NEXT}/{place}", lowest)
        for each in self.children:
            if self._part(each):
                self._bring_all_below(each)
            elif self._is_own(each):
                self._bring(each, onto_itself=True)
                self._bring_all_below(each)
            else:
                self._bring(each)
        if self.merged.read_only:
            kernel.mount_setattr(kernel.AT_FDCWD, NEXT, 0, add=kernel.MOUNT_ATTR_RDONLY)

    def commit(self, layer: str) -> None:
        """Put the prepared view in the place of the present one, for every process whose root is the merged view."""
        point = next(name for name in _MOUNTS_AT if _is_directory(f"{MERGED}/{name}"))
        base = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel.mount(NEXT, f"{MERGED}/{point}", None, MS_MOVE, None)
        os.chroot(MERGED)
        os.chdir(f"/{point}")
        old = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel.syscall("pivot_root", b".", b".")
        # The old view lies over the new one now, and a process that asks for "/.." would get there.
        with suppress(FileExistsError):
            os.mkdir(OLD, 0o755, dir_fd=base)
        kernel.move_mount(old, base, OLD)
        os.close(old)
        os.fchdir(base)
        os.close(base)
        # A chroot(2) back to the base is not needed: every path below is relative to the working directory.
        write_file(CURRENT, layer.encode())
        with suppress(FileNotFoundError):
            os.rmdir(NEXT)

    def release(self) -> None:
        """Unmount the view that was replaced, if there is one.

        The kernel waits for all processors then, so this is done when the box works again.
        """
        if os.path.isdir(OLD):
            umount(OLD)
            os.rmdir(OLD)

    def abandon(self, layer: str) -> None:
        """Remove a prepared view that is not wanted."""
        with suppress(OSError):
            umount(NEXT)

    def _mount_overlay(self, layer: str, below: State, part: int, place: str, lowest: State) -> None:
        directory, work = upper(layer, part), work_directory(layer, part)
        for name in (directory, work, *(() if part else (place,))):
            with suppress(FileExistsError):
                os.mkdir(name, 0o755)
        copy_attributes(upper(below[0], part) if below else upper(self.layer, part), directory)
        lowers = [upper(each, part) for each in below if not part or _is_directory(upper(each, part))]
        options = f"lowerdir={':'.join([*lowers, *lowest])},upperdir={directory},workdir={work},userxattr"
        name = f"layer{layer}.{part}" if part else f"layer{layer}"
        kernel.mount(name, place, "overlay", _QUIET, options)

    def _bring_all_below(self, mount: Mount) -> None:
        for each in self._below(mount):
            self._bring(each)

    def _bring(self, mount: Mount, *, onto_itself: bool = False) -> None:
        """Mount the same at the same place of the prepared view, with all that is mounted in it."""
        place = f"{NEXT}{mount.place[len(MERGED) :]}"
        source, flags = (place, kernel.MS_BIND) if onto_itself else (mount.place, _BIND_ALL)
        # Threat: what a box can write may have a link at this place. Nobody has ever written to a read-only root.
        if self.merged.read_only and mount.parent == self.merged.id:
            with suppress(FileNotFoundError):
                kernel.mount(source, place, None, flags, None)
                return
        self._check_point(mount, place)
        kernel.mount(source, place, None, flags, None)

    def _check_point(self, mount: Mount, place: str) -> None:
        """Refuse a link, and make the mount point if an earlier state of the files lacks it."""
        try:
            os.close(kernel.openat2(kernel.AT_FDCWD, place, os.O_PATH, _UNTIED))
        except FileNotFoundError:
            _make_point(place, stat.S_ISDIR(os.lstat(mount.place).st_mode))


def umount(place: str) -> None:
    kernel.syscall("umount2", os.fsencode(place), kernel.MNT_DETACH)


def _lowers(mount: Mount) -> list[str]:
    found = next((each[9:] for each in mount.options.split(",") if each.startswith("lowerdir=")), "")
    return found.split(":")


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _make_point(place: str, is_directory: bool) -> None:
    parts = place.split("/")
    for depth in range(2, len(parts) + 1):
        above, path = "/".join(parts[: depth - 1]), "/".join(parts[:depth])
        parent = kernel.openat2(kernel.AT_FDCWD, above, os.O_RDONLY | os.O_DIRECTORY, _UNTIED)
        try:
            if is_directory or depth < len(parts):
                with suppress(FileExistsError):
                    os.mkdir(parts[depth - 1], 0o755, dir_fd=parent)
            else:
                os.close(os.open(parts[-1], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent))
        finally:
            os.close(parent)
        os.close(kernel.openat2(kernel.AT_FDCWD, path, os.O_PATH, _UNTIED))


def read_stack(layer: str) -> State:
    """The layers below this one, topmost first."""
    try:
        found: State = decode(read_file(f"{layer}.stack"))
        return found
    except FileNotFoundError:
        return []


def write_file(name: str, content: bytes) -> None:
    """Write a file of the base so that it is never seen half written."""
    draft = f"{name}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
    os.rename(draft, name)


def copy_attributes(source: str, target: str) -> None:
    """Give a layer's topmost directory the owner and mode that the box's root directory has."""
    facts = os.lstat(source)
    os.chown(target, facts.st_uid, facts.st_gid)
    os.chmod(target, stat.S_IMODE(facts.st_mode))
