"""How a root is built, as a program: a list of kernel calls with their arguments, written once for each shape.

The spawner writes it, the child that will be the box's first process runs it. That child shares its zygote's memory
page by page until it writes there, and Python writes to whatever it looks at: one loop over a list touches fewer pages
than the functions that wrote the list, and is faster. Standard library only.
"""

from functools import lru_cache
from marshal import dumps
from os import chdir, chmod, chown, close, fsencode, mkdir, mknod, umask
from stat import S_IFREG
from typing import Any, NamedTuple

from hutch.providers.native.identity import USER
from hutch.providers.native.kernel import (
    AT_FDCWD,
    MNT_DETACH,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    NR,
    mount_attributes,
    move_mount,
    raw_mount,
    raw_syscall,
    raw_umount,
    refused,
)
from hutch.providers.native.root import (
    DEVICES,
    HOME,
    READ_ONLY,
    WORKSPACE,
    Mask,
    Shape,
    Source,
    check_no_link,
    kept_directory,
    kept_place,
    shape_sources,
    write_file,
)

Step = tuple[int, tuple[Any, ...]]

_CALLS = (
    raw_mount, raw_umount, raw_syscall, mkdir, mknod, chown, chmod, chdir, umask,
    kept_directory, kept_place, check_no_link, write_file,
)  # fmt: skip
_MOUNT, _UMOUNT, _SYSCALL, _MKDIR, _MKNOD, _CHOWN, _CHMOD, _CHDIR, _UMASK = range(9)
_KEPT_DIRECTORY, _KEPT_PLACE, _NO_LINK, _KEPT_FILE = range(9, 13)
_ATTACH = len(_CALLS)
_QUIET = MS_NOSUID | MS_NODEV
_FILE = S_IFREG | 0o644


class Plan(NamedTuple):
    """What a child needs to know of its shape."""

    sources: tuple[Source, ...]
    """Where its detached mounts come from, in the order in which `_ATTACH` counts them."""
    steps: tuple[Step, ...]
    read_only: bool
    kept: bool
    """Whether its store is a directory that outlives it."""


@lru_cache(16)
def written(shape: Shape, mount_point: str, ranged: bool, masks: tuple[Mask, ...]) -> bytes:
    """The plan of a shape, for `Plan(*marshal.loads(...))` in the child. `mount_point` is only a place to stand."""
    sources = tuple(shape_sources(shape))
    steps = tuple(_Writer(shape, ranged=ranged, masks=masks).write(mount_point))
    return dumps((sources, steps, shape.read_only, shape.store is not None))


def build(steps: tuple[Step, ...], trees: list[int]) -> None:
    """Everything that needs no order, and leave the host's mounts behind. The working directory is then the base."""

    def attach(number: int, path: str) -> None:
        move_mount(trees[number], AT_FDCWD, path)
        close(trees[number])

    calls = (*_CALLS, attach)
    for call, arguments in steps:
        result = calls[call](*arguments)
        if result is not None and result < 0:
            raise refused(f"{_NAMES.get(call, 'mount')} {arguments}")


HARMLESS: tuple[Step, ...] = ((_UMASK, (0o022,)), (_CHDIR, ("/",)))
"""Steps with which `build` can be rehearsed on the host."""
_NAMES = {_UMOUNT: "umount", _SYSCALL: "system call"}


