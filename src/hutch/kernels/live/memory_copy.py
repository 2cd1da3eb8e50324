"""Makes one stopped process continue as another: the same memory at the same addresses, the same registers.

What the memory holds is never interpreted here: it was written by code that nobody trusts, and goes to a process with
no more rights than the one it came from. Standard library only: the copier starts fast.
"""

import os
import re
import struct
from contextlib import closing
from ctypes import byref, c_size_t, c_uint64

from hutch.linux import kernel
from hutch.linux.address_space import PAGE, Area, areas, overlaps, pages
from hutch.linux.ptrace import Tracee

_CHUNK = 1 << 20
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_GROWSDOWN, _MAP_NORESERVE = 1, 2, 16, 32, 256, 16384
_MREMAP_MOVE = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
_MADV_DONTNEED = 4
_PR_SET_MM, _PR_SET_MM_MAP, _PR_GET_TID_ADDRESS = 35, 14, 40
_RSEQ_UNREGISTER = 1
_LAYOUT_FIELDS = (26, 27, 45, 46, 47, 28, 48, 49, 50, 51)
"""Fields of /proc/pid/stat in the order of struct prctl_mm_map: code, data, start of the heap, stack, arguments and
environment; `brk` comes after the fifth."""
_BOX_ROOT = "/m/"
"""Where a native box has its root below that of its mount namespace: how files of a box are named from outside."""
_SCRATCH_PAGES = 4
_LOWEST = 0x10000000
_UNUSED_STACK = 1024  # Beyond the 128 bytes below the pointer that functions may use without asking.


