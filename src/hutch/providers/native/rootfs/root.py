"""The root file system of a box: its template, and the mount operations that need more than one fixed call.

The mount namespace's root is the *base*: `0` (the upper layer, with the own workspace), `w` (overlay's work
directory), `l0`, `l1`, ... (the image, topmost first) and `m`, the merged view. Guest and users are chrooted into `m`,
so that a process which enters the base from outside can switch layers without their help.

A read-only root is a read-only *mount* of the same overlay, with its writable directories bound onto themselves: all
that a box writes lies in one store. Standard library only.
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
TOOLS = "opt/hutch/bin"
"""The last directory of the search path, for names of programs that agents expect and the machine lacks."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

# Entries of /proc that reveal or control the host. Most are closed to a box's user by their owner anyway; a mask also
# holds where a kernel forgot to check. A masked file shows /dev/null, a masked directory is empty.
_MASKED = (
    "acpi", "asound", "bus", "cmdline", "config.gz", "driver", "fs", "interrupts", "iomem", "ioports", "irq",
    "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats",
    "modules", "pagetypeinfo", "sched_debug", "scsi", "slabinfo", "sysrq-trigger", "timer_list", "timer_stats",
    "vmallocinfo",
)  # fmt: skip
SPILL = "spill"
"""The name, in a box's directory on the host, of the directory for output that does not fit in its guests' memory."""
READ_ONLY = ("sys",)
"""Entries of /proc that can be read but not written."""

QUIET_ATTRIBUTES = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
_DETACHED = OPEN_TREE_CLONE | AT_RECURSIVE


class BoxTemplate(NamedTuple):
    """Everything about a box's root that several orders can share: children can be prestarted from a template."""

    lowers: tuple[str, ...]
    """Directories of the image, topmost first."""
    binds: tuple[tuple[str, str], ...]
    """Host directories that are mounted read-only, as (source, name below the root), such as the machine's /usr."""
    overlays: tuple[tuple[str, str], ...]
    """Like `binds`, but with a writable upper layer of the box."""
    read_only: bool
    own_workspace: bool
    """Whether /workspace is a writable part of the box's own store."""
    network: str
    pin: tuple[int, int] | None
    """Device and inode that the lowest directory of the image must have; None if it is our own."""
    store: str | None = None
    """A persistent box's directory; None for a tmpfs."""
    workspace_binds: tuple[tuple[str, str], ...] = ()
    """Like `binds`, but in the box's own workspace, for its skills."""
    allowed: tuple[str, ...] = ()
    """Private ranges that the box may reach, if it has a network."""
    layers: tuple[str, ...] = ("0",)
    """The layers of a persistent box's store, topmost first (`layers.view`)."""

    @staticmethod
    def parse(values: list[Any]) -> "BoxTemplate":
        """Parse values from JSON, which has no tuples, in the order of the fields."""
        lowers, binds, overlays, read_only, own_workspace, network, pin, store, workspace_binds, allowed, layers = (
            values
        )
        pairs = [tuple((source, name) for source, name in each) for each in (binds, overlays, workspace_binds)]
        return BoxTemplate(
            tuple(lowers), pairs[0], pairs[1], read_only, own_workspace, network, tuple(pin) if pin else None, store,
            pairs[2], tuple(allowed), tuple(layers),
        )  # fmt: skip


def upper_directory(layer: str, part: int = 0) -> str:
    """The directory of a layer in one of the box's overlays: part 0 is the root, the others are `u1`, `u2`, ..."""
    above, slash, name = layer.rpartition("/")
    if part:
        name = f"u{part}" if name == "0" else f"u{part}.{name}"
    return f"{above}{slash}{name}"


def work_directory(layer: str, part: int = 0) -> str:
    """Overlay's work directory while the layer is the topmost."""
    if layer == "0":
        return f"w{part}" if part else "w"
    return f"x{layer}.{part}" if part else f"x{layer}"


class HostMount(NamedTuple):
    """A host directory or file to mount in a box. Device and inode say which one policy has allowed."""

    source: str
    target: str
    writable: bool
    device: int
    inode: int
    public: bool = False
    """Whether everybody may read its files, so that they need not seem the box's own."""


Source = tuple[str, bool, tuple[int, int] | None, bool]
"""A host directory, whether it stays writable, the device and inode it must have, and whether it is a layer."""

LAYERS_TAKE_IDS = tuple(map(int, uname().release.replace("+", "-").split("-")[0].split(".")[:2])) >= (5, 19)
"""Whether overlay accepts idmapped mounts as layers (EINVAL before Linux 5.19)."""


def template_sources(template: BoxTemplate) -> list[Source]:
    """The host directories of a template, in the order in which `RootBuilder` uses them."""
    layers: list[Source] = [(template.store, True, None, True)] if template.store else []
    layers += [(path, False, None, True) for path in template.lowers]
    layers[-1] = (template.lowers[-1], False, template.pin, True)
    layers += [(path, False, None, True) for path, _ in template.overlays]
    return [*layers, *((path, False, None, False) for path, _ in (*template.binds, *template.workspace_binds))]


