"""The file system of a box, built by the child that will be its first process.

The mount namespace's root is the *base*: `0` (the upper layer, with the own workspace), `w` (overlay's work
directory), `l0`, `l1`, ... (the image, topmost first) and `m`, the merged view. Guest and users are chrooted into `m`,
so that layers can be switched from outside, by whoever enters the base, without their help.

A read-only root is a read-only *mount* of the same overlay, with its writable places bound onto themselves: all that a
box writes lies in one store. Standard library only.
"""

import errno
from os import (
    O_CLOEXEC,
    O_CREAT,
    O_DIRECTORY,
    O_EXCL,
    O_NOFOLLOW,
    O_PATH,
    O_TRUNC,
    O_WRONLY,
    chdir,
    chmod,
    chown,
    close,
    fstat,
    lstat,
    mkdir,
    umask,
)
from os import open as open_file
from os import write as write_to
from stat import S_ISDIR, S_ISLNK
from typing import Any, NamedTuple

from hutch.providers.native.identity import USER
from hutch.providers.native.kernel import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_RECURSIVE,
    MNT_DETACH,
    MOUNT_ATTR_IDMAP,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    MS_REMOUNT,
    OPEN_TREE_CLONE,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    mount,
    mount_setattr,
    move_mount,
    open_tree,
    openat2,
    pivot_root,
    umount,
)

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

_QUIET = MS_NOSUID | MS_NODEV
QUIET_ATTRIBUTES = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
_DETACHED = OPEN_TREE_CLONE | AT_RECURSIVE


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
    public: bool = False
    """Its files need not seem the box's own: others may read them."""


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
    fd = open_tree(AT_FDCWD, path, _DETACHED)
    try:
        facts = fstat(fd)
        if pin is not None and (facts.st_dev, facts.st_ino) != pin:
            raise PermissionError(errno.EPERM, "it was replaced after it had been allowed", path)
        return restrict(fd, writable=writable, userns=userns)
    except BaseException:
        close(fd)
        raise


def restrict(tree: int, *, writable: bool, userns: int | None) -> int:
    attributes = QUIET_ATTRIBUTES | (0 if writable else MOUNT_ATTR_RDONLY)
    flags = AT_EMPTY_PATH | AT_RECURSIVE
    private = MS_PRIVATE  # or what the host mounts there later would appear in the box
    if userns is not None:
        try:
            idmap = attributes | MOUNT_ATTR_IDMAP
            mount_setattr(tree, b"", flags, add=idmap, propagation=private, userns=userns)
            return tree
        except OSError:
            pass  # a file system without idmapped mounts: owners then show as nobody, rights do not change
    mount_setattr(tree, b"", flags, add=attributes, propagation=private)
    return tree


def detach_extra(extra: Extra, userns: int | None) -> int:
    """Like `detach`, for a mount that policy has allowed: it must still be the same file."""
    # The allowed path is canonical, so that a symbolic link on it was put there since.
    resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    fd = openat2(AT_FDCWD, extra.source, O_PATH, resolve)
    try:
        facts = fstat(fd)
        if (facts.st_dev, facts.st_ino) != (extra.device, extra.inode):
            raise PermissionError(errno.EPERM, "it was replaced after it had been allowed", extra.source)
        tree = open_tree(fd, b"", _DETACHED | AT_EMPTY_PATH)
    finally:
        close(fd)
    return restrict(tree, writable=extra.writable, userns=userns)


Mask = tuple[str, bool]
"""A name in /proc, and whether it is a directory."""


