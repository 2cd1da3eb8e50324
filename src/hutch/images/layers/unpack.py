"""Unpacking one layer, or a whole root, from its tar into a directory that overlayfs can use directly.

The archive is not trusted. A name with `..` is refused, an absolute one stays inside, nothing is written through a
link, a hard link may only lead into the same layer, devices are left out (a box has its own /dev), and set-user-id bits
are kept only because boxes mount images nosuid and nobody else can enter the directory above.

Boxes mount with `userxattr`, as root and rootless, so deletions are device 0:0 (which any user may create since Linux
5.8) and hidden directories carry `user.overlay.opaque`.
"""

import errno
import os
import stat
from typing import NamedTuple

from hutch.errors import EngineError, HutchError, Invalid, Refused
from hutch.images.layers import tar_entries as entries
from hutch.images.layers.decompression import DecompressedStream
from hutch.images.layers.tar_entries import Entry, Reader
from hutch.images.settings import Bounds

OPAQUE = "user.overlay.opaque"
_DELETED_PREFIX = ".wh."
_OPAQUE_MARKER = ".wh..wh..opq"
_RESERVED = ".wh..wh."
_CHUNK = 1 << 20
_MAX_NAME = 4096
"""Longest path; nobody could open a longer one by its name (PATH_MAX)."""
_IMPLIED_MODES = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
"""Modes of directories that an archive fills without listing them."""
_OPEN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDONLY


class UnpackResult(NamedTuple):
    """What was unpacked."""

    diff_id: str
    bytes: int
    entries: int
    devices: int
    """Number of device nodes that were left out."""


def unpack(stream: DecompressedStream, draft: str, bounds: Bounds, *, layered: bool = True) -> UnpackResult:
    """Unpack into the empty directory `draft`, which only we can enter. `layered` enables OCI's deletion names."""
    top = os.open(draft, _OPEN)
    try:
        work = _Unpacker(Reader(stream), top, bounds, layered)
        work.run()
        return UnpackResult(stream.drain(), work.bytes, work.count, work.devices)
    except HutchError:
        raise  # some HutchErrors are OSErrors too
    except OSError as error:
        raise _unpack_error(error) from error
    finally:
        os.close(top)