class MemoryCopy:
    """Copies `source` into `target`. Both are stopped; the source stays as it is."""

    def __init__(self, source: Tracee, target: Tracee) -> None:
        self._source = source
        self._target = target
        self._wanted = areas(source.pid)
        """What the source has mapped."""
        if not source.gate:
            source.find_gate(*_vdso(self._wanted))
        self._scratch = 0
        """Memory of the target that both have free: an instruction, and room for arguments."""
        self._whole: list[Area] = []
        """Areas without the file behind them, whose content is copied completely."""
        self.copied = 0
        """Bytes that were written."""

    def run(self) -> None:
        """Copy everything, and leave the target ready to be detached.

        Raises:
            OSError: A step was refused; the target is of no use any more.
        """
        source, target = self._source, self._target
        wanted = source.registers()
        target.find_gate(*_vdso(areas(target.pid)))
        self._make_scratch()
        self._move_rseq(target.rseq(), source.rseq(), leave=True)
        self._move_special_areas()
        self._set_layout()
        self._map_areas()
        self._fill()
        self._move_rseq(target.rseq(), source.rseq(), leave=False)
        self._set_thread()
        target.find_gate(*_vdso(areas(target.pid)))
        target.call("munmap", self._scratch, _SCRATCH_PAGES * PAGE)
        target.set_registers(wanted)
        target.set_extended_state(source.extended_state())
        target.set_signal_mask(source.signal_mask())

    # --- what the kernel keeps of a thread --------------------------------------------------------------------

    def _make_scratch(self) -> None:
        """Map a place for an instruction that stays while everything else is exchanged."""
        target, size = self._target, _SCRATCH_PAGES * PAGE
        free = _LOWEST
        for start, end, _, _ in overlaps(self._wanted, areas(target.pid)):
            if start - free >= 3 * size:
                break
            free = max(free, end)
        flags = _MAP_PRIVATE | _MAP_FIXED | _MAP_ANONYMOUS
        self._scratch = target.call("mmap", free + size, size, 3, flags, -1, 0)
        target.write(self._scratch, b"\x0f\x05")
        target.call("mprotect", self._scratch, PAGE, 5)
        target.gate = self._scratch

    @property
    def _arguments(self) -> int:
        return self._scratch + PAGE

    def _move_rseq(self, have: tuple[int, int, int], want: tuple[int, int, int], *, leave: bool) -> None:
        """Unregister the target's restartable sequences before their memory goes, and register them anew after."""
        if have == want:
            return
        address, size, signature = have if leave else want
        if address:
            self._target.call("rseq", address, size, _RSEQ_UNREGISTER if leave else 0, signature)

    def _set_thread(self) -> None:
        """Tell the kernel where the C library keeps its locks and the thread's id, and put the new id there."""
        target, address = self._target, self._thread_id_address()
        target.call("set_tid_address", address)
        head, size = c_uint64(), c_size_t()
        kernel.syscall("get_robust_list", self._source.pid, byref(head), byref(size))
        target.call("set_robust_list", head.value, size.value)
        target.write(address, struct.pack("<i", target.call("gettid")))

    def _thread_id_address(self) -> int:
        """Ask the kernel what the source has told it; the answer goes to unused memory below the source's stack."""
        source = self._source
        registers = source.registers()
        answer = (registers.rsp - _UNUSED_STACK) & ~15
        source.call("prctl", _PR_GET_TID_ADDRESS, answer, 0, 0, 0)
        source.set_registers(registers)
        address: int = struct.unpack("<Q", source.read(answer, 8))[0]
        return address

    # --- the shape of the memory ------------------------------------------------------------------------------

    def _move_special_areas(self) -> None:
        """Put the vDSO and its data where the source has them."""
        theirs = {area.name: area for area in self._wanted if area.special}
        for area in areas(self._target.pid):
            wanted = theirs.get(area.name)
            if area.special and wanted is not None and wanted.start != area.start:
                size = area.end - area.start
                self._target.call("mremap", area.start, size, size, _MREMAP_MOVE, wanted.start)

    def _set_layout(self) -> None:
        """Have the kernel know the same heap, stack and arguments."""
        theirs, ours = _layout(self._source.pid), _layout(self._target.pid)
        heap = [area.end for area in self._wanted if area.name == "[heap]"]
        end = max(heap, default=theirs[4])
        if theirs == ours:
            self._target.call("brk", end)
            return
        values = (*theirs[:5], end, *theirs[5:])
        self._target.write(self._arguments, struct.pack("<11QQII", *values, 0, 0, 0xFFFFFFFF))
        self._target.call("prctl", _PR_SET_MM, _PR_SET_MM_MAP, self._arguments, 104, 0)

    def _map_areas(self) -> None:
        """Give the target the source's areas, and take away what the source does not have."""
        target = self._target
        for start, end, wanted, present in overlaps(self._wanted, areas(target.pid)):
            if self._scratch <= start < self._scratch + _SCRATCH_PAGES * PAGE:
                continue
            if wanted is None:
                if present is not None and not present.special:
                    target.call("munmap", start, end - start)
            elif wanted.special:
                continue
            elif present is None or not wanted.same_content(present):
                self._map(wanted)
            elif wanted.mode != present.mode:
                target.call("mprotect", start, end - start, wanted.protection)

    def _map(self, area: Area) -> None:
        size = area.end - area.start
        kind = (_MAP_SHARED if area.shared else _MAP_PRIVATE | _MAP_NORESERVE) | _MAP_FIXED
        if not area.anonymous:
            file = self._open(area)
            if file is not None:
                self._target.call("mmap", area.start, size, area.protection, kind, file, area.offset)
                self._target.call("close", file)
                if area.shared or self._begins_alike(area):
                    return
            self._whole.append(area)
        if area.name == "[stack]":
            kind |= _MAP_GROWSDOWN
        self._target.call("mmap", area.start, size, area.protection, kind | _MAP_ANONYMOUS, -1, 0)

    def _open(self, area: Area) -> int | None:
        """Open the mapped file in the target's own box, with the target's rights; None if it cannot be."""
        name = area.name
        if name.endswith(" (deleted)") or not name.startswith("/"):
            return None
        path = os.fsencode(name.removeprefix(_BOX_ROOT[:-1]) if name.startswith(_BOX_ROOT) else name)
        path = path.replace(b"\\012", b"\n") + b"\0"
        if len(path) > 2 * PAGE:
            return None
        self._target.write(self._arguments, path)
        flags = os.O_RDWR if area.shared and area.mode[1] == "w" else os.O_RDONLY
        try:
            return self._target.call("openat", kernel.AT_FDCWD, self._arguments, flags | os.O_CLOEXEC, 0)
        except OSError:
            return None

    def _begins_alike(self, area: Area) -> bool:
        """Whether the file that was found holds the same first page, where the source has not changed it."""
        try:
            with closing(_Pagemap(self._source.pid)) as pagemap:
                changed = pages(pagemap.fd, area.start, area.start + PAGE, own=True) == b"\1"
            return changed or self._source.read(area.start, PAGE) == self._target.read(area.start, PAGE)
        except OSError:
            return False

    # --- the content ------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        for area in self._whole:
            self._copy_whole(area)
        with closing(_Pagemap(self._source.pid)) as theirs, closing(_Pagemap(self._target.pid)) as ours:
            for area in self._wanted:
                if not area.special and not area.shared:
                    self._copy_pages(area.start, area.end, theirs.fd, ours.fd)

    def _copy_whole(self, area: Area) -> None:
        for start in range(area.start, area.end, PAGE):
            try:
                self._write(start, self._source.read(start, PAGE))
            except OSError:
                continue  # A page behind the end of the file: whoever touches it gets SIGBUS there, and zeros here.

    def _copy_pages(self, start: int, end: int, theirs: int, ours: int) -> None:
        """Make the private pages of a stretch those of the source: 1 is the source's, 2 the target's, 3 both."""
        count = (end - start) // PAGE
        first = int.from_bytes(pages(theirs, start, end, own=True), "little")
        second = int.from_bytes(pages(ours, start, end, own=True), "little")
        if not first and not second:
            return
        owners = (first | second << 1).to_bytes(count, "little")
        for found in re.finditer(rb"\x02+", owners):
            at, size = start + found.start() * PAGE, (found.end() - found.start()) * PAGE
            self._target.call("madvise", at, size, _MADV_DONTNEED)
        for found in re.finditer(rb"[\x01\x03]+", owners):
            for at in range(start + found.start() * PAGE, start + found.end() * PAGE, _CHUNK):
                self._copy_chunk(at, min(_CHUNK, start + found.end() * PAGE - at))

    def _copy_chunk(self, at: int, size: int) -> None:
        """Write what differs, page by page: pages that are the same stay shared with the template."""
        # Compared as bytes: memoryviews are compared item by item, which takes sixty times as long.
        wanted, present = self._source.read(at, size), self._target.read(at, size)
        if wanted == present:
            return
        begin: int | None = None
        for position in range(0, size + PAGE, PAGE):
            end = position + PAGE
            differs = position < size and wanted[position:end] != present[position:end]
            if differs and begin is None:
                begin = position
            elif not differs and begin is not None:
                self._write(at + begin, wanted[begin:position])
                begin = None

    def _write(self, address: int, data: bytes) -> None:
        self._target.write(address, data)
        self.copied += len(data)


class _Pagemap:
    def __init__(self, pid: int) -> None:
        self.fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.fd)


def _vdso(mapped: list[Area]) -> tuple[int, int]:
    for area in mapped:
        if area.name == "[vdso]":
            return area.start, area.end - area.start
    raise OSError("the process has no vDSO")


def _layout(pid: int) -> tuple[int, ...]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return tuple(int(fields[number - 3]) for number in _LAYOUT_FIELDS)
