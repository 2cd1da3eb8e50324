"""A program whose exit code says whether it may gain privileges, in machine code, as an image may lack programs."""

import struct

from hutch.conformance.claims import broken

IS_FREE, IS_BARRED, IS_ROOT = 0, 1, 7

# If geteuid() is root, it calls exit(7), else exit(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)).
_X86_64 = bytes.fromhex(
    "b86b000000 0f05 85c0 741a"  # mov eax, 107; syscall; test eax, eax; jz root
    "bf27000000 31f6 31d2 4531d2 4531c0"  # mov edi, 39; the other arguments: 0
    "b89d000000 0f05 89c7"  # mov eax, 157; syscall; mov edi, eax
    "eb05 bf07000000"  # jmp end; root: mov edi, 7
    "b83c000000 0f05"  # end: mov eax, 60; syscall
)
_AARCH64 = struct.pack(
    "<14I",
    0xD28015E8, 0xD4000001,  # mov x8, 175; svc 0
    0xB4000120,  # cbz x0, root
    0xD28004E0, 0xD2800001, 0xD2800002, 0xD2800003, 0xD2800004,  # mov x0, 39; the other arguments: 0
    0xD28014E8, 0xD4000001,  # mov x8, 167; svc 0
    0x14000002, 0xD28000E0,  # b end; root: mov x0, 7
    0xD2800BA8, 0xD4000001,  # end: mov x8, 93; svc 0
)  # fmt: skip
_CODE = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
_BASE = 0x400000
_HEADERS = 64 + 56


def program(machine: str) -> bytes:
    """Return an ELF file with one segment (elf(5)) for the machine that `uname -m` names."""
    if machine not in _CODE:
        broken(f"there is no probe for machine {machine}: this check knows {', '.join(_CODE)}")
    number, code = _CODE[machine]
    size = _HEADERS + len(code)
    header = struct.pack(
        "<4s5B7x2HI3QI6H", b"\x7fELF", 2, 1, 1, 0, 0, 2, number, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<2I6Q", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code
