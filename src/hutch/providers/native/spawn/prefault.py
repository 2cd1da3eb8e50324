"""Prefaulting: while it waits, a prestarted child copies each page of memory that every box writes to.

A box shares its zygote's pages until it writes to them, and each copy takes the kernel some 3 µs. The copies of a
child's last steps and of a first command take a millisecond together, which no order has to wait for. The zygote
learns which pages these are from a fork of itself that runs a warm-up; the workers for layers note them when they have
done their work, for the next ones. Standard library only.
"""

from collections.abc import Callable
from mmap import PAGESIZE, mmap
from os import O_CLOEXEC, _exit, close, fork, preadv, waitpid
from os import open as open_file

from hutch.linux.kernel import NR, raw_syscall

_MADVISE = NR.get("madvise", -1)
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; before that the call is refused, and pages are copied when written to
_ENTRY = 8
_PRESENT, _SHARED, _EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56
"""Bits of an entry of /proc/self/pagemap: in memory; of a file or of shared memory; mapped by no other process."""

Area = tuple[int, int]
"""The first address of an area of memory, and the first after it."""


class PageRanges:
    """The addresses of the pages. They are not on the heap, where they would take space from what children allocate.

    A process shares this memory with its forks. The first number says how many follow.
    """

    def __init__(self) -> None:
        self._table = memoryview(mmap(-1, 1 << 16)).cast("Q")

    @property
    def known(self) -> bool:
        return self._table[0] > 0

    def add(self, page: int) -> None:
        table, used = self._table, self._table[0]
        if used and table[used - 1] + table[used] == page:
            table[used] += PAGESIZE
        elif used + 2 < len(table):
            table[used + 1], table[used + 2] = page, PAGESIZE
            table[0] = used + 2

    def prefault(self) -> None:
        for number in range(1, self._table[0], 2):
            address, length = self._table[number : number + 2]
            raw_syscall(_MADVISE, address, length, _MADV_POPULATE_WRITE, None, None, None)

    def note(self, maps: int, pagemap: int) -> None:
        """Have them be the pages that this fork has to itself, by its opened /proc/self/maps and pagemap."""
        areas = _writable_areas(maps)
        seen = mmap(-1, _seen_size(areas))
        _read_pagemap(areas, pagemap, memoryview(seen))
        self._table[0] = 0
        self._add_seen(areas, seen)

    def _add_seen(self, areas: list[Area], seen: mmap) -> None:
        entries = memoryview(seen).cast("Q")
        number = 0
        for start, end in areas:
            for page in range(start, end, PAGESIZE):
                if entries[number] & (_PRESENT | _SHARED | _EXCLUSIVE) == _PRESENT | _EXCLUSIVE:
                    self.add(page)
                number += 1


_page_ranges = PageRanges()


def prefault_pages() -> None:
    """Copy the pages, in a child. Where the kernel refuses, they are copied later, when they are written to."""
    _page_ranges.prefault()


def learn_pages(perform: Callable[[], object], ranges: PageRanges = _page_ranges) -> None:
    """Note the pages that `perform` writes to. The zygote calls this last, after all else that writes to its memory."""
    areas = _writable_areas(open_file("/proc/self/maps", O_CLOEXEC))
    # This memory is shared with the fork, so that the fork writes to little else than `perform` does.
    seen = mmap(-1, _seen_size(areas))
    pid = fork()
    if pid == 0:
        try:
            perform()
            _read_pagemap(areas, open_file("/proc/self/pagemap", O_CLOEXEC), memoryview(seen))
        finally:
            _exit(0)
    waitpid(pid, 0)
    ranges._add_seen(areas, seen)


def _seen_size(areas: list[Area]) -> int:
    return sum(end - start for start, end in areas) // PAGESIZE * _ENTRY


def _writable_areas(fd: int) -> list[Area]:
    with open(fd) as maps:
        private = [line.split()[0].split("-") for line in maps if line.split()[1] == "rw-p"]
    return [(int(start, 16), int(end, 16)) for start, end in private]


def _read_pagemap(areas: list[Area], pagemap: int, into: memoryview) -> None:
    place = 0
    for start, end in areas:
        size = (end - start) // PAGESIZE * _ENTRY
        preadv(pagemap, [into[place : place + size]], start // PAGESIZE * _ENTRY)
        place += size
    close(pagemap)