def detach(source: Source, userns: int | None) -> int:
    """A private copy of the mount at `source`, idmapped through `userns` where the file system supports it."""
    path, writable, pin, is_layer = source
    if is_layer and not LAYERS_TAKE_IDS:
        userns = None  # owners then show as nobody, but permissions do not change
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
    """The directory for spilled output, as a mount that is never attached.

    Threat: `..` from a descriptor of the host's own mount leads up to the host's root. From this one it leads nowhere.
    """
    return detach((path, True, None, False), None)


def restrict(tree: int, *, writable: bool, userns: int | None) -> int:
    attributes = QUIET_ATTRIBUTES | (0 if writable else MOUNT_ATTR_RDONLY)
    flags = AT_EMPTY_PATH | AT_RECURSIVE
    private = MS_PRIVATE  # otherwise, what the host mounts there later would appear in the box
    if userns is not None:
        try:
            idmap = attributes | MOUNT_ATTR_IDMAP
            mount_setattr(tree, b"", flags, add=idmap, propagation=private, userns=userns)
            return tree
        except OSError:
            pass  # without idmapped mounts, owners show as nobody, but permissions do not change
    mount_setattr(tree, b"", flags, add=attributes, propagation=private)
    return tree


def detach_host_mount(
    host_mount: HostMount, seen_by: Callable[[stat_result], AbstractContextManager[int]] | None
) -> int:
    """Like `detach`, for a mount that policy has allowed: it must still be the same file.

    `seen_by` gives the user namespace for the file that was found. It must not look the path up again. Threat: whoever
    may rename a part of it could put another file there, and have root's id mapped into the box.
    """
    # The allowed path is canonical, so a symbolic link on it was put there since.
    resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    fd = openat2(AT_FDCWD, host_mount.source, O_PATH, resolve)
    try:
        facts = fstat(fd)
        if (facts.st_dev, facts.st_ino) != (host_mount.device, host_mount.inode):
            raise PermissionError(errno.EPERM, "it was replaced after it had been allowed", host_mount.source)
        with nullcontext() if seen_by is None else seen_by(facts) as userns:
            tree = open_tree(fd, b"", _DETACHED | AT_EMPTY_PATH)
            try:
                return restrict(tree, writable=host_mount.writable, userns=userns)
            except BaseException:
                close(tree)
                raise
    finally:
        close(fd)


Mask = tuple[str, bool]
"""A name in /proc, and whether it is a directory."""


def masks() -> tuple[Mask, ...]:
    """The entries of `_MASKED` that this kernel has. The spawner calls this once."""
    found: list[Mask] = []
    for name in _MASKED:
        try:
            found.append((name, S_ISDIR(lstat(f"/proc/{name}").st_mode)))
        except FileNotFoundError:
            continue
    return tuple(found)


def open_source(path: str, writable: bool, pin: tuple[int, int] | None, is_layer: bool) -> int:
    """Call `detach` in an ordinary user's child, which opens its own image."""
    return detach((path, writable, pin, is_layer), None)


def open_host_mount(*values: Any) -> int:
    """Call `detach_host_mount` in an ordinary user's child, and return the lowest free descriptor."""
    tree = detach_host_mount(HostMount(*values), None)
    lowest = dup(tree)
    close(tree)
    return lowest


def ensure_directory(path: str, mode: int) -> None:
    """Make a directory, which may exist already in the store of a persistent box."""
    with suppress(FileExistsError):
        mkdir(path, mode)


def ensure_place(parent: str, name: str, mode: int, owner: int) -> None:
    """Make a writable directory in a persistent store, if the box starts for the first time."""
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
    """Refuse a symbolic link: followed before the pivot, it would lead to the host's own files.

    Only persistent stores need this check: a new box has our skeleton on top of whatever its image holds.
    """
    path = top
    for part in name.split("/"):
        path = f"{path}/{part}"
        if S_ISLNK(lstat(path).st_mode):
            raise OSError(errno.ELOOP, "a symbolic link stands where the box needs a directory of its own", name)


def attach_host_mount(merged: int, target: str, tree: int) -> None:
    """Mount inside the box, resolving links as processes in the box would, never out of it."""
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
    """Create a mount point, as the owner of the directory if need be.

    An idmapped mount of host files maps only their owner: for every other user, also the box's root, creating a file
    there fails with EOVERFLOW (mount_setattr(2)).
    """
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
        # The real ids did not change, so this is permitted, and the kernel restores the capabilities with the id.
        seteuid(getuid())
        setegid(getgid())


def _create(parent: int, name: str, is_directory: bool) -> None:
    if is_directory:
        mkdir(name, 0o755, dir_fd=parent)
    else:
        close(open_file(name, O_CREAT | O_EXCL | O_WRONLY, 0o644, dir_fd=parent))
