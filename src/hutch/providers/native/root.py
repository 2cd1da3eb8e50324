"""The file system of a box, built by the child that will be its first process.

The mount namespace's root is the *base*: `0` (the upper layer, with the own workspace), `w` (overlay's work
directory), `l0`, `l1`, ... (the image, topmost first) and `m`, the merged view. Guest and users are chrooted into `m`,
so that layers can be switched from outside, by whoever enters the base, without their help.

A read-only root is a read-only *mount* of the same overlay, with its writable places bound onto themselves: all that a
box writes lies in one store. Standard library only.
"""

import errno
import os
import stat
from typing import Any, NamedTuple

from hutch.providers.native import kernel
from hutch.providers.native.identity import USER

WORKSPACE = "workspace"
HOME = "home/user"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

# What of /proc tells about the host or steers it. Most is closed to a box's user by owner anyway; a mask also holds
# where a kernel forgot to ask. Files show /dev/null, directories an empty one.
_MASKED = (
    "acpi", "asound", "bus", "cmdline", "config.gz", "driver", "fs", "interrupts", "iomem", "ioports", "irq",
    "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats",
    "modules", "pagetypeinfo", "sched_debug", "scsi", "slabinfo", "sysrq-trigger", "timer_list", "timer_stats",
    "vmallocinfo",
)  # fmt: skip
_READ_ONLY = ("sys",)

_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
QUIET_ATTRIBUTES = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_DETACHED = kernel.OPEN_TREE_CLONE | kernel.AT_RECURSIVE


class Shape(NamedTuple):
    """All of a box's root that does not depend on the one order: boxes of one shape can be begun ahead."""

    lowers: tuple[str, ...]
    """Directories of the image, topmost first."""
    binds: tuple[tuple[str, str], ...]
    """Host directories shown read-only inside, (source, name below the root): the machine's own /usr."""
    overlays: tuple[tuple[str, str], ...]
    """Like `binds`, but with an upper layer of the box."""
    read_only: bool
    own_workspace: bool
    """Whether /workspace is a writable part of the box's own store."""
    network: str
    pin: tuple[int, int] | None
    """Device and inode that the lowest directory of the image must have; None: it is our own."""
    store: str | None = None
    """A persistent box's directory; None: a tmpfs."""

    @staticmethod
    def parse(values: list[Any]) -> "Shape":
        """From JSON, which has no tuples; the order is that of the fields."""
        lowers, binds, overlays, read_only, own_workspace, network, pin, store = values
        pairs = [tuple((source, name) for source, name in each) for each in (binds, overlays)]
        return Shape(
            tuple(lowers), pairs[0], pairs[1], read_only, own_workspace, network, tuple(pin) if pin else None, store
        )


class Extra(NamedTuple):
    """A host directory or file to show inside; device and inode say which one was meant when it was allowed."""

    source: str
    target: str
    writable: bool
    device: int
    inode: int


Source = tuple[str, bool, tuple[int, int] | None]
"""A host directory, whether it stays writable, and the device and inode it must have."""


def shape_sources(shape: Shape) -> list[Source]:
    """The host directories a shape is made of, in the order `build` expects them."""
    store: list[Source] = [(shape.store, True, None)] if shape.store else []
    lowers: list[Source] = [(path, False, None) for path in shape.lowers]
    lowers[-1] = (shape.lowers[-1], False, shape.pin)
    return [*store, *lowers, *((path, False, None) for path, _ in (*shape.overlays, *shape.binds))]


def detach(source: Source, userns: int | None) -> int:
    """A private copy of the mount tree at `source`, seen through the ids of `userns` where the file system can."""
    path, writable, pin = source
    fd = kernel.open_tree(kernel.AT_FDCWD, path, _DETACHED)
    try:
        facts = os.fstat(fd)
        if pin is not None and (facts.st_dev, facts.st_ino) != pin:
            raise PermissionError(errno.EPERM, "it was replaced after it had been allowed", path)
        return restrict(fd, writable=writable, userns=userns)
    except BaseException:
        os.close(fd)
        raise


def restrict(tree: int, *, writable: bool, userns: int | None) -> int:
    attributes = QUIET_ATTRIBUTES | (0 if writable else kernel.MOUNT_ATTR_RDONLY)
    flags = kernel.AT_EMPTY_PATH | kernel.AT_RECURSIVE
    private = kernel.MS_PRIVATE  # or what the host mounts there later would appear in the box
    if userns is not None:
        try:
            idmap = attributes | kernel.MOUNT_ATTR_IDMAP
            kernel.mount_setattr(tree, b"", flags, add=idmap, propagation=private, userns=userns)
            return tree
        except OSError:
            pass  # a file system without idmapped mounts: owners then show as nobody, rights do not change
    kernel.mount_setattr(tree, b"", flags, add=attributes, propagation=private)
    return tree


