"""The file system of a box: what it is made of, and the parts of making it that have to decide something.

The mount namespace's root is the *base*: `0` (the upper layer, with the own workspace), `w` (overlay's work
directory), `l0`, `l1`, ... (the image, topmost first) and `m`, the merged view. Guest and users are chrooted into `m`,
so that layers can be switched from outside, by whoever enters the base, without their help.

A read-only root is a read-only *mount* of the same overlay, with its writable places bound onto themselves: all that a
box writes lies in one store. Standard library only.
"""

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from os import (
    O_CREAT,
    O_DIRECTORY,
    O_EXCL,
    O_PATH,
    O_WRONLY,
    chown,
    close,
    dup,
    fstat,
    getgid,
    getuid,
    lstat,
    mkdir,
    setegid,
    seteuid,
    stat_result,
    uname,
)
from os import open as open_file
from stat import S_ISDIR, S_ISLNK
from typing import Any, NamedTuple

from hutch.linux.kernel import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    AT_RECURSIVE,
    MOUNT_ATTR_IDMAP,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_PRIVATE,
    OPEN_TREE_CLONE,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    mount_setattr,
    move_mount,
    open_tree,
    openat2,
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
SPILL = "spill"
"""Of a box's directory on the host: output that does not fit in its guests' memory."""
READ_ONLY = ("sys",)
"""What of /proc can be read but not written."""

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
    shown: tuple[tuple[str, str], ...] = ()
    """Like `binds`, but in the box's own workspace: its skills."""
    allowed: tuple[str, ...] = ()
    """Private ranges that the box may reach, if it has a network."""

    @staticmethod
    def parse(values: list[Any]) -> "Shape":
        """From JSON, which has no tuples; the order is that of the fields."""
        lowers, binds, overlays, read_only, own_workspace, network, pin, store, shown, allowed = values
        pairs = [tuple((source, name) for source, name in each) for each in (binds, overlays, shown)]
        return Shape(
            tuple(lowers), pairs[0], pairs[1], read_only, own_workspace, network, tuple(pin) if pin else None, store,
            pairs[2], tuple(allowed),
        )  # fmt: skip


class Extra(NamedTuple):
    """A host directory or file to show inside; device and inode say which one was meant when it was allowed."""

    source: str
    target: str
    writable: bool
    device: int
    inode: int
    public: bool = False
    """Its files need not seem the box's own: others may read them."""


Source = tuple[str, bool, tuple[int, int] | None, bool]
"""A host directory, whether it stays writable, the device and inode it must have, and whether it is a layer."""

LAYERS_TAKE_IDS = tuple(map(int, uname().release.replace("+", "-").split("-")[0].split(".")[:2])) >= (5, 19)
"""Whether overlay takes idmapped mounts as layers; EINVAL before."""


def shape_sources(shape: Shape) -> list[Source]:
    """The host directories a shape is made of, in the order in which a root is built of them."""
    layers: list[Source] = [(shape.store, True, None, True)] if shape.store else []
    layers += [(path, False, None, True) for path in shape.lowers]
    layers[-1] = (shape.lowers[-1], False, shape.pin, True)
    layers += [(path, False, None, True) for path, _ in shape.overlays]
    return [*layers, *((path, False, None, False) for path, _ in (*shape.binds, *shape.shown))]


def detach(source: Source, userns: int | None) -> int:
    """A private copy of the mount tree at `source`, seen through the ids of `userns` where the file system can."""
    path, writable, pin, is_layer = source
    if is_layer and not LAYERS_TAKE_IDS:
        userns = None  # owners then show as nobody, rights do not change
    fd = open_tree(AT_FDCWD, path, _DETACHED)
    try:
        facts = fstat(fd)
        if pin is not None and (facts.st_dev, facts.st_ino) != pin:
            raise PermissionError(errno.EPERM, "it was replaced after it had been allowed", path)
        return restrict(fd, writable=writable, userns=userns)
    except BaseException:
        close(fd)
        raise


def detach_spill(path: str) -> int:
    """The directory for spilled output, as a mount that is never attached: whoever holds the descriptor reaches the
    files in it, and by `..` nothing else, while a descriptor of the host's own mount leads up to the host's root."""
    return detach((path, True, None, False), None)


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


