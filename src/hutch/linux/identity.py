"""Who a box's processes are: ranges of host ids, the maps of its user namespace, and giving up every privilege.

As root each box has 65,536 host ids that no other box on the machine has; otherwise the box's ordinary user is the one
who runs Hutch, and there is no second id. Standard library only: this runs in the spawner and in its children.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from hutch.linux import kernel, processes
from hutch.linux.kernel import NR, PR_CAPBSET_DROP, PR_SET_DUMPABLE, Call, raw_syscall, refused, setting_capabilities

USER = 1000
"""The box's ordinary user, inside."""
RANGE = 65536
FIRST = 0x10000000
"""Where the ranges begin: above what distributions hand out in /etc/subuid, below what a signed number can hold."""
BLOCK = 64
"""Ranges that a spawner claims at once."""
BLOCKS = (0x7FFF0000 - FIRST) // RANGE // BLOCK
SLOTS = BLOCKS * BLOCK
SLOT_DIRECTORY = "/run/hutch/ids"
"""One for the machine, whatever the state directory: two keepers must never share a range."""

CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID = 0, 1, 3, 4, 5, 6, 7
CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN = 12, 19, 21
ROOT_KEEPS = frozenset({CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID})
"""What the box's own root may do, in the box's namespaces only."""

_YOUNG = 10.0
_SETRESUID, _CAPSET = NR.get("setresuid", -1), NR.get("capset", -1)


def last_capability() -> int:
    with open("/proc/sys/kernel/cap_last_cap") as file:
        return int(file.read())


def can_map_ranges() -> bool:
    """Whether this process may give boxes id ranges: privileged, and the ranges are mapped where it runs itself."""
    if os.geteuid() != 0 or not holds(CAP_SETUID, CAP_SETGID, CAP_SYS_ADMIN, CAP_CHOWN):
        return False
    return _covers("/proc/self/uid_map") and _covers("/proc/self/gid_map")


def can_let_boxes_own_themselves() -> bool:
    """Whether this process has by capability what it would otherwise have as the owner of a box's user namespace.

    Root of a container may have few of them. Its boxes then belong to root, and are charged to root's accounts.
    """
    return holds(CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_NET_ADMIN, CAP_KILL, CAP_DAC_OVERRIDE, CAP_FOWNER)


def holds(*capabilities: int) -> bool:
    """Whether this process has all of them in effect."""
    held = held_capabilities()
    return all(held >> capability & 1 for capability in capabilities)


def held_capabilities() -> int:
    """Those that this process has in effect, as a mask."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))


def _covers(path: str) -> bool:
    """Whether one line of the map holds every range; in a container's own user namespace it may not."""
    with open(path) as file:
        lines = [tuple(map(int, line.split())) for line in file]
    return any(first <= FIRST and first + length >= FIRST + SLOTS * RANGE for first, _, length in lines)


class Maps(NamedTuple):
    """What is written to /proc/<pid>/{uid,gid}_map of a new box."""

    uid: str
    gid: str
    forbid_setgroups: bool

    def write(self, pid: int) -> None:
        if self.forbid_setgroups:
            # Without CAP_SETGID outside the kernel takes a gid map only after this (user_namespaces(7)).
            _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/uid_map", self.uid)
        _write(f"/proc/{pid}/gid_map", self.gid)


def range_maps(slot: int) -> Maps:
    line = f"0 {base(slot)} {RANGE}"
    return Maps(line, line, forbid_setgroups=False)


def single_maps(inside: int = USER) -> Maps:
    """Inside, the caller is the ordinary user, never root: then every execve drops all capabilities by itself."""
    return Maps(f"{inside} {os.geteuid()} 1", f"{inside} {os.getegid()} 1", forbid_setgroups=True)


