"""The allow-list of mounts: which files of the host may be shown in a box.

A source must lie under a configured root, whatever symlinks lead to it. Always refused, even under a root:

1. closed trees and everything below them: the system's directories, engines' data, credentials in the homes,
   Hutch's own state and run directory (so also other boxes), and what the configuration adds;
2. every directory above a closed tree, because it would show it: `/`, `/var`, a home that holds a `.ssh`;
3. homes themselves (`/root`, `/home`, `/home/NAME`): what lies in them may be shown, not all of them at once;
4. anything but a directory or a regular file, since a read-only mount does not keep a box from using a socket or a
   device, and a directory that directly holds an engine's socket. Sockets deeper down are not searched for.

Trees are compared by path and by inode, so a bind mount of one under another name is found as well. The answer has
device and inode: a provider opens the real path again and compares, so a swap in between is noticed.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from hutch.errors import FileMissing, Invalid, Refused
from hutch.model.spec import CheckedMount, CheckedMounts, Mount, MountMode, Workspace, volume_of
from hutch.policy.values import at_or_below

SYSTEM_TREES = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/lost+found", "/proc", "/run", "/sbin",
    "/sys", "/usr", "/var/log", "/var/run", "/var/spool", "/var/lib/apt", "/var/lib/dpkg", "/var/lib/rpm",
    "/var/lib/systemd", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/hutch",
    "/var/lib/incus", "/var/lib/kubelet", "/var/lib/libvirt", "/var/lib/lxc", "/var/lib/lxd", "/var/lib/machines",
    "/var/lib/rancher", "/var/snap",
)  # fmt: skip
CREDENTIALS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gcloud", ".colima", ".lima", ".rd", ".netrc",
)  # fmt: skip
"""Paths in each home; some also hold the socket of a rootless or desktop engine."""
ENGINE_SOCKETS = (
    "docker.sock", "podman.sock", "containerd.sock", "containerd.sock.ttrpc", "crio.sock", "buildkitd.sock",
    "libpod.sock", "cri-dockerd.sock",
)  # fmt: skip

_WINDOWS_TREES = (
    "windows", "program files", "program files (x86)", "programdata", "system volume information", "$recycle.bin",
    "recovery", "boot", "perflogs",
)  # fmt: skip

_granted: ContextVar[tuple[str, ...]] = ContextVar("hutch_granted_mount_roots", default=())
_read_only: ContextVar[tuple[str, ...]] = ContextVar("hutch_read_only_mount_trees", default=())


@contextmanager
def granted(*roots: str, read_only: Sequence[str] = ()) -> Iterator[None]:
    """Allow more roots within the context, such as the files of an MCP server that an admin registered, for its box.

    Nothing of the trees `read_only` may be shown so that a box can write there. What is always refused stays refused.
    """
    tokens = _granted.set((*_granted.get(), *roots)), _read_only.set((*_read_only.get(), *read_only))
    try:
        yield
    finally:
        _granted.reset(tokens[0])
        _read_only.reset(tokens[1])


def granted_roots() -> tuple[str, ...]:
    """Return the roots that were granted here; a client sends them to its server, which decides about them."""
    return _granted.get()


def check(
    mounts: Sequence[Mount],
    workspace: Workspace,
    image: str = "host",
    *,
    roots: Sequence[str | Path],
    refused: Sequence[str | Path] = (),
    unwritable: Sequence[str | Path] = (),
) -> CheckedMounts:
    """Check everything of the host that a box would show. Volumes are not part of the answer: the keeper has them.

    Raises Invalid (not an absolute path), FileMissing (no such source) or Refused.

    `refused` are closed trees besides the system's: at least the state and the run directory. `unwritable` are files
    that a box may be shown, but not so that it can change them: those that configure us.
    """
    rules: _Rules | None = None

    def checked(source: str, target: str, mode: MountMode, what: str = "mount source") -> CheckedMount:
        nonlocal rules
        # Made on first use: most boxes mount nothing.
        rules = rules or _Rules(roots, refused, unwritable)
        return rules.check(source, target, mode, what)

    shown = [mount for mount in mounts if mount.mode is not MountMode.NONE and volume_of(mount.source) is None]
    kind, _, reference = image.partition(":")
    from_host = workspace.source != "own" and volume_of(workspace.source) is None
    return CheckedMounts(
        mounts=tuple(checked(mount.source, mount.target, mount.mode) for mount in shown),
        workspace=checked(workspace.source, "/workspace", workspace.mode, "workspace")
        if from_host and workspace.mode is not MountMode.NONE
        else None,
        image=checked(reference, "/", MountMode.RO, "image") if kind in ("dir", "tar") else None,
    )


def check_source(
    source: str, what: str, *, roots: Sequence[str | Path], refused: Sequence[str | Path] = ()
) -> CheckedMount:
    """Check a file or directory that a keeper reads or copies for a caller: the rules of mounts hold for copies too.

    `hutch.host_files.open_checked` opens what this allows. Raises as `check` does.
    """
    return _Rules(roots, refused).check(source, "", MountMode.RO, what)


def windows_refusal(path: str) -> str | None:
    """Return why a Windows path may never be shown, or None if its text gives no reason."""
    text = path.replace("/", "\\").removeprefix("\\\\?\\").lower()
    if text.startswith("\\\\"):
        device = text.startswith(("\\\\.\\", "\\\\?\\"))
        return "it names a device or a pipe" if device else "it is on another machine"
    drive, colon, rest = text.partition(":")
    if not (colon and len(drive) == 1 and rest.startswith("\\")):
        return "it is not an absolute path with a drive"
    # Windows ignores dots and blanks at the end of a name, so `C:\Windows. ` is C:\Windows.
    names = [name.rstrip(". ") for name in rest.split("\\") if name not in ("", ".")]
    if any(name == "" for name in names):
        return "it contains '..'"
    if any(":" in name for name in names):
        return "it names an alternate stream"
    if not names:
        return "it is a whole drive"
    if names[0] in _WINDOWS_TREES or any("~" in name and name[-1:].isdigit() for name in names[:1]):
        return "it is a system directory, or a short name that may be one"
    if names[0] == "users" and len(names) <= 2:
        return "it is a whole home directory"
    return None


class _Rules:
    """Roots and refusals, looked up once for one check."""

    def __init__(
        self, roots: Sequence[str | Path], refused: Sequence[str | Path], unwritable: Sequence[str | Path] = ()
    ) -> None:
        self.unwritable = {os.path.abspath(path) for path in unwritable} | {
            os.path.realpath(path) for path in unwritable
        }
        self.roots = [os.path.realpath(root) for root in (*roots, *_granted.get())]
        self.homes = _homes()
        closed = {
            *SYSTEM_TREES,
            *(os.path.abspath(path) for path in refused),
            *(f"{home}/{name}" for home in self.homes for name in CREDENTIALS),
            *_engine_addresses(),
        }
        self.closed = closed | {os.path.realpath(path) for path in closed}
        self.inodes = {inode: path for path in sorted(self.closed) if (inode := _inode(path))}

    def check(self, source: str, target: str, mode: MountMode, what: str) -> CheckedMount:
        real, found = _resolve(source, what)
        self._check_kind(source, real, found)
        self._check_closed(source, real, found)
        if not any(at_or_below(real, root) for root in self.roots):
            allowed = ", ".join(self.roots) or "none"
            raise _refusal(
                source,
                f"{real} does not lie under an allowed root (roots: {allowed})",
                f"add {_root_to_suggest(real, found)!r} to mount_roots in hutch.toml",
            )
        if mode is MountMode.RW:
            self._check_unwritable(source, real)
            self._check_read_only(source, real)
        return CheckedMount(real=real, target=target, mode=mode, dev=found.st_dev, ino=found.st_ino)

    def _check_unwritable(self, source: str, real: str) -> None:
        for file in sorted(self.unwritable):
            if at_or_below(file, real):
                raise _refusal(
                    source, f"a box that may write in it could change {file}, which configures Hutch",
                    "show it read-only (:ro), or keep the configuration elsewhere",
                )  # fmt: skip

    def _check_read_only(self, source: str, real: str) -> None:
        for tree in _read_only.get():
            if at_or_below(real, tree) or at_or_below(tree, real):
                raise _refusal(source, f"boxes may only read {tree}", "show another directory, or this one read-only")

    def _check_kind(self, source: str, real: str, found: os.stat_result) -> None:
        if stat.S_ISREG(found.st_mode):
            return
        if not stat.S_ISDIR(found.st_mode):
            # connect(2) and device drivers work on a read-only mount too.
            raise _refusal(source, f"{real} is neither a directory nor a regular file", "name a directory or a file")
        for name in ENGINE_SOCKETS:
            inside = _lstat(f"{real}/{name}")
            if inside and stat.S_ISSOCK(inside.st_mode):
                raise _refusal(source, f"{real} holds the socket of a container engine, {name}", _ELSEWHERE)

    def _check_closed(self, source: str, real: str, found: os.stat_result) -> None:
        if real == "/" or (found.st_dev, found.st_ino) == _inode("/"):
            raise _refusal(source, "it is the whole machine", "name a directory in it")
        if real in self.homes or os.path.dirname(real) == "/home":
            raise _refusal(source, f"{real} is a whole home", "name a directory in it")
        for tree in sorted(self.closed):
            if at_or_below(real, tree):
                closed = real if real == tree else f"{real} belongs to {tree}, which"
                raise _refusal(source, f"{closed} is closed to every box", _ELSEWHERE)
            # The tree need not exist now: it may be made while the box runs.
            if at_or_below(tree, real):
                raise _refusal(
                    source, f"{real} contains {tree}, which is closed to every box", "name a directory in it"
                )
        for place, inode in _inodes_on_the_way(real, source, found):
            if inode in self.inodes:
                raise _refusal(source, f"{place} is {self.inodes[inode]} under another name", _ELSEWHERE)


_ELSEWHERE = "copy what the box needs to a directory of its own, and show that"


def _resolve(source: str, what: str) -> tuple[str, os.stat_result]:
    """Find the real path of a source through one open descriptor, so that no name is looked up twice."""
    if source[1:3] in (":\\", ":/") or source.startswith("\\\\"):
        reason = windows_refusal(source) or "Windows paths do not exist on this machine"
        raise _refusal(source, reason)
    if not source.startswith("/"):
        raise Invalid(
            f"{what} {source!r} is not an absolute path", remedy="write it from / on", details={"field": "mounts"}
        )
    try:
        descriptor = os.open(source, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileMissing(
            f"{what} {source} does not exist",
            remedy=f"make it first, or leave the {what.removesuffix(' source')} out",
            details={"field": "mounts", "path": source},
        ) from error
    except OSError as error:
        raise _refusal(source, f"it cannot be opened ({error.strerror})", "name one that you may read") from error
    try:
        real, found = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not real.isprintable():
        # Such a name could break the JSON of records or the lines of messages.
        raise _refusal(source, f"its real path {real!a} holds characters that cannot be printed")
    return real, found


def _inodes_on_the_way(real: str, source: str, found: os.stat_result) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield device and inode of each directory from / to `real`, without following a link.

    The last one must be what was opened. It is not after a swap, or if the source went through a magic link of /proc
    into another mount namespace, where the same paths name other files.
    """
    descriptor = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        place = ""
        for name in real.strip("/").split("/"):
            try:
                following = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            except OSError as error:
                raise _refusal(source, f"{real} changed while it was checked ({error.strerror})") from error
            os.close(descriptor)
            descriptor = following
            here = os.fstat(descriptor)
            place = f"{place}/{name}"
            yield place, (here.st_dev, here.st_ino)
        if (here.st_dev, here.st_ino) != (found.st_dev, found.st_ino):
            raise _refusal(source, f"{real} is not what the source leads to")
    finally:
        os.close(descriptor)


