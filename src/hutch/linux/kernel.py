"""Wrappers of system calls that Python does not offer: mounts, namespaces, capabilities, seccomp.

Every wrapper raises OSError with the name of the call, so that a message can say which step the kernel refused.
Standard library only: this runs in the spawner and in the fork that becomes a guest.
"""

import ctypes
import os
from collections.abc import Iterable
from ctypes import (
    PyDLL,
    Structure,
    byref,
    c_long,
    c_uint64,
    c_void_p,
    get_errno,
    memset,
    sizeof,
)
from struct import Struct, pack
from typing import Any

from hutch.linux.syscall_numbers import NUMBERS

# PyDLL keeps the interpreter's lock during a call: none of these waits long, and a clone must not happen between
# releasing the lock and taking it again.
raw_syscall = PyDLL(None, use_errno=True).syscall
"""Takes a number and six arguments; after an answer of -1, `last_error` has the reason."""
raw_syscall.restype = c_long
raw_syscall.argtypes = (c_long, *(c_void_p,) * 6)  # takes integers of 64 bit, bytes, structures and None
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child

MACHINE = os.uname().machine

# clone(2), unshare(2)
CLONE_PARENT = 0x00008000
CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_INTO_CGROUP = 0x200000000
SIGCHLD = 17

# mount(2), umount2(2)
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

# open_tree(2), move_mount(2), mount_setattr(2)
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_IDMAP = 0x100000

# openat2(2)
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10

# prctl(2)
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_GET_NAME = 16
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

NR: dict[str, int] = NUMBERS.get(MACHINE, {})

Call = tuple[Any, ...]
"""A prepared system call: its name and its arguments."""

CString = str | bytes | None
_NONE = (None,) * 6
_MOUNT_ATTRIBUTES = Struct("=QQQQ")
_OPEN_HOW = Struct("=QQQ")
_CAPABILITY_HEADER = pack("=Ii", 0x20080522, 0)  # version 3; the calling thread
_CAPABILITIES = Struct("=IIIIII")


def _bytes(text: CString) -> bytes | None:
    return os.fsencode(text) if text is not None else None


def last_error(what: str) -> OSError:
    """The kernel's reason why the last raw call answered -1."""
    number = get_errno()
    return OSError(number, os.strerror(number), what)


def mount_attributes(add: int = 0, remove: int = 0, propagation: int = 0, userns: int = 0) -> bytes:
    """struct mount_attr of mount_setattr(2)."""
    return _MOUNT_ATTRIBUTES.pack(add, remove, propagation, userns)


def syscall(name: str, *args: object) -> int:
    """Make the system call `name`; integers are passed as 64 bit, bytes and ctypes objects as pointers."""
    result: int = raw_syscall(NR[name], *args, *_NONE[len(args) :])
    if result < 0:
        raise last_error(name)
    return result


def run_calls(calls: Iterable[Call]) -> None:
    """Make the calls one after the other, and stop at the first that is refused."""
    for name, *args in calls:
        syscall(name, *args)


def prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    return syscall("prctl", option, a, b, c, d)


def unshare(flags: int) -> None:
    syscall("unshare", flags)


def setns(fd: int, kind: int = 0) -> None:
    syscall("setns", fd, kind)


def mount(source: CString, target: CString, kind: CString = None, flags: int = 0, data: CString = None) -> None:
    try:
        syscall("mount", _bytes(source), _bytes(target), _bytes(kind), flags, _bytes(data))
    except OSError as error:
        error.filename = f"mount {os.fsdecode(target or b'')}"
        raise


def open_tree(directory: int, path: CString, flags: int) -> int:
    """A detached copy (OPEN_TREE_CLONE) of the mount at `path`; with AT_RECURSIVE also of what is mounted below."""
    try:
        return syscall("open_tree", directory, _bytes(path), flags | OPEN_TREE_CLOEXEC)
    except OSError as error:
        error.filename = f"open_tree {os.fsdecode(path or b'')}"
        raise


