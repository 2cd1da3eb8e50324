"""The memory map of a process: its areas, and which of their pages are its own (/proc/pid/maps, pagemap).

Standard library only: this runs in a fork of a template.
"""

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from hutch.linux.kernel import NR, raw_syscall

PAGE = os.sysconf("SC_PAGE_SIZE")
MAX_AREAS = 20_000
"""A process with more of them is refused: each may cost a system call."""
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) (\S+) (\d+) *(.*)")
_FILE_PAGE = 0x20
_PRESENT = 0xC0
"""Bits 63 and 62 in the highest byte of an entry of pagemap: the page is in memory, or in swap. Bit 61: it belongs to a
file, or is shared."""
_OWN = bytes(1 if value & _PRESENT and not value & _FILE_PAGE else 0 for value in range(256))
_ANY = bytes(1 if value & _PRESENT else 0 for value in range(256))
_HEAD = 1 << 20
_HUGE_PAGE = 1 << 21
_MADV_COLLAPSE = 25  # Since Linux 6.1.


class Area(NamedTuple):
    """A mapping, or a part of one."""

    start: int
    end: int
    mode: str
    """As `rw-p`: the protection, and whether it is private or shared."""
    offset: int
    file: str
    """Device and inode; "00:00 0" if no file is mapped."""
    name: str

    @property
    def anonymous(self) -> bool:
        return self.file == "00:00 0"

    @property
    def shared(self) -> bool:
        return self.mode[3] == "s"

    @property
    def special(self) -> bool:
        """Whether the kernel itself has mapped it: the vDSO and its data."""
        return self.name.startswith(("[vdso]", "[vvar", "[vsyscall]", "[uprobes]"))

    @property
    def protection(self) -> int:
        """PROT_READ, PROT_WRITE and PROT_EXEC."""
        return sum(bit for bit, letter in zip((1, 2, 4), self.mode, strict=False) if letter != "-")

    def part(self, start: int, end: int) -> "Area":
        offset = 0 if self.anonymous else self.offset + start - self.start
        return self._replace(start=start, end=end, offset=offset)

    def same_content(self, other: "Area") -> bool:
        """Whether both map the same thing, in parts that start at the same address."""
        return (self.offset, self.file, self.shared, self.special) == (
            other.offset, other.file, other.shared, other.special
        ) and (not self.special or self.name == other.name)  # fmt: skip


def areas(pid: int) -> list[Area]:
    """Return the areas of a process by their addresses."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            matched = _LINE.match(line)
            if matched is None:
                raise ValueError("the memory map of a process cannot be read")
            start, end, mode, offset, device, inode, name = matched.groups()
            area = Area(int(start, 16), int(end, 16), mode, int(offset, 16), f"{device} {inode}", name)
            found.append(area if not area.anonymous else area._replace(offset=0))
            if len(found) > MAX_AREAS:
                raise ValueError(f"the process has more than {MAX_AREAS} memory areas")
    return found


def pages(pagemap: int, start: int, end: int, *, own: bool) -> bytes:
    """Return a byte for each page, 1 if it is there; with `own`, only if it is a private page without a file."""
    parts = []
    for position in range(start // PAGE * 8, end // PAGE * 8, _HEAD):
        entries = os.pread(pagemap, min(_HEAD, end // PAGE * 8 - position), position)
        parts.append(entries[7::8].translate(_OWN if own else _ANY))
    return b"".join(parts)


def overlaps(ours: list[Area], theirs: list[Area]) -> Iterator[tuple[int, int, Area | None, Area | None]]:
    """Cut both maps at the borders of either, and yield each stretch that at least one of them has."""
    borders = sorted({border for area in (*ours, *theirs) for border in (area.start, area.end)})
    first, second = iter(ours), iter(theirs)
    one, two = next(first, None), next(second, None)
    for start, end in pairwise(borders):
        while one is not None and one.end <= start:
            one = next(first, None)
        while two is not None and two.end <= start:
            two = next(second, None)
        here = one.part(start, end) if one is not None and one.start <= start else None
        there = two.part(start, end) if two is not None and two.start <= start else None
        if here is not None or there is not None:
            yield start, end, here, there


def use_huge_pages() -> None:
    """Put this process's private memory into huge pages where the kernel can, so that a fork has less to copy.

    A fork that writes still copies single pages.
    """
    for area in areas(os.getpid()):
        if area.mode != "rw-p" or not area.anonymous or area.name == "[stack]":
            continue
        for start in range(-(-area.start // _HUGE_PAGE) * _HUGE_PAGE, area.end - _HUGE_PAGE + 1, _HUGE_PAGE):
            raw_syscall(NR["madvise"], start, _HUGE_PAGE, _MADV_COLLAPSE, None, None, None)
