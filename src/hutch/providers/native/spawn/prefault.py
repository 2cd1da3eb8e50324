"""What a stem does while it waits: it gets its own copy of each page of memory that every box writes to.

A box shares its zygote's pages until it writes to them, and each copy takes the kernel some 3 µs. Those of a birth and
of a first command are a millisecond together, which nobody need wait for. Which pages these are the zygote learns from
a fork of itself that rehearses. Standard library only.
"""

from collections.abc import Callable
from mmap import PAGESIZE, mmap
from os import O_CLOEXEC, O_RDONLY, _exit, close, fork, preadv, waitpid
from os import open as open_file

from hutch.linux.kernel import NR, raw_syscall

_MADVISE = NR.get("madvise", -1)
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; before that the call is refused, and boxes copy their pages themselves
_ENTRY = 8
_PRESENT, _SHARED, _EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56
"""Of an entry of /proc/self/pagemap: in memory; of a file, or of memory that is shared; nobody else has it mapped."""

Area = tuple[int, int]
"""Of memory: where it begins, and where it ends."""


class _Runs:
    """Where the pages lie. Not on the heap, on which it would take the place of what children put there."""

    def __init__(self) -> None:
        self._table = memoryview(mmap(-1, 1 << 16)).cast("Q")
        self._count = 0

    def add(self, page: int) -> None:
        table, count = self._table, self._count
        if count and table[count - 2] + table[count - 1] == page:
            table[count - 1] += PAGESIZE
        elif count < len(table):
            table[count], table[count + 1] = page, PAGESIZE
            self._count += 2

    def touch(self) -> None:
        for number in range(0, self._count, 2):
            address, length = self._table[number : number + 2]
            raw_syscall(_MADVISE, address, length, _MADV_POPULATE_WRITE, None, None, None)


_runs = _Runs()


def touch() -> None:
    """In a child. Where the kernel refuses, or a run is not there, nothing is lost but time."""
    _runs.touch()


def learn(perform: Callable[[], object]) -> None:
    """In the zygote, when all else is done that writes to its memory."""
    areas = _writable_areas()
    # Shared with the fork, which thereby has little to write to but what `perform` does.
    seen = mmap(-1, sum(end - start for start, end in areas) // PAGESIZE * _ENTRY)
    pid = fork()
    if pid == 0:
        try:
            perform()
            _read_pagemap(areas, memoryview(seen))
        finally:
            _exit(0)
    waitpid(pid, 0)
    entries = memoryview(seen).cast("Q")
    number = 0
    for start, end in areas:
        for page in range(start, end, PAGESIZE):
            if entries[number] & (_PRESENT | _SHARED | _EXCLUSIVE) == _PRESENT | _EXCLUSIVE:
                _runs.add(page)
            number += 1


def _writable_areas() -> list[Area]:
    with open("/proc/self/maps") as maps:
        private = [line.split()[0].split("-") for line in maps if line.split()[1] == "rw-p"]
    return [(int(start, 16), int(end, 16)) for start, end in private]


def _read_pagemap(areas: list[Area], into: memoryview) -> None:
    pagemap = open_file("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)
    place = 0
    for start, end in areas:
        size = (end - start) // PAGESIZE * _ENTRY
        preadv(pagemap, [into[place : place + size]], start // PAGESIZE * _ENTRY)
        place += size
    close(pagemap)
