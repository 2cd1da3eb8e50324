"""User and group ids of boxes: ranges of host ids, the maps of user namespaces, and dropping privileges.

As root, each box has 65,536 host ids that no other box on the machine has. Otherwise the box's ordinary user is the
user who runs Hutch, and there is no second id. Standard library only: this runs in the spawner and in its children.
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
from hutch.linux.kernel import NR, PR_CAPBSET_DROP, PR_SET_DUMPABLE, Call, capset_call, last_error, raw_syscall

USER = 1000
"""The id of the box's ordinary user inside the box."""
RANGE = 65536
STRIDE = RANGE + 1
"""From one range to the next. The kernel finds a user by the lowest bits of the id (`uid_hash`, kernel/user.c). If the
users of all boxes had the same lowest bits, each change of ids would compare those of every box."""
FIRST = 0x10000000
"""The ranges begin above what distributions hand out in /etc/subuid, and end below the largest signed number."""
BLOCK = 64
"""Number of ranges that a spawner claims at once."""
BLOCKS = (0x7FFF0000 - FIRST) // STRIDE // BLOCK
SLOTS = BLOCKS * BLOCK
SLOT_DIRECTORY = "/run/hutch/ids"
"""There is one for the machine, whatever the state directory, because two keepers must never share a range."""

CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID = 0, 1, 3, 4, 5, 6, 7
CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN = 12, 19, 21
ROOT_KEEPS = frozenset({CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID})
"""Capabilities of the box's own root, which hold in the box's namespaces only."""

_YOUNG = 10.0
_SETRESUID, _CAPSET = NR.get("setresuid", -1), NR.get("capset", -1)


def last_capability() -> int:
    with open("/proc/sys/kernel/cap_last_cap") as file:
        return int(file.read())


def can_map_ranges() -> bool:
    """Whether this process may give id ranges to boxes: it is privileged, and its own namespace maps the ranges."""
    if os.geteuid() != 0 or not holds(CAP_SETUID, CAP_SETGID, CAP_SYS_ADMIN, CAP_CHOWN):
        return False
    return _covers("/proc/self/uid_map") and _covers("/proc/self/gid_map")


def can_control_foreign_namespaces() -> bool:
    """Whether this process can handle a box whose user namespace belongs to another user.

    Root of a container may lack capabilities for that. Its boxes then belong to root, and are charged to root.
    """
    return holds(CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_NET_ADMIN, CAP_KILL, CAP_DAC_OVERRIDE, CAP_FOWNER)


def holds(*capabilities: int) -> bool:
    """Whether this process has all of them in effect."""
    held = held_capabilities()
    return all(held >> capability & 1 for capability in capabilities)


def held_capabilities() -> int:
    """The effective capabilities of this process, as a mask."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))


def _covers(path: str) -> bool:
    """Whether one line of the map covers every range. In a container's own user namespace it may not."""
    with open(path) as file:
        lines = [tuple(map(int, line.split())) for line in file]
    return any(first <= FIRST and first + length >= FIRST + SLOTS * STRIDE for first, _, length in lines)


class Maps(NamedTuple):
    """The content of /proc/<pid>/{uid,gid}_map of a new box."""

    uid: str
    gid: str
    forbid_setgroups: bool

    def write(self, pid: int) -> None:
        if self.forbid_setgroups:
            # Without CAP_SETGID outside, the kernel accepts a gid map only after this (user_namespaces(7)).
            _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/uid_map", self.uid)
        _write(f"/proc/{pid}/gid_map", self.gid)


def range_maps(slot: int) -> Maps:
    line = f"0 {base(slot)} {RANGE}"
    return Maps(line, line, forbid_setgroups=False)


def single_maps(inside: int = USER) -> Maps:
    """Map the caller to the box's ordinary user. It is never root inside, so every execve drops all capabilities."""
    return Maps(f"{inside} {os.geteuid()} 1", f"{inside} {os.getegid()} 1", forbid_setgroups=True)


