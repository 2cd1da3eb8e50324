"""Counts the disk usage of a directory tree, a few entries at a time, and of unlinked files that are still open.

The tree belongs to a box and changes while it is read. Threat: the box swaps a directory for a link that leads out of
the tree. So directories are entered by descriptor and without following links. However deep or wide the tree is, few
descriptors are open, and only two numbers are kept for a level beyond those.
"""

import ctypes
import errno
import os
import stat
from array import array
from collections import deque
from collections.abc import Iterable, Set
from struct import Struct

from hutch.providers.guest_client.disk_overrun import Use

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512  # st_blocks is in these, whatever the file system's block size (inode(7))
_NEAREST = 64
"""The number of levels whose descriptors stay open, each with a buffer of its listing."""
_BUFFER = 16384
_ENTRY = Struct("=QqHB")
"""struct linux_dirent64 of getdents64(2) up to its name: inode, position of the next entry, length, kind."""
_LISTABLE = stat.S_IRUSR | stat.S_IXUSR
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors for an entry that was removed or replaced since it was listed."""

# CDLL releases the interpreter's lock, because a listing may have to come from a slow disk.
_getdents64 = ctypes.CDLL(None, use_errno=True).getdents64


class DiskScan:
    """One pass over a tree. `used` only grows, so an excess shows before the pass is over."""

    def __init__(self, directory_fd: int, used_bytes: int = 0) -> None:
        """`used_bytes` are known to be used besides the tree."""
        top = _Directory(os.open(".", _ENTER, dir_fd=directory_fd))
        self._device = top.device
        self._bytes = used_bytes
        self._entries = self._unread = 0
        self._near = deque([top])
        self._inodes, self._places = array("Q"), array("q")
        """The inode and the position of each level above the nearest ones."""

    @property
    def used(self) -> Use:
        return Use(self._bytes, self._entries, self._unread)

    def advance(self, steps: int) -> bool:
        """Count up to `steps` more entries; True when the tree is done."""
        for _ in range(steps):
            if not self._near:
                return True
            self._step()
        return not self._near

    def close(self) -> None:
        while self._near:
            self._near.pop().close()

    def _step(self) -> None:
        """Count one entry, or go up from a directory that has no more."""
        here = self._near[-1]
        name = here.next()
        if name is None:
            self._ascend()
            return
        self._entries += 1
        try:
            status = os.stat(name, dir_fd=here.fd, follow_symlinks=False)
            if status.st_dev != self._device:
                return  # another mount is not part of the box's disk
            is_directory = stat.S_ISDIR(status.st_mode)
            # Each hard link counts for its part, so that no list of files with several links is needed.
            self._bytes += status.st_blocks * _BLOCK // (1 if is_directory else max(1, status.st_nlink))
            if is_directory:
                self._descend(_entered(name, here.fd))
        except PermissionError:
            self._unread += 1
        except OSError as error:
            if error.errno not in _REPLACED:
                raise

    def _descend(self, below: "_Directory") -> None:
        if below.device != self._device:
            below.close()
            return
        self._near.append(below)
        if len(self._near) > _NEAREST:
            far = self._near.popleft()
            self._inodes.append(far.inode)
            self._places.append(far.place)
            far.close()

    def _ascend(self) -> None:
        here = self._near.pop()
        try:
            if self._near or not self._inodes:
                return
            above = _entered(b"..", here.fd)
            if (above.device, above.inode) != (self._device, self._inodes.pop()):
                above.close()
                self._unread += 1  # the directory was moved, so the rest of its parent cannot be counted
                return
            above.go_to(self._places.pop())
            self._near.append(above)
        except (PermissionError, FileNotFoundError):
            self._unread += 1
        finally:
            here.close()


class _Directory:
    """An open directory of the tree, and the position of the next entry."""

    __slots__ = ("_content", "_mode", "_start", "device", "fd", "inode", "place")

    def __init__(self, fd: int, mode: int | None = None) -> None:
        """Take ownership of `fd`. `mode` is restored on close, if the directory was made listable."""
        status = os.fstat(fd)
        self.fd = fd
        self.device, self.inode = status.st_dev, status.st_ino
        self.place = 0
        self._mode = mode
        self._content, self._start = b"", 0

    def next(self) -> bytes | None:
        """The next name; None at the end."""
        while True:
            if self._start == len(self._content):
                self._content, self._start = _listing(self.fd), 0
                if not self._content:
                    return None
            _, self.place, length, _ = _ENTRY.unpack_from(self._content, self._start)
            end = self._start + length
            name = self._content[self._start + _ENTRY.size : end].partition(b"\0")[0]
            self._start = end
            if name not in (b".", b".."):
                return name

    def go_to(self, place: int) -> None:
        """Go to a position, which stays valid after the descriptor was closed and whatever entries changed."""
        os.lseek(self.fd, place, os.SEEK_SET)

    def close(self) -> None:
        if self._mode is not None and stat.S_IMODE(os.fstat(self.fd).st_mode) == self._mode | _LISTABLE:
            os.fchmod(self.fd, self._mode)
        os.close(self.fd)


def _entered(name: bytes, directory: int) -> _Directory:
    """Open a directory, and make it listable if needed.

    Threat: a box hides files behind `chmod 000`, which also holds against us if Hutch is not root.
    """
    try:
        fd = os.open(name, _ENTER, dir_fd=directory)
    except PermissionError:
        fd = -1
    if fd >= 0 and (os.geteuid() == 0 or os.fstat(fd).st_mode & _LISTABLE == _LISTABLE):
        return _Directory(fd)
    if fd >= 0:
        os.close(fd)
    found = os.open(name, _NAME, dir_fd=directory)
    try:
        mode = stat.S_IMODE(os.fstat(found).st_mode)
        os.chmod(f"/proc/self/fd/{found}", mode | _LISTABLE)
        return _Directory(os.open(".", _ENTER, dir_fd=found), mode)
    finally:
        os.close(found)


def _listing(directory: int) -> bytes:
    """The next entries in the kernel's format; empty at the end."""
    buffer = ctypes.create_string_buffer(_BUFFER)
    size = _getdents64(directory, buffer, _BUFFER)
    if size >= 0:
        return buffer.raw[:size]
    number = ctypes.get_errno()
    if number == errno.ENOENT:
        return b""  # the directory was removed since it was opened
    raise OSError(number, os.strerror(number), "getdents64")