def masks() -> tuple[Mask, ...]:
    """What of `_MASKED` this kernel has; asked once, in the spawner."""
    found: list[Mask] = []
    for name in _MASKED:
        try:
            found.append((name, S_ISDIR(lstat(f"/proc/{name}").st_mode)))
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
            move_mount(trees.pop(0), AT_FDCWD, mount_point)
        else:
            # The real size comes with the order.
            mount("tmpfs", mount_point, "tmpfs", _QUIET, "mode=0755,size=16m,nr_inodes=4096")
        chdir(mount_point)
        self._make_store()
        count = len(shape.lowers)
        for number in range(count):
            _directory(f"l{number}")
            _attach(trees.pop(0), f"l{number}")
        lowers = ":".join(f"l{number}" for number in range(count))
        # userxattr: the other kind of marks needs privilege over the host (kernel 5.11).
        mount("overlay", "m", "overlay", _QUIET, f"lowerdir={lowers},upperdir=0,workdir=w,userxattr")
        if shape.store:
            for name in self._mount_points():
                _check_no_link(name)
        for number, (_, name) in enumerate(shape.overlays, 1):
            for part in (f"o{number}", f"u{number}", f"w{number}"):
                _directory(part)
            _attach(trees.pop(0), f"o{number}")
            layers = f"lowerdir=o{number},upperdir=u{number},workdir=w{number},userxattr"
            mount("overlay", f"m/{name}", "overlay", _QUIET, layers)
        for _, name in shape.binds:
            _attach(trees.pop(0), f"m/{name}")
        self._add_devices()
        self._add_proc()
        self._add_names(resolv_conf)
        if shape.read_only:
            self._close_root()
        pivot_root(".", ".")
        umount(".", MNT_DETACH)
        chdir("/")
        mount(None, "/", None, MS_REC | MS_PRIVATE)

    def finish(self, hostname: str, size: int, inodes: int, extras: list[tuple[Extra, int]]) -> None:
        """What only the order knows. Runs in the base, before the chroot."""
        if not self._shape.store:
            mount(None, ".", None, MS_REMOUNT | _QUIET, f"size={size},nr_inodes={inodes}")
        _write("hosts", f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost\n")
        if not extras:
            return
        merged = open_file("m", O_PATH | O_CLOEXEC)
        if self._shape.read_only:
            # Nobody else runs in the box yet; the targets of the mounts may have to be made.
            mount_setattr(merged, b"", AT_EMPTY_PATH, remove=MOUNT_ATTR_RDONLY)
        for extra, tree in extras:
            _attach_beneath(merged, extra, tree)
        if self._shape.read_only:
            mount_setattr(merged, b"", AT_EMPTY_PATH, add=MOUNT_ATTR_RDONLY)
        close(merged)

    def _make_store(self) -> None:
        umask(0)
        for name in ("0", "w", "m"):
            _directory(name)
        for name, mode, owned in self._places():
            parent = name.rpartition("/")[0]
            if parent and not _directory(f"0/{parent}") and self._shape.store:
                _check_no_link(parent, "0")
            path = f"0/{name}"
            if _directory(path, mode) and owned and self._ranged:
                chown(path, USER, USER)
        umask(0o022)

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
            mount(f"m/{name}", f"m/{name}", None, MS_BIND)
        mount_setattr(AT_FDCWD, "m", 0, add=MOUNT_ATTR_RDONLY)

    def _add_devices(self) -> None:
        for name in DEVICES:
            mount(f"/dev/{name}", f"m/dev/{name}", None, MS_BIND)
        mount("devpts", "m/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
                     "newinstance,ptmxmode=0666,mode=0620")  # fmt: skip
        if self._shape.store:
            mount("tmpfs", "m/dev/shm", "tmpfs", _QUIET, "mode=1777,size=64m")
            return
        # A part of the base, so that one size bounds everything the box keeps in memory as files.
        mkdir("shm")
        chmod("shm", 0o1777)
        mount("shm", "m/dev/shm", None, MS_BIND)

    def _add_proc(self) -> None:
        mount("proc", "m/proc", "proc", _QUIET | MS_NOEXEC)
        if not self._masks:
            return
        _directory("e")
        mount("e", "e", None, MS_BIND)
        mount_setattr(AT_FDCWD, "e", 0, add=MOUNT_ATTR_RDONLY)
        for name, is_directory in self._masks:
            mount("e" if is_directory else "/dev/null", f"m/proc/{name}", None, MS_BIND)
        for name in _READ_ONLY:
            mount(f"m/proc/{name}", f"m/proc/{name}", None, MS_BIND)
            mount_setattr(AT_FDCWD, f"m/proc/{name}", 0, add=MOUNT_ATTR_RDONLY)

    def _add_names(self, resolv_conf: str) -> None:
        """Files of /etc that differ from box to box; the host's name comes with the order."""
        for name, text in (("hosts", ""), ("resolv.conf", resolv_conf)):
            if name == "hosts" or text:
                _write(name, text)
                mount(name, f"m/etc/{name}", None, MS_BIND)


def _directory(path: str, mode: int = 0o755) -> bool:
    """Make it; False if a persistent store has it already."""
    try:
        mkdir(path, mode)
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
        if S_ISLNK(lstat(path).st_mode):
            raise OSError(errno.ELOOP, "a symbolic link stands where the box needs a directory of its own", name)


def _attach(tree: int, path: str) -> None:
    move_mount(tree, AT_FDCWD, path)
    close(tree)


def _attach_beneath(merged: int, extra: Extra, tree: int) -> None:
    """Mount inside the box, following links as processes in the box would, never out of it."""
    is_directory = S_ISDIR(fstat(tree).st_mode)
    target = _make_target(merged, extra.target.strip("/"), is_directory)
    move_mount(tree, target, b"")
    close(target)
    close(tree)


def _make_target(merged: int, path: str, is_directory: bool) -> int:
    resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        prefix = "/".join(parts[:depth])
        try:
            close(openat2(merged, prefix, O_PATH, resolve))
        except FileNotFoundError:
            above = "/".join(parts[: depth - 1]) or "."
            parent = openat2(merged, above, O_PATH | O_DIRECTORY, resolve)
            try:
                if is_directory or depth < len(parts):
                    mkdir(parts[depth - 1], 0o755, dir_fd=parent)
                else:
                    close(open_file(parts[depth - 1], O_CREAT | O_EXCL | O_WRONLY, 0o644, dir_fd=parent))
            finally:
                close(parent)
    return openat2(merged, path, O_PATH, resolve)


def _write(path: str, text: str) -> None:
    fd = open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0o644)
    try:
        write_to(fd, text.encode())
    finally:
        close(fd)