def move_mount(mount_fd: int, directory: int, path: CString) -> None:
    """Attach the detached mount `mount_fd` at `path`; an empty path means the directory itself."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if path else MOVE_MOUNT_T_EMPTY_PATH)
    syscall("move_mount", mount_fd, b"", directory, _bytes(path or b""), flags)


def mount_setattr(
    directory: int, path: CString, flags: int, *, add: int = 0, remove: int = 0, propagation: int = 0, userns: int = 0
) -> None:
    """Change a mount; an empty path with AT_EMPTY_PATH means the mount of the descriptor `directory`."""
    attributes = mount_attributes(add, remove, propagation, userns)
    syscall("mount_setattr", directory, _bytes(path), flags, attributes, len(attributes))


def openat2(directory: int, path: CString, flags: int, resolve: int, mode: int = 0) -> int:
    """Open a path with restrictions on how it is resolved (openat2(2)). The descriptor is close-on-exec."""
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    try:
        return syscall("openat2", directory, _bytes(path), how, len(how))
    except OSError as error:
        error.filename = os.fsdecode(path or b"")
        raise


class _CloneArguments(Structure):
    _fields_ = tuple(
        (name, c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls",
                     "set_tid", "set_tid_size", "cgroup")
    )  # fmt: skip


def clone(flags: int, cgroup: int | None = None) -> int:
    """Fork into new namespaces, and into the v2 group of the descriptor `cgroup`. Returns 0 in the child, else its pid.

    The raw call does not refresh glibc's cached thread id, which nothing in a single-threaded Python uses. The caller
    must be single-threaded: locks of other threads would stay taken in the child for ever.
    """
    _before_fork()
    if cgroup is None:
        pid = int(raw_syscall(NR["clone"], flags | SIGCHLD, *_NONE[1:]))
    else:
        # With CLONE_PARENT the child gets its creator's exit signal, and clone3 refuses any other (kernel 5.9).
        exit_signal = 0 if flags & CLONE_PARENT else SIGCHLD
        arguments = _CloneArguments(flags=flags | CLONE_INTO_CGROUP, exit_signal=exit_signal, cgroup=cgroup)
        pid = int(raw_syscall(NR["clone3"], byref(arguments), sizeof(arguments), *_NONE[2:]))
    if pid == 0:
        _after_fork_child()
        return 0
    number = get_errno()
    _after_fork_parent()
    if pid < 0:
        raise OSError(number, os.strerror(number), "clone")
    return pid


class CommandLine:
    """Replaces what ps and /proc/<pid>/cmdline show, because a box must not read the host's paths there."""

    def __init__(self) -> None:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        # proc(5): arg_start to env_end are fields 48 to 51; the list starts with field 3.
        self._start, _, _, end = (int(fields[number - 3]) for number in (48, 49, 50, 51))
        self._length = end - self._start

    def show(self, name: str) -> None:
        """Overwrite arguments and environment, and set the name of the thread."""
        memset(self._start, 0, self._length)
        run_calls(self.show_calls(name))

    def show_calls(self, name: str) -> list[Call]:
        """The calls that do the same in a child of a process that has called `show`.

        The kernel itself writes the thread's name to the address of the arguments (PR_GET_NAME).
        """
        return [("prctl", PR_SET_NAME, name.encode()), ("prctl", PR_GET_NAME, self._start)]


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor from 3 on that is not in `kept`."""
    first = 3
    for fd in sorted(set(kept)):
        if fd > first:
            close_from(first, fd - 1)
        first = max(first, fd + 1)
    close_from(first)


def close_from(first: int, last: int = 0xFFFFFFFF) -> None:
    """Close every descriptor from `first` to `last`."""
    syscall("close_range", first, last, 0)


def capset_call(mask: int, inheritable: int = 0) -> Call:
    """The call that sets the effective and permitted capabilities to the 64-bit `mask` (capabilities(7))."""
    sets = (mask, mask, inheritable)
    low, high = ([part >> shift & 0xFFFFFFFF for part in sets] for shift in (0, 32))
    return "capset", _CAPABILITY_HEADER, _CAPABILITIES.pack(*low, *high)