def unlinked_bytes(pids: Iterable[int], devices: Set[int] | None = None) -> int:
    """Count files that lost their last name while one of these processes holds them open, in bytes.

    Without `devices` they are files of the box's own disk, else those on one of these devices.

    Threat: a box opens a file, removes it and fills it, and no walk through its tree finds it. A file that is only
    mapped, or on its way through a socket, is not seen.
    """
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            memory = _in_memory(pid)
            for name in os.listdir(f"/proc/{pid}/fd"):
                status = _status(f"/proc/{pid}/fd/{name}")
                if status is None or status.st_nlink or not stat.S_ISREG(status.st_mode):
                    continue
                # An overlay's device has no major number; one that has is a mount of the machine's, not the box's disk.
                own = os.major(status.st_dev) == 0 and status.st_dev not in memory
                if own if devices is None else status.st_dev in devices:
                    found[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is a guest, which is closed to an ordinary user and holds nothing of the kind
    return sum(found.values())


def _in_memory(pid: int) -> set[int]:
    """Devices of files that are memory: those of memfd_create(2), and the box's /dev/shm."""
    memfd = os.memfd_create("device")
    try:
        devices = {os.fstat(memfd).st_dev}
    finally:
        os.close(memfd)
    shared = _status(f"/proc/{pid}/root/dev/shm")
    return devices | {shared.st_dev} if shared else devices


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None  # closed meanwhile
