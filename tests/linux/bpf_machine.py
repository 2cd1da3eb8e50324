"""A classic BPF machine, as far as a seccomp filter can go: what the kernel would answer to one system call.

It refuses what the kernel's checker refuses (jumps out of the program, loads that are not aligned or lie outside
struct seccomp_data), so that a program which runs here also loads.
"""

import struct
from collections.abc import Sequence

_DATA = struct.Struct("=IIQ6Q")


def evaluate(program: bytes, arch: int, number: int, arguments: Sequence[int] = ()) -> int:
    """The SECCOMP_RET_* value of `program` for one call, given as the raw words that the kernel sees."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = _DATA.pack(number, arch, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, yes, no, value = instructions[at]
        at += 1
        if code == 0x20:
            if value % 4 or value + 4 > len(data):
                raise ValueError(f"instruction {at - 1} loads from offset {value}")
            accumulator = int.from_bytes(data[value : value + 4], "little")
        elif code == 0x15:
            at += yes if accumulator == value else no
        elif code == 0x35:
            at += yes if accumulator >= value else no
        elif code == 0x45:
            at += yes if accumulator & value else no
        elif code == 0x06:
            return int(value)
        else:
            raise ValueError(f"instruction {at - 1} has the unknown code {code:#x}")