def detach_extra(extra: Extra, seen_by: Callable[[stat_result], AbstractContextManager[int]] | None) -> int:
    """Like `detach`, for a mount that policy has allowed: it must still be the same file.

    `seen_by` gives the user namespace for the file that was found. It must not look the path up again: whoever may
    rename on it could show it another file, and have root's id mapped into the box.
    """
    # The allowed path is canonical, so that a symbolic link on it was put there since.
    resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    fd = openat2(AT_FDCWD, extra.source, O_PATH, resolve)
    try:
        facts = fstat(fd)
        if (facts.st_dev, facts.st_ino) != (extra.device, extra.inode):
            raise PermissionError(errno.EPERM, "it was replaced after it had been allowed", extra.source)
        with nullcontext() if seen_by is None else seen_by(facts) as userns:
            tree = open_tree(fd, b"", _DETACHED | AT_EMPTY_PATH)
            try:
                return restrict(tree, writable=extra.writable, userns=userns)
            except BaseException:
                close(tree)
                raise
    finally:
        close(fd)


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


def open_source(path: str, writable: bool, pin: tuple[int, int] | None, is_layer: bool) -> int:
    """`detach` for an ordinary user's child, which opens its own image."""
    return detach((path, writable, pin, is_layer), None)


def open_extra(*values: Any) -> int:
    """`detach_extra` for an ordinary user's child; the descriptor is the lowest that was free."""
    tree = detach_extra(Extra(*values), None)
    lowest = dup(tree)
    close(tree)
    return lowest


def ensure_directory(path: str, mode: int) -> None:
    """It is there already in a persistent store that has lived before."""
    with suppress(FileExistsError):
        mkdir(path, mode)


def ensure_place(parent: str, name: str, mode: int, owner: int) -> None:
    """A writable place of a persistent store, made in its first life."""
    if parent:
        ensure_directory(f"0/{parent}", 0o755)
        check_no_link(parent, "0")
    try:
        mkdir(f"0/{name}", mode)
    except FileExistsError:
        return
    if owner >= 0:
        chown(f"0/{name}", owner, owner)


def check_no_link(name: str, top: str = "m") -> None:
    """Followed before the pivot, a link below the store or the merged view would lead to the host's own files.

    Asked of persistent stores only: a new box has our skeleton on top of whatever its image holds.
    """
    path = top
    for part in name.split("/"):
        path = f"{path}/{part}"
        if S_ISLNK(lstat(path).st_mode):
            raise OSError(errno.ELOOP, "a symbolic link stands where the box needs a directory of its own", name)


def attach_extra(merged: int, target: str, tree: int) -> None:
    """Mount inside the box, following links as processes in the box would, never out of it."""
    is_directory = S_ISDIR(fstat(tree).st_mode)
    point = _make_target(merged, target.strip("/"), is_directory)
    move_mount(tree, point, b"")
    close(point)


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
                _make_point(parent, parts[depth - 1], is_directory or depth < len(parts))
            finally:
                close(parent)
    return openat2(merged, path, O_PATH, resolve)


def _make_point(parent: int, name: str, is_directory: bool) -> None:
    """A mount of the machine's files knows their owner alone: for everybody else, the box's root too, creating there is
    EOVERFLOW (mount_setattr(2), idmapped mounts), so that it is done as the owner."""
    try:
        _create(parent, name, is_directory)
        return
    except OSError as error:
        if error.errno != errno.EOVERFLOW:
            raise
    facts = fstat(parent)
    setegid(facts.st_gid)
    seteuid(facts.st_uid)
    try:
        _create(parent, name, is_directory)
    finally:
        # All other ids stayed as they were, so that the way back is open, and the capabilities come back with it.
        seteuid(getuid())
        setegid(getgid())


def _create(parent: int, name: str, is_directory: bool) -> None:
    if is_directory:
        mkdir(name, 0o755, dir_fd=parent)
    else:
        close(open_file(name, O_CREAT | O_EXCL | O_WRONLY, 0o644, dir_fd=parent))
