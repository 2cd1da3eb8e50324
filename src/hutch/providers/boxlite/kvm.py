"""Tests whether this machine's KVM really runs a guest: one instruction, in a virtual machine of one page.

/dev/kvm may be there and open, and still no guest runs (nested virtualisation that is only half there). This runs as
a program of its own, because a broken KVM may never return from KVM_RUN. It needs only the standard library.
"""

import ctypes
import fcntl
import mmap
import os
import platform
import subprocess
import sys

DEVICE = "/dev/kvm"
_TIMEOUT = 3.0
"""A guest that halts takes microseconds; starting the program that tries it may take the rest on a busy machine."""
_PAGE = 4096
_HLT = 5  # KVM_EXIT_HLT
_GET_API_VERSION, _CREATE_VM, _GET_MMAP_SIZE = 0xAE00, 0xAE01, 0xAE04
_CREATE_VCPU, _RUN = 0xAE41, 0xAE80
_SET_MEMORY, _GET_SREGS, _SET_SREGS, _SET_REGS = 0x4020AE46, 0x8138AE83, 0x4138AE84, 0x4090AE82
_SREGS, _REGS = 312, 144
"""The bytes of struct kvm_sregs and kvm_regs on x86_64."""


class _Region(ctypes.Structure):
    """The kernel's struct kvm_userspace_memory_region."""

    _fields_ = (
        ("slot", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("guest_address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
    )


def obstacle(device: str = DEVICE) -> str:
    """Return why no guest runs here, or "" if one does. Blocks for some milliseconds."""
    if not os.path.exists(device):
        return f"there is no {device}: the kernel has no KVM, or this machine does not pass it on"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"{device} is not ours to open"
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", __file__, device], capture_output=True, text=True, timeout=_TIMEOUT,
            stdin=subprocess.DEVNULL, env={},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{device} is there, and a guest that only halts does not come to its end"
    if tried.returncode:
        return f"{device} is there, and no guest runs: {(tried.stderr.strip() or 'no reason given')[-200:]}"
    return ""


def run(device: str) -> str:
    """Return what went wrong with a guest that only halts, or "" if nothing did."""
    kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    version = fcntl.ioctl(kvm, _GET_API_VERSION, 0)
    if version != 12:
        return f"KVM speaks version {version} of its API"
    machine = fcntl.ioctl(kvm, _CREATE_VM, 0)
    if platform.machine() != "x86_64":
        return ""  # registers differ there, so a machine that can be created has to suffice
    memory = mmap.mmap(-1, _PAGE)
    memory[0:1] = b"\xf4"  # hlt
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(machine, _SET_MEMORY, bytes(_Region(0, 0, 0, _PAGE, place)))
    cpu = fcntl.ioctl(machine, _CREATE_VCPU, 0)
    state = mmap.mmap(cpu, fcntl.ioctl(kvm, _GET_MMAP_SIZE, 0))
    registers = bytearray(_SREGS)
    fcntl.ioctl(cpu, _GET_SREGS, registers)
    registers[0:12] = bytes(12)  # cs has base 0, so that the first instruction is the page's first byte
    registers[12:14] = bytes(2)
    fcntl.ioctl(cpu, _SET_SREGS, registers)
    general = bytearray(_REGS)
    general[136:144] = (2).to_bytes(8, "little")  # rflags: the bit that is always set
    fcntl.ioctl(cpu, _SET_REGS, general)
    fcntl.ioctl(cpu, _RUN, 0)
    reason = int.from_bytes(state[8:12], "little")
    return "" if reason == _HLT else f"the guest left for reason {reason} instead of halting"


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1]) or None)
    except OSError as error:
        sys.exit(f"{error.strerror} (errno {error.errno})")