@contextlib.contextmanager
def owner_namespace(facts: os.stat_result, slot: int) -> Iterator[int]:
    """A user namespace for an idmapped mount, in which the owner of a host file is the box's user.

    Files of that owner are then the box user's own, in both directions. Files of all others show as nobody's.
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
        os.read(reader, 1)  # a namespace exists while a process is in it or holds a descriptor of it
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
    return FIRST + slot * STRIDE


def inner_id(number: int) -> int:
    """Return the id inside the box for an owner that its files have outside.

    Through an idmapped mount the outside shows the ids of the box, which lie below all ranges.
    """
    return (number - FIRST) % STRIDE if number >= FIRST else number


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


class IdRanges:
    """The id ranges of one spawner's boxes, claimed in blocks and reused when a box has ended.

    A file for each block names the spawner. Boxes outlive their spawner, so a block is free again only when its spawner
    is gone and no process has ids of it. So a crash leaks nothing, and the kernel says what is in use.
    """

    def __init__(self, directory: str = SLOT_DIRECTORY) -> None:
        self._directory = directory
        # Its parent is a run directory, which a keeper may use later: `makedirs` alone would let others look into it.
        os.makedirs(os.path.dirname(directory), 0o700, exist_ok=True)
        os.makedirs(directory, 0o700, exist_ok=True)
        pid = os.getpid()
        self._owner = processes.Identity(pid, processes.start_time(pid) or 0, processes.boot_id())
        # Each spawner starts at a random block, so that two of them rarely try the same.
        self._numbers = itertools.count(int.from_bytes(os.urandom(4)) % BLOCKS)
        self._free: dict[int, list[int]] = {}
        """From a block to its slots that no box has."""

    def take(self) -> int:
        block = next((block for block, free in self._free.items() if free), None)
        return self._free[self._claim() if block is None else block].pop()

    def give_back(self, slot: int) -> None:
        """Make a slot free, once its box's first process has been reaped and with it every process of the box."""
        self._free[slot // BLOCK].append(slot)

    def close(self) -> None:
        """Release the blocks without boxes. Blocks in which boxes still run stay claimed."""
        for block, free in self._free.items():
            if len(free) == BLOCK:
                with contextlib.suppress(FileNotFoundError):  # somebody has cleared the directory
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
        """Remove a dead spawner's claim. A lock keeps a second spawner from removing the new claim of the first."""
        path = self._path(block)
        with open(f"{self._directory}/lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                if time.time() - os.stat(path).st_mtime < _YOUNG:
                    return False  # its content may not be written yet
                with open(path) as file:
                    owner = processes.Identity.parse(file.read())
                if (owner is not None and owner.alive()) or _in_use(block):
                    return False
                os.unlink(path)
            except FileNotFoundError:
                pass
        return True


def _in_use(block: int) -> bool:
    """Whether a process is in a user namespace that maps ids of the block, whatever its ids are at the moment."""
    first, last = base(block * BLOCK), base((block + 1) * BLOCK)
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/uid_map") as file:
                if any(first <= int(line.split()[1]) < last for line in file):
                    return True
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return False


class EffectiveUser:
    """Lets root act as another user, so that the kernel charges that user.

    When the effective id changes, the kernel clears the effective capabilities. They are set again, because some
    distributions refuse user namespaces to a process without CAP_SYS_ADMIN, and control groups belong to root.
    """

    def __init__(self) -> None:
        _, self._header, self._capabilities = capset_call(held_capabilities())

    def become(self, user: int) -> None:
        _check(raw_syscall(_SETRESUID, -1, user, -1, None, None, None))
        _check(raw_syscall(_CAPSET, self._header, self._capabilities, None, None, None, None))

    def return_to_root(self) -> None:
        """Become root again. The kernel restores the capabilities with the id."""
        _check(raw_syscall(_SETRESUID, -1, 0, -1, None, None, None))


def _check(answer: int) -> None:
    if answer:
        raise last_error("act as another user")


def become_root_calls() -> list[Call]:
    """The calls with which a new child becomes the box's root, once its ids are mapped."""
    # Changing ids clears the flag, and without it our own /proc files belong to nobody.
    return [*_set_ids_calls(0), ("prctl", PR_SET_DUMPABLE, 1)]


def drop_bounding_set_calls(last: int, kept: frozenset[int] = frozenset()) -> list[Call]:
    return [("prctl", PR_CAPBSET_DROP, number) for number in range(last + 1) if number not in kept]


def become_user_calls(user: int, *, has_id_ranges: bool, kept: frozenset[int] = frozenset()) -> list[Call]:
    """The calls that become this user of the box for good, with no capability but `kept`."""
    mask = sum(1 << capability for capability in kept)
    return [*(_set_ids_calls(user) if has_id_ranges else ()), capset_call(mask)]


def _set_ids_calls(user: int) -> list[Call]:
    return [("setgroups", 0, None), *((name, user, user, user) for name in ("setresgid", "setresuid"))]
