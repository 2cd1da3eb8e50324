"""Stops another process, reads and changes its memory and registers, and has it make system calls (ptrace(2)).

x86_64 only: registers have other names elsewhere. Standard library only: this runs in a fork of a template.
"""

import ctypes
import os
import struct
from ctypes import byref, c_uint64, sizeof

from hutch.linux.kernel import MACHINE, NR, last_error, raw_syscall

_SEIZE, _INTERRUPT, _DETACH, _SINGLESTEP = 0x4206, 0x4207, 17, 9
_GETREGSET, _SETREGSET = 0x4204, 0x4205
_GETSIGMASK, _SETSIGMASK, _GET_RSEQ = 0x420A, 0x420B, 0x420F
_NT_PRSTATUS, _NT_X86_XSTATE = 1, 0x202
_O_EXITKILL = 0x100000  # If this process ends, a tracee that is half changed ends with it.
_WALL = 0x40000000
_MAX_XSTATE = 1 << 14
_SYSCALL = b"\x0f\x05"
_RESTARTS = range(-514, -511)
"""ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND: what the kernel leaves in rax to make an interrupted call again."""
_RESTART_BLOCK = -516
_EINTR = -4
_RSEQ = struct.Struct("<QIIII")


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_REGISTERS = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip


class Registers(ctypes.Structure):
    """struct user_regs_struct of x86_64."""

    _fields_ = tuple((name, c_uint64) for name in _REGISTERS)


class Tracee:
    """One stopped process of one thread. `detach` lets it go on; without that it ends with this process."""

    def __init__(self, pid: int, pidfd: int) -> None:
        """Stop the process that `pidfd` names.

        Raises:
            OSError: It has ended, it has several threads, or the kernel does not let us trace it.
        """
        if MACHINE != "x86_64":
            raise OSError(f"processes cannot be copied on {MACHINE}")
        self.pid = pid
        _ptrace(_SEIZE, pid, 0, _O_EXITKILL)
        _ptrace(_INTERRUPT, pid, 0, 0)
        self._wait()
        # Threat: the process has ended and its pid was given to another. Then the pidfd says so, and we let go of it.
        if not _names(pidfd, pid) or len(os.listdir(f"/proc/{pid}/task")) != 1:
            self.detach()
            raise OSError(f"process {pid} has ended, or has several threads")
        self.memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self.gate = 0
        """The address of an instruction `syscall`, which `call` uses."""

    def _wait(self) -> None:
        _, status = os.waitpid(self.pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise OSError(f"process {self.pid} has ended while it was copied")

    def detach(self) -> None:
        """Let it go on."""
        _ptrace(_DETACH, self.pid, 0, 0)

    # --- registers --------------------------------------------------------------------------------------------

    def registers(self) -> Registers:
        """Return its registers. A system call that was interrupted is one that is about to be made."""
        found = Registers()
        vector = _Vector(ctypes.addressof(found), sizeof(found))
        _ptrace(_GETREGSET, self.pid, _NT_PRSTATUS, byref(vector))
        if _signed(found.orig_rax) >= 0:
            answer = _signed(found.rax)
            if answer in _RESTARTS:
                found.rip -= len(_SYSCALL)
                found.rax = found.orig_rax
            elif answer == _RESTART_BLOCK:
                found.rax = _EINTR & 0xFFFFFFFFFFFFFFFF
        found.orig_rax = 0xFFFFFFFFFFFFFFFF  # It is in no call any more, so the kernel restarts none.
        return found

    def set_registers(self, values: Registers) -> None:
        vector = _Vector(ctypes.addressof(values), sizeof(values))
        _ptrace(_SETREGSET, self.pid, _NT_PRSTATUS, byref(vector))

    def extended_state(self) -> bytes:
        """Its floating-point and vector registers."""
        state = ctypes.create_string_buffer(_MAX_XSTATE)
        vector = _Vector(ctypes.addressof(state), _MAX_XSTATE)
        _ptrace(_GETREGSET, self.pid, _NT_X86_XSTATE, byref(vector))
        return state.raw[: vector.length]

    def set_extended_state(self, state: bytes) -> None:
        content = ctypes.create_string_buffer(state, len(state))
        vector = _Vector(ctypes.addressof(content), len(state))
        _ptrace(_SETREGSET, self.pid, _NT_X86_XSTATE, byref(vector))

    def signal_mask(self) -> int:
        mask = c_uint64()
        _ptrace(_GETSIGMASK, self.pid, 8, byref(mask))
        return mask.value

    def set_signal_mask(self, value: int) -> None:
        _ptrace(_SETSIGMASK, self.pid, 8, byref(c_uint64(value)))

    def rseq(self) -> tuple[int, int, int]:
        """Address, size and signature of the registered restartable sequences; zeros if there are none."""
        found = ctypes.create_string_buffer(_RSEQ.size)
        _ptrace(_GET_RSEQ, self.pid, _RSEQ.size, found)
        address, size, signature, _, _ = _RSEQ.unpack(found.raw)
        return address, size, signature

    # --- memory and calls -------------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        """Read memory, whatever its protection; fewer bytes where it ends."""
        parts = []
        while size:
            piece = os.pread(self.memory, size, address)
            if not piece:
                break
            parts.append(piece)
            address, size = address + len(piece), size - len(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, address: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self.memory, view, address)
            address, view = address + written, view[written:]

    def find_gate(self, start: int, size: int) -> None:
        """Use an instruction in this memory for calls; the vDSO of every process has one."""
        found = self.read(start, size).find(_SYSCALL)
        if found < 0:
            raise OSError(f"process {self.pid} has no instruction for system calls")
        self.gate = start + found

    def call(self, name: str, *arguments: int) -> int:
        """Have the process make a system call.

        Raises:
            OSError: The kernel refused it.
        """
        registers = self.registers()
        registers.rip, registers.rax = self.gate, NR[name]
        for register, value in zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), arguments, strict=False):
            setattr(registers, register, value & 0xFFFFFFFFFFFFFFFF)
        self.set_registers(registers)
        _ptrace(_SINGLESTEP, self.pid, 0, 0)
        self._wait()
        after = Registers()
        vector = _Vector(ctypes.addressof(after), sizeof(after))
        _ptrace(_GETREGSET, self.pid, _NT_PRSTATUS, byref(vector))
        if after.rip != self.gate + len(_SYSCALL):
            raise OSError(f"process {self.pid} was disturbed in a call of {name}")
        answer = _signed(after.rax)
        if -4096 < answer < 0:
            raise OSError(-answer, os.strerror(-answer), f"{name} in process {self.pid}")
        return answer


def _ptrace(request: int, pid: int, address: int, data: object) -> None:
    if raw_syscall(NR["ptrace"], request, pid, address, data, None, None) < 0:
        raise last_error(f"ptrace {request:#x}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _names(pidfd: int, pid: int) -> bool:
    """Whether this pidfd still means the living process with this pid."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return f"Pid:\t{pid}\n" in file.read()
