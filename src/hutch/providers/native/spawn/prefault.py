"""Prefaulting: while it waits, a prestarted child copies each page of memory that every box writes to.

A box shares its zygote's pages until it writes to them, and each copy takes the kernel some 3 µs. The copies of a
child's last steps and of a first command take a millisecond together, which no order has to wait for. The zygote
learns which pages these are from a fork of itself that runs a warm-up. Standard library only.
"""

from collections.abc import Callable
from mmap import PAGESIZE, mmap
from os import O_CLOEXEC, O_RDONLY, _exit, close, fork, preadv, waitpid
from os import open as open_file

from hutch.linux.kernel import NR, raw_syscall

_MADVISE = NR.get("madvise", -1)
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; before that the call is refused, and pages are copied when written to
_ENTRY = 8
_PRESENT, _SHARED, _EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56
"""Bits of an entry of /proc/self/pagemap: in memory; of a file or of shared memory; mapped by no other process."""

Area = tuple[int, int]
"""The first address of an area of memory, and the first after it."""


class _PageRanges:
    """The addresses of the pages. They are not on the heap, where they would take space from what children allocate."""

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

    def prefault(self) -> None:
        for number in range(0, self._count, 2):
            address, length = self._table[number : number + 2]
            raw_syscall(_MADVISE, address, length, _MADV_POPULATE_WRITE, None, None, None)


_page_ranges = _PageRanges()


def prefault_pages() -> None:
    """Copy the pages, in a child. Where the kernel refuses, they are copied later, when they are written to."""
    _page_ranges.prefault()


def learn_pages(perform: Callable[[], object]) -> None:
    """Note the pages that `perform` writes to. The zygote calls this last, after all else that writes to its memory."""
    areas = _writable_areas()
    # This memory is shared with the fork, so that the fork writes to little else than `perform` does.
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
                _page_ranges.add(page)
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