def _homes() -> frozenset[str]:
    """List every known home of this machine, as written and as resolved."""
    import pwd

    homes = {"/root", "/home", os.path.expanduser("~")}
    # Only people: the homes of services are /, /bin, /var/lib/..., which have their own rules.
    homes |= {entry.pw_dir for entry in pwd.getpwall() if 1000 <= entry.pw_uid < 65534 or entry.pw_uid == os.getuid()}
    homes |= {os.path.realpath(home) for home in homes}
    return frozenset(home.rstrip("/") for home in homes if home.startswith("/") and home.strip("/"))


def _engine_addresses() -> Iterator[str]:
    """List the sockets of engines that the environment names."""
    for variable in ("DOCKER_HOST", "CONTAINER_HOST", "CONTAINERD_ADDRESS"):
        path = os.environ.get(variable, "").removeprefix("unix://")
        if path.startswith("/"):
            yield os.path.normpath(path)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _inode(path: str) -> tuple[int, int] | None:
    """Return device and inode; None if this user sees nothing there, so that no source can be it either."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _root_to_suggest(real: str, found: os.stat_result) -> str:
    return real if stat.S_ISDIR(found.st_mode) else os.path.dirname(real)


def _refusal(source: str, reason: str, remedy: str = "") -> Refused:
    return Refused(
        f"{source} may not be shown in a box: {reason}",
        remedy=remedy or None,
        details={"field": "mounts", "path": source},
    )