@contextlib.contextmanager
def owner_namespace(facts: os.stat_result, slot: int) -> Iterator[int]:
    """A user namespace in which the owner of a file of the host is the box's user: for an idmapped mount of it.

    Files of that owner are then the box user's own, in both directions; everybody else's show as nobody's.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = kernel.clone(kernel.CLONE_NEWUSER)
    except BaseException:
        os.close(writer)
        os.close(reader)
        raise
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # a namespace lives as long as somebody is in it or holds it
        os._exit(0)
    os.close(reader)
    try:
        inside = base(slot) + USER
        Maps(f"{facts.st_uid} {inside} 1", f"{facts.st_gid} {inside} 1", forbid_setgroups=False).write(pid)
        userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writer)
        os.waitpid(pid, 0)
    try:
        yield userns
    finally:
        os.close(userns)


def base(slot: int) -> int:
    return FIRST + slot * RANGE


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


class Slots:
    """The ranges of one spawner's boxes: claimed for it in blocks, and handed on when a box is buried.

    A file for each block names the spawner. Its boxes outlive it, so a block is free again only when its spawner is
    gone and no process has ids of it: nothing leaks with a crash, and the kernel says what is in use.
    """

    def __init__(self, directory: str = SLOT_DIRECTORY) -> None:
        self._directory = directory
        os.makedirs(directory, 0o700, exist_ok=True)
        pid = os.getpid()
        self._owner = processes.Identity(pid, processes.start_time(pid) or 0, processes.boot_id())
        # A start of its own for each spawner, so that two of them rarely meet.
        self._numbers = itertools.count(int.from_bytes(os.urandom(4)) % BLOCKS)
        self._free: dict[int, list[int]] = {}
        """By block: the slots of it that no box has."""

    def take(self) -> int:
        block = next((block for block, free in self._free.items() if free), None)
        return self._free[self._claim() if block is None else block].pop()

    def give_back(self, slot: int) -> None:
        """Its box's first process has been reaped, and with it everybody in the box."""
        self._free[slot // BLOCK].append(slot)

    def close(self) -> None:
        """Blocks in which boxes live on stay claimed."""
        for block, free in self._free.items():
            if len(free) == BLOCK:
                with contextlib.suppress(FileNotFoundError):  # whoever cleared the directory did it for us
                    os.unlink(self._path(block))

    def _claim(self) -> int:
        for _ in range(BLOCKS):
            block = next(self._numbers) % BLOCKS
            if self._try(block) or (self._release_if_stale(block) and self._try(block)):
                self._free[block] = list(range(block * BLOCK, (block + 1) * BLOCK))
                return block
        raise OSError(errno.ENOSPC, f"all {SLOTS} id ranges are in use", self._directory)

    def _path(self, block: int) -> str:
        return f"{self._directory}/{block}"

    def _try(self, block: int) -> bool:
        try:
            fd = os.open(self._path(block), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        try:
            os.write(fd, str(self._owner).encode())
        finally:
            os.close(fd)
        return True

    def _release_if_stale(self, block: int) -> bool:
        """Under a lock: of two spawners that find the same dead owner, the second must not free the first's claim."""
        path = self._path(block)
        with open(f"{self._directory}/lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                if time.time() - os.stat(path).st_mtime < _YOUNG:
                    return False  # perhaps not written to yet
                with open(path) as file:
                    owner = processes.Identity.parse(file.read())
                if (owner is not None and owner.alive()) or _inhabited(block):
                    return False
                os.unlink(path)
            except FileNotFoundError:
                pass
        return True


def _inhabited(block: int) -> bool:
    """Whether a process is in a user namespace that maps ids of the block, whoever it is there at the moment."""
    first, last = base(block * BLOCK), base((block + 1) * BLOCK)
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/uid_map") as file:
                if any(first <= int(line.split()[1]) < last for line in file):
                    return True
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return False


class Actor:
    """Root that does a thing as another user, to whom it is then charged.

    With the effective id the kernel takes the effective capabilities away. They are taken back: some distributions
    refuse user namespaces to a process without CAP_SYS_ADMIN, and control groups belong to root.
    """

    def __init__(self) -> None:
        _, self._header, self._capabilities = setting_capabilities(held_capabilities())

    def become(self, user: int) -> None:
        _check(raw_syscall(_SETRESUID, -1, user, -1, None, None, None))
        _check(raw_syscall(_CAPSET, self._header, self._capabilities, None, None, None, None))

    def return_to_root(self) -> None:
        """The capabilities come back with it."""
        _check(raw_syscall(_SETRESUID, -1, 0, -1, None, None, None))


def _check(answer: int) -> None:
    if answer:
        raise refused("act as another user")


def becoming_root() -> list[Call]:
    """For a process with the ids of nobody in the box, once these are mapped."""
    # Changing ids clears the flag, and without it our own /proc files belong to nobody.
    return [*_taking(0), ("prctl", PR_SET_DUMPABLE, 1)]


def dropping_bounding_set(last: int, kept: frozenset[int] = frozenset()) -> list[Call]:
    return [("prctl", PR_CAPBSET_DROP, number) for number in range(last + 1) if number not in kept]


def becoming(user: int, *, ranged: bool, kept: frozenset[int] = frozenset()) -> list[Call]:
    """Become this user of the box and its group, for good, with no capability but `kept`."""
    mask = sum(1 << capability for capability in kept)
    return [*(_taking(user) if ranged else ()), setting_capabilities(mask)]


def _taking(user: int) -> list[Call]:
    return [("setgroups", 0, None), *((name, user, user, user) for name in ("setresgid", "setresuid"))]