def detach_extra(extra: Extra, userns: int | None) -> int:
    """Like `detach`, for a mount that policy has allowed: it must still be the same file."""
    # The allowed path is canonical, so that a symbolic link on it was put there since.
    resolve = kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
    fd = kernel.openat2(kernel.AT_FDCWD, extra.source, os.O_PATH, resolve)
    try:
        facts = os.fstat(fd)
        if (facts.st_dev, facts.st_ino) != (extra.device, extra.inode):
            raise PermissionError(errno.EPERM, "it was replaced after it had been allowed", extra.source)
        tree = kernel.open_tree(fd, b"", _DETACHED | kernel.AT_EMPTY_PATH)
    finally:
        os.close(fd)
    return restrict(tree, writable=extra.writable, userns=userns)


Mask = tuple[str, bool]
"""A name in /proc, and whether it is a directory."""


def masks() -> tuple[Mask, ...]:
    """What of `_MASKED` this kernel has; asked once, in the spawner."""
    found: list[Mask] = []
    for name in _MASKED:
        try:
            found.append((name, stat.S_ISDIR(os.lstat(f"/proc/{name}").st_mode)))
        except FileNotFoundError:
            continue
    return tuple(found)


class Root:
    """The root while it is built: `build`, perhaps a long wait, then `finish` with what the order says."""

    def __init__(self, shape: Shape, *, ranged: bool, masks: tuple[Mask, ...]) -> None:
        self._shape = shape
        self._ranged = ranged
        self._masks = masks

    def build(self, mount_point: str, trees: list[int], resolv_conf: str) -> None:
        """Everything that needs no order, and leave the host's mounts behind. The working directory is then the base.

        `trees` are detached mounts of `shape_sources`; the host directory `mount_point` is only a place to stand.
        """
        shape = self._shape
        trees = list(trees)
        if shape.store:
            kernel.move_mount(trees.pop(0), kernel.AT_FDCWD, mount_point)
        else:
            # The real size comes with the order.
            kernel.mount("tmpfs", mount_point, "tmpfs", _QUIET, "mode=0755,size=16m,nr_inodes=4096")
        os.chdir(mount_point)
        self._make_store()
        count = len(shape.lowers)
        for number in range(count):
            _directory(f"l{number}")
            _attach(trees.pop(0), f"l{number}")
        lowers = ":".join(f"l{number}" for number in range(count))
        # userxattr: the other kind of marks needs privilege over the host (kernel 5.11).
        kernel.mount("overlay", "m", "overlay", _QUIET, f"lowerdir={lowers},upperdir=0,workdir=w,userxattr")
        if shape.store:
            for name in self._mount_points():
                _check_no_link(name)
        for number, (_, name) in enumerate(shape.overlays, 1):
            for part in (f"o{number}", f"u{number}", f"w{number}"):
                _directory(part)
            _attach(trees.pop(0), f"o{number}")
            layers = f"lowerdir=o{number},upperdir=u{number},workdir=w{number},userxattr"
            kernel.mount("overlay", f"m/{name}", "overlay", _QUIET, layers)
        for _, name in shape.binds:
            _attach(trees.pop(0), f"m/{name}")
        self._add_devices()
        self._add_proc()
        self._add_names(resolv_conf)
        if shape.read_only:
            self._close_root()
        kernel.pivot_root(".", ".")
        kernel.umount(".", kernel.MNT_DETACH)
        os.chdir("/")
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)

    def finish(self, hostname: str, size: int, inodes: int, extras: list[tuple[Extra, int]]) -> None:
        """What only the order knows. Runs in the base, before the chroot."""
        if not self._shape.store:
            kernel.mount(None, ".", None, kernel.MS_REMOUNT | _QUIET, f"size={size},nr_inodes={inodes}")
        _write("hosts", f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost\n")
        if not extras:
            return
        merged = os.open("m", os.O_PATH | os.O_CLOEXEC)
        if self._shape.read_only:
            # Nobody else runs in the box yet; the targets of the mounts may have to be made.
            kernel.mount_setattr(merged, b"", kernel.AT_EMPTY_PATH, remove=kernel.MOUNT_ATTR_RDONLY)
        for extra, tree in extras:
            _attach_beneath(merged, extra, tree)
        if self._shape.read_only:
            kernel.mount_setattr(merged, b"", kernel.AT_EMPTY_PATH, add=kernel.MOUNT_ATTR_RDONLY)
        os.close(merged)

    def _make_store(self) -> None:
        os.umask(0)
        for name in ("0", "w", "m"):
            _directory(name)
        for name, mode, owned in self._places():
            parent = os.path.dirname(name)
            if parent:
                _directory(f"0/{parent}")
                _check_no_link(parent, "0")
            path = f"0/{name}"
            if _directory(path, mode) and owned and self._ranged:
                os.chown(path, USER, USER)
        os.umask(0o022)

    def _places(self) -> list[tuple[str, int, bool]]:
        """The directories that are writable whatever the root is: name, mode, whether the user owns them."""
        places = [("tmp", 0o1777, False), ("run", 0o755, True), ("var/tmp", 0o1777, False), (HOME, 0o755, True)]
        return [*places, (WORKSPACE, 0o755, True)] if self._shape.own_workspace else places

    def _mount_points(self) -> list[str]:
        devices = [f"dev/{device}" for device in DEVICES]
        binds = [name for _, name in (*self._shape.overlays, *self._shape.binds)]
        places = [name for name, _, _ in self._places()]
        return ["proc", "dev", "dev/pts", "dev/shm", *devices, "etc/hosts", "etc/resolv.conf", *binds, *places]

    def _close_root(self) -> None:
        for name, _, _ in self._places():
            kernel.mount(f"m/{name}", f"m/{name}", None, kernel.MS_BIND)
        kernel.mount_setattr(kernel.AT_FDCWD, "m", 0, add=kernel.MOUNT_ATTR_RDONLY)

    def _add_devices(self) -> None:
        for name in DEVICES:
            kernel.mount(f"/dev/{name}", f"m/dev/{name}", None, kernel.MS_BIND)
        kernel.mount("devpts", "m/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC,
                     "newinstance,ptmxmode=0666,mode=0620")  # fmt: skip
        if self._shape.store:
            kernel.mount("tmpfs", "m/dev/shm", "tmpfs", _QUIET, "mode=1777,size=64m")
            return
        # A part of the base, so that one size bounds everything the box keeps in memory as files.
        os.mkdir("shm")
        os.chmod("shm", 0o1777)
        kernel.mount("shm", "m/dev/shm", None, kernel.MS_BIND)

    def _add_proc(self) -> None:
        kernel.mount("proc", "m/proc", "proc", _QUIET | kernel.MS_NOEXEC)
        if not self._masks:
            return
        _directory("e")
        kernel.mount("e", "e", None, kernel.MS_BIND)
        kernel.mount_setattr(kernel.AT_FDCWD, "e", 0, add=kernel.MOUNT_ATTR_RDONLY)
        for name, is_directory in self._masks:
            kernel.mount("e" if is_directory else "/dev/null", f"m/proc/{name}", None, kernel.MS_BIND)
        for name in _READ_ONLY:
            kernel.mount(f"m/proc/{name}", f"m/proc/{name}", None, kernel.MS_BIND)
            kernel.mount_setattr(kernel.AT_FDCWD, f"m/proc/{name}", 0, add=kernel.MOUNT_ATTR_RDONLY)

    def _add_names(self, resolv_conf: str) -> None:
        """Files of /etc that differ from box to box; the host's name comes with the order."""
        for name, text in (("hosts", ""), ("resolv.conf", resolv_conf)):
            if name == "hosts" or text:
                _write(name, text)
                kernel.mount(name, f"m/etc/{name}", None, kernel.MS_BIND)


def _directory(path: str, mode: int = 0o755) -> bool:
    """Make it; False if a persistent store has it already."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    return True


def _check_no_link(name: str, top: str = "m") -> None:
    """Followed before the pivot, a link below the store or the merged view would lead to the host's own files.

    Asked of persistent stores only: a new box has our skeleton on top of whatever its image holds.
    """
    path = top
    for part in name.split("/"):
        path = f"{path}/{part}"
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise OSError(errno.ELOOP, "a symbolic link stands where the box needs a directory of its own", name)


def _attach(tree: int, path: str) -> None:
    kernel.move_mount(tree, kernel.AT_FDCWD, path)
    os.close(tree)


def _attach_beneath(merged: int, extra: Extra, tree: int) -> None:
    """Mount inside the box, following links as processes in the box would, never out of it."""
    is_directory = stat.S_ISDIR(os.fstat(tree).st_mode)
    target = _make_target(merged, extra.target.strip("/"), is_directory)
    kernel.move_mount(tree, target, b"")
    os.close(target)
    os.close(tree)


def _make_target(merged: int, path: str, is_directory: bool) -> int:
    resolve = kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_MAGICLINKS
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        prefix = "/".join(parts[:depth])
        try:
            os.close(kernel.openat2(merged, prefix, os.O_PATH, resolve))
        except FileNotFoundError:
            above = "/".join(parts[: depth - 1]) or "."
            parent = kernel.openat2(merged, above, os.O_PATH | os.O_DIRECTORY, resolve)
            try:
                if is_directory or depth < len(parts):
                    os.mkdir(parts[depth - 1], 0o755, dir_fd=parent)
                else:
                    os.close(os.open(parts[depth - 1], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent))
            finally:
                os.close(parent)
    return kernel.openat2(merged, path, os.O_PATH, resolve)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