class _Writer:
    """See `root` for what is where below the base."""

    def __init__(self, shape: Shape, *, ranged: bool, masks: tuple[Mask, ...]) -> None:
        self._shape = shape
        self._ranged = ranged
        self._masks = masks
        self._steps: list[Step] = []
        self._attached = 0

    def write(self, mount_point: str) -> list[Step]:
        shape = self._shape
        if shape.store:
            self._attach(mount_point)
        else:
            # The real size comes with the order.
            self._mount("tmpfs", mount_point, "tmpfs", _QUIET, "mode=0755,size=16m,nr_inodes=4096")
        self._add(_CHDIR, mount_point)
        self._make_store()
        names = [f"l{number}" for number, _ in enumerate(shape.lowers)]
        for name in names:
            self._directory(name)
            self._attach(name)
        # userxattr: the other kind of marks needs privilege over the host (kernel 5.11).
        layers = f"lowerdir={':'.join(names)},upperdir=0,workdir=w,userxattr"
        self._mount("overlay", "m", "overlay", _QUIET, layers)
        if shape.store:
            for name in self._mount_points():
                self._add(_NO_LINK, name)
        for number, (_, name) in enumerate(shape.overlays, 1):
            for part in "ouw":
                self._directory(f"{part}{number}")
            self._attach(f"o{number}")
            layers = f"lowerdir=o{number},upperdir=u{number},workdir=w{number},userxattr"
            self._mount("overlay", f"m/{name}", "overlay", _QUIET, layers)
        for _, name in shape.binds:
            self._attach(f"m/{name}")
        self._add_devices()
        self._add_proc()
        self._add_hosts()
        if shape.read_only:
            for name, _, _ in self._places():
                self._bind(f"m/{name}", f"m/{name}")
            self._close("m")
        # Only now: a place that is bound onto itself leaves behind what was mounted in it before.
        for _, name in shape.shown:
            self._show(name)
        self._add(_SYSCALL, NR["pivot_root"], b".", b".", None, None, None, None)
        self._add(_UMOUNT, b".", MNT_DETACH)
        self._add(_CHDIR, "/")
        self._mount(None, "/", None, MS_REC | MS_PRIVATE, None)
        return self._steps

    def _make_store(self) -> None:
        shape = self._shape
        self._add(_UMASK, 0)
        for name in ("0", "w", "m"):
            self._directory(name)
        for name, mode, owned in self._places():
            owner = USER if owned and self._ranged else -1
            parent = name.rpartition("/")[0]
            if shape.store:
                self._add(_KEPT_PLACE, parent, name, mode, owner)
                continue
            if parent:
                self._add(_MKDIR, f"0/{parent}", 0o755)
            self._add(_MKDIR, f"0/{name}", mode)
            if owner >= 0:
                self._add(_CHOWN, f"0/{name}", owner, owner)
        self._add(_UMASK, 0o022)

    def _places(self) -> list[tuple[str, int, bool]]:
        """The directories that are writable whatever the root is: name, mode, whether the user owns them."""
        places = [("tmp", 0o1777, False), ("run", 0o755, True), ("var/tmp", 0o1777, False), (HOME, 0o755, True)]
        return [*places, (WORKSPACE, 0o755, True)] if self._shape.own_workspace else places

    def _mount_points(self) -> list[str]:
        devices = [f"dev/{device}" for device in DEVICES]
        binds = [name for _, name in (*self._shape.overlays, *self._shape.binds)]
        places = [name for name, _, _ in self._places()]
        return ["proc", "dev", "dev/pts", "dev/shm", *devices, "etc/hosts", "etc/resolv.conf", *binds, *places]

    def _show(self, name: str) -> None:
        """The image may lack the directory, or bring a link in its place."""
        parts = name.split("/")
        for depth, _ in enumerate(parts, 1):
            above = "/".join(parts[:depth])
            self._add(_KEPT_DIRECTORY, f"m/{above}", 0o755)
            self._add(_NO_LINK, above)
        self._attach(f"m/{name}")

    def _add_devices(self) -> None:
        for name in DEVICES:
            self._bind(f"/dev/{name}", f"m/dev/{name}")
        options = "newinstance,ptmxmode=0666,mode=0620"
        self._mount("devpts", "m/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
        if self._shape.store:
            self._mount("tmpfs", "m/dev/shm", "tmpfs", _QUIET, "mode=1777,size=64m")
            return
        # A part of the base, so that one size bounds everything the box keeps in memory as files.
        self._add(_MKDIR, "shm", 0o1777)
        self._add(_CHMOD, "shm", 0o1777)
        self._bind("shm", "m/dev/shm")

    def _add_proc(self) -> None:
        self._mount("proc", "m/proc", "proc", _QUIET | MS_NOEXEC, None)
        if not self._masks:
            return
        self._directory("e")
        self._bind("e", "e")
        self._close("e")
        for name, is_directory in self._masks:
            self._bind("e" if is_directory else "/dev/null", f"m/proc/{name}")
        for name in READ_ONLY:
            self._bind(f"m/proc/{name}", f"m/proc/{name}")
            self._close(f"m/proc/{name}")

    def _add_hosts(self) -> None:
        """Differs from box to box: the host's name comes with the order."""
        if self._shape.store:
            self._add(_KEPT_FILE, "hosts", "")
        else:
            self._add(_MKNOD, "hosts", _FILE)
        self._bind("hosts", "m/etc/hosts")

    def _directory(self, name: str) -> None:
        self._add(_KEPT_DIRECTORY if self._shape.store else _MKDIR, name, 0o755)

    def _attach(self, path: str) -> None:
        self._add(_ATTACH, self._attached, path)
        self._attached += 1

    def _bind(self, source: str, target: str) -> None:
        self._mount(source, target, None, MS_BIND, None)

    def _close(self, path: str) -> None:
        attributes = mount_attributes(MOUNT_ATTR_RDONLY)
        self._add(_SYSCALL, NR["mount_setattr"], AT_FDCWD, fsencode(path), 0, attributes, len(attributes), None)

    def _mount(self, source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
        texts = [fsencode(text) if text is not None else None for text in (source, target, kind, options)]
        self._add(_MOUNT, *texts[:3], flags, texts[3])

    def _add(self, call: int, *arguments: Any) -> None:
        self._steps.append((call, arguments))