class _Unpacker:
    def __init__(self, reader: Reader, top: int, bounds: Bounds, layered: bool) -> None:
        self._reader = reader
        self._top = top
        self._bounds = bounds
        self._layered = layered
        self._as_root = os.geteuid() == 0
        self._directories: dict[str, Entry] = {}
        self._parent = ("", os.dup(top))
        self.bytes = 0
        self.count = 0
        self.devices = 0

    def run(self) -> None:
        try:
            for entry in self._reader:
                self.count += 1
                if self.count > self._bounds.entries:
                    raise _over_limit(f"more than {self._bounds.entries} entries", "entries")
                name = safe_name(entry.name)
                if len(name) > _MAX_NAME:
                    raise Invalid(f"the archive holds a name of {len(name)} characters: {name[:80]!r}…")
                if name.count("/") >= self._bounds.depth:
                    raise _over_limit(f"directories deeper than {self._bounds.depth}", "depth")
                if name:
                    self._extract(entry, name)
                elif entry.kind == entries.DIRECTORY:
                    self._defer_metadata("", entry)
            # This comes last: a read-only directory could not be filled, and filling it changes its time.
            for name in sorted(self._directories, reverse=True):
                self._set_metadata(name, self._directories[name])
        finally:
            os.close(self._parent[1])

    def _extract(self, entry: Entry, name: str) -> None:
        above, _, last = name.rpartition("/")
        parent = self._enter(above)
        if self._layered and last.startswith(_DELETED_PREFIX):
            self._apply_deletion(parent, above, last)
        elif entry.kind == entries.DIRECTORY:
            self._make_directory(parent, last)
            self._defer_metadata(name, entry)
        elif entry.kind == entries.DEVICE:
            self.devices += 1
        else:
            _unlink_existing(parent, last)
            self._make(entry, parent, last)

    def _make(self, entry: Entry, parent: int, last: str) -> None:
        if entry.kind == entries.SYMLINK:
            if not entry.target:
                raise Invalid(f"the archive holds a link to nothing: {entry.name!r}")
            os.symlink(entry.target, last, dir_fd=parent)
            self._set_metadata_at(entry, parent, last)
        elif entry.kind == entries.LINK:
            self._link(entry, parent, last)
        elif entry.kind == entries.FIFO:
            os.mkfifo(last, entry.mode & 0o777, dir_fd=parent)
            self._set_metadata_at(entry, parent, last)
        else:
            self._write(entry, parent, last)

    def _make_directory(self, parent: int, name: str) -> None:
        found = _lstat(parent, name)
        if found is None:
            os.mkdir(name, 0o700, dir_fd=parent)
        elif _is_deletion(found):
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o700, dir_fd=parent)
            self._hide_below(parent, name)
        elif not stat.S_ISDIR(found.st_mode):
            raise Invalid(f"the archive replaces a file by a directory: {name!r}")

    def _defer_metadata(self, name: str, entry: Entry) -> None:
        """Set a directory's metadata at the end, but its attributes now: a million of them would fill the memory."""
        if entry.xattrs:
            _set_attributes(self._enter(name), entry)
        self._directories[name] = entry._replace(xattrs={})

    def _apply_deletion(self, parent: int, above: str, last: str) -> None:
        """Turn OCI's deletion names into overlayfs deletions. They apply to the layers below, never to this one."""
        if last == _OPAQUE_MARKER:
            _set_opaque(parent)
            return
        name = last.removeprefix(_DELETED_PREFIX)
        if last.startswith(_RESERVED) or name in ("", ".", ".."):
            return  # bookkeeping of an older union file system
        found = _lstat(parent, name)
        if found is None:
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
        elif stat.S_ISDIR(found.st_mode):
            self._hide_below(parent, name)

    def _hide_below(self, parent: int, name: str) -> None:
        fd = os.open(name, _OPEN, dir_fd=parent)
        try:
            _set_opaque(fd)
        finally:
            os.close(fd)

    def _link(self, entry: Entry, parent: int, last: str) -> None:
        target = safe_name(entry.target)
        above, _, name = target.rpartition("/")
        here, self._parent = self._parent, (self._parent[0], os.dup(self._parent[1]))
        try:
            source = self._enter(above)
            found = _lstat(source, name) if name else None
            if found is None or stat.S_ISDIR(found.st_mode) or _is_deletion(found):
                raise Invalid(
                    f"the archive links {entry.name!r} to {entry.target!r}, which is not a file of the same layer"
                )
            os.link(name, last, src_dir_fd=source, dst_dir_fd=here[1], follow_symlinks=False)
        finally:
            os.close(here[1])

    def _write(self, entry: Entry, parent: int, last: str) -> None:
        self.bytes += entry.size
        if self.bytes > self._bounds.unpacked_mb << 20:
            raise _over_limit(f"more than {self._bounds.unpacked_mb} MB of files", "unpacked_mb")
        fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            while data := self._reader.content(_CHUNK):
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            if self._as_root:
                os.fchown(fd, entry.uid, entry.gid)
            _set_attributes(fd, entry)
            # This follows the change of owner, which clears the set-user-id bits.
            os.fchmod(fd, entry.mode if self._as_root else entry.mode | 0o400)
            os.utime(fd, ns=(entry.mtime, entry.mtime))
        finally:
            os.close(fd)

    def _set_metadata_at(self, entry: Entry, parent: int, last: str) -> None:
        if self._as_root:
            os.chown(last, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        os.utime(last, ns=(entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)

    def _set_metadata(self, name: str, entry: Entry) -> None:
        """Set owner, mode and time. An unprivileged user keeps the right to enter and to remove a directory."""
        fd = self._enter(name)
        if self._as_root:
            os.fchown(fd, entry.uid, entry.gid)
        os.fchmod(fd, entry.mode if self._as_root else entry.mode | 0o700)
        os.utime(fd, ns=(entry.mtime, entry.mtime))

    def _enter(self, path: str) -> int:
        """Open a directory, creating what the archive did not list. It stays open until the next one is needed,
        because archives list the entries of one directory together."""
        known, fd = self._parent
        if known == path:
            return fd
        if known and path.startswith(f"{known}/"):
            walked, rest, fd = known, path[len(known) + 1 :], os.dup(fd)
        else:
            walked, rest, fd = "", path, os.dup(self._top)
        try:
            for part in rest.split("/") if rest else ():
                walked = f"{walked}/{part}" if walked else part
                following = self._open_directory(fd, part, walked)
                os.close(fd)
                fd = following
        except BaseException:
            os.close(fd)
            raise
        os.close(self._parent[1])
        self._parent = (path, fd)
        return fd

    def _open_directory(self, parent: int, name: str, path: str) -> int:
        for _ in range(2):
            try:
                return os.open(name, _OPEN, dir_fd=parent)
            except FileNotFoundError:
                os.mkdir(name, 0o700, dir_fd=parent)
                os.chmod(name, _IMPLIED_MODES.get(path, 0o755), dir_fd=parent)
            except OSError as error:
                found = _lstat(parent, name)
                if found is None or not _is_deletion(found):
                    raise Invalid(
                        f"the archive writes through a link or a file: {path!r} ({error.strerror})"
                    ) from error
                self._make_directory(parent, name)
                os.chmod(name, _IMPLIED_MODES.get(path, 0o755), dir_fd=parent)
        raise Invalid(f"the archive writes through a link or a file: {path!r}")


def safe_name(name: str) -> str:
    """Return the name below the root. Raises Invalid if it leads out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Invalid(f"the archive holds a name that leaves it: {name!r}")
    return "/".join(parts)


def _set_attributes(fd: int, entry: Entry) -> None:
    """Set only user attributes, and none of overlayfs: those would redirect what a box sees."""
    for name, value in entry.xattrs.items():
        if name.startswith("user.") and not name.startswith("user.overlay."):
            try:
                os.setxattr(fd, name, value)
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EINVAL):
                    raise


def _set_opaque(fd: int) -> None:
    try:
        os.setxattr(fd, OPAQUE, b"y")
    except OSError as error:
        raise EngineError(
            f"the file system of the images keeps no user attributes, as deleted directories need ({error.strerror})",
            remedy="put state_dir on ext4, xfs or btrfs, or on tmpfs with Linux 6.6 or newer",
        ) from error


def _unlink_existing(parent: int, name: str) -> None:
    """Remove an earlier entry of the name, or a deletion of this layer: the last entry wins."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except IsADirectoryError as error:
        raise Invalid(f"the archive replaces a directory by a file: {name!r}") from error


def _lstat(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_deletion(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _over_limit(what: str, setting: str) -> Refused:
    return Refused(f"the archive holds {what}", remedy=f"if you trust it, raise images.bounds.{setting}")


def _unpack_error(error: OSError) -> EngineError | Invalid:
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EILSEQ):
        return Invalid(f"not a readable archive: an impossible file name ({error.strerror})")
    return EngineError(f"the image could not be unpacked: {error.strerror}", remedy="look at the disk of state_dir")
