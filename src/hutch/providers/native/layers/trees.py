"""Whole layers as directory trees: copying one, merging several into one, removing one. Standard library only.

In a layer, a character device 0:0 stands for a name that is deleted, and a directory with the attribute
`user.overlay.opaque` hides the directories of the same name in the layers below.
"""

import errno
import os
import stat
from contextlib import suppress
from fcntl import ioctl

from hutch.guest.files import removal

OPAQUE = "user.overlay.opaque"
_OVERLAY = "user.overlay."
_BLOCK = 1 << 20
_FICLONE = 0x40049409
"""ioctl_ficlone(2): share the blocks of a file, where the file system can."""

Links = dict[tuple[int, int], str]
"""Files with several names that were copied, by device and inode of the source."""


def is_whiteout(facts: os.stat_result) -> bool:
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise


def remove(name: str) -> None:
    """Remove a layer in the working directory, whatever is in it."""
    parent = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in removal.remove_tree(parent, name, _enter):
            pass
    except FileNotFoundError:
        return
    finally:
        os.close(parent)


def _enter(name: str, directory: int) -> int:
    """Open a directory whatever its mode is: overlay's work directories have none."""
    try:
        return removal.enter(name, directory)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=directory)
        return removal.enter(name, directory)


def copy_layer(source: str, target: str) -> None:
    """Copy a layer with everything that overlay marks in it."""
    os.mkdir(target, 0o700)
    links: Links = {}
    pending = [(source, target)]
    directories = []
    while pending:
        above, below = pending.pop()
        directories.append((above, below))
        for entry in os.scandir(above):
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(f"{below}/{entry.name}", 0o700)
                pending.append((entry.path, f"{below}/{entry.name}"))
            else:
                copy_file(entry.path, f"{below}/{entry.name}", links)
    for above, below in reversed(directories):
        copy_attributes(above, below, os.lstat(above))


def size(top: str, seen: set[tuple[int, int]]) -> int:
    """Return the bytes on disk of the files of a layer that are not among `seen`, which gets them."""
    total, pending = 0, [top] if os.path.isdir(top) else []
    while pending:
        for entry in os.scandir(pending.pop()):
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                pending.append(entry.path)
            elif (key := (facts.st_dev, facts.st_ino)) not in seen:
                seen.add(key)
                total += facts.st_blocks * 512
    return total


def squash(layers: list[str], target: str) -> None:
    """Merge layers, topmost first, into a new one that shows the same over whatever lies below all of them.

    Files are linked, not copied, where the layers lie on one file system: nobody writes to a file of a frozen layer.
    """
    os.mkdir(target, 0o700)
    links: Links = {}
    pending: list[tuple[list[str], str]] = [([each for each in layers if os.path.isdir(each)], target)]
    directories = []
    while pending:
        sources, below = pending.pop()
        directories.append((sources[0], below))
        for name, found in _merged(sources).items():
            path = f"{below}/{name}"
            if stat.S_ISDIR(os.lstat(found[0]).st_mode):
                os.mkdir(path, 0o700)
                directories_found, hides = _directories(found)
                if hides:
                    os.setxattr(path, OPAQUE, b"y")
                pending.append((directories_found, path))
            else:
                _link(found[0], path, links)
    for above, below in reversed(directories):
        copy_attributes(above, below, os.lstat(above))


def _merged(sources: list[str]) -> dict[str, list[str]]:
    """Every name in these directories, with the paths that have it, topmost first."""
    found: dict[str, list[str]] = {}
    for source in sources:
        for name in os.listdir(source):
            found.setdefault(name, []).append(f"{source}/{name}")
    return found


def _directories(paths: list[str]) -> tuple[list[str], bool]:
    """The directories of one name that are seen together, and whether they hide what lies below."""
    seen: list[str] = []
    for path in paths:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return seen, True  # a file or a deletion, which hides whatever is deeper
        seen.append(path)
        if is_opaque(path):
            return seen, True
    return seen, False


def _link(source: str, target: str, links: Links) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        copy_file(source, target, links)


def copy_file(source: str, target: str, links: Links | None = None) -> None:
    """Copy anything but a directory, with owner, mode, times and attributes; names of one file stay names of one."""
    facts = os.lstat(source)
    key = (facts.st_dev, facts.st_ino)
    if links is not None and facts.st_nlink > 1:
        if first := links.get(key):
            os.link(first, target, follow_symlinks=False)
            return
        links[key] = target
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(facts.st_mode):
        _copy_content(source, target, facts.st_size)
    elif stat.S_ISSOCK(facts.st_mode) or stat.S_ISFIFO(facts.st_mode) or is_whiteout(facts):
        os.mknod(target, facts.st_mode, 0)
    else:
        raise OSError(errno.EPERM, "a device cannot be copied", source)
    copy_attributes(source, target, facts)


def _copy_content(source: str, target: str, size: int) -> None:
    """Copy a file's content; holes stay holes."""
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                ioctl(write, _FICLONE, read)
                return
            except OSError:
                pass  # most file systems share no blocks
            os.ftruncate(write, size)
            at = 0
            while at < size:
                try:
                    at = os.lseek(read, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:
                        break  # the rest is a hole
                    raise
                end = os.lseek(read, at, os.SEEK_HOLE)
                os.lseek(read, at, os.SEEK_SET)
                os.lseek(write, at, os.SEEK_SET)
                while at < end:
                    piece = os.read(read, min(_BLOCK, end - at))
                    if not piece:
                        return
                    at += len(piece)
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(write, view) :]
        finally:
            os.close(write)
    finally:
        os.close(read)


def copy_attributes(source: str, target: str, facts: os.stat_result) -> None:
    """Copy owner, mode, times and extended attributes; overlay's own mean something in one place only, but one."""
    os.chown(target, facts.st_uid, facts.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(facts.st_mode):
        for name in attribute_names(source):
            if name == OPAQUE or not name.startswith(_OVERLAY):
                with suppress(FileNotFoundError):
                    os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
        os.chmod(target, stat.S_IMODE(facts.st_mode))
    with suppress(PermissionError):
        os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns), follow_symlinks=False)


def attribute_names(path: str) -> list[str]:
    try:
        return [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise
