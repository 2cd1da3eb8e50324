"""Fifty forks of one box at once: they share its files, and none can see or change those of another."""

import asyncio
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.api import Box
from tests.layers.test_states import EXEC_SECONDS, shell

FORKS = 50
MB = 1 << 20
ATTACK = r"""
import os, sys
found = []
# Names of layers and of other boxes' bases, from wherever a process of the box can begin.
for top in ("/", "/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/..", "/workspace/../..", "/tmp/../../.."):
    for name in ("s0", "r0", "f0", "0", "1", "l0", "m", "n", "current", "last", "1.stack"):
        path = os.path.join(top, name)
        try:
            os.stat(path); found.append(path)
        except OSError:
            pass
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for source, kind in ((b"overlay", b"overlay"), (b"none", b"tmpfs")):
    if libc.mount(source, b"/tmp", kind, 0, b"lowerdir=/s0,upperdir=/tmp,workdir=/tmp") == 0: found.append("mount")
if libc.syscall(428, -100, b"/", 1) >= 0: found.append("open_tree")
if libc.setns(os.open("/proc/self/ns/mnt", 0), 0) == 0: found.append("setns")
# Whatever of the shared files is written must not be seen by anybody else.
for name in ("shared", "big"):
    try:
        fd = os.open(name, os.O_RDWR); os.pwrite(fd, b"ATTACKER", 0); os.close(fd)
    except OSError as error:
        found.append(f"own copy not writable: {error}")
print(found)
"""


async def attack(fork: Box) -> str:
    return (await fork.exec(["python3", "-c", ATTACK], timeout=EXEC_SECONDS)).stdout.strip()


@pytest.mark.alone
async def test_fifty_forks_share_their_files_and_are_isolated() -> None:
    async with Hutch(max_boxes=100) as hutch, hutch.box(disk_mb=64, memory_mb=64) as box:
        await shell(box, "echo shared > shared; head -c 20M /dev/urandom > big; sha256sum big > sum")
        before = _shmem()
        forks = await box.fork(FORKS)
        grown = _shmem() - before
        assert grown < FORKS * 2 * MB, f"{FORKS} forks of 20 MB took {grown >> 20} MB"
        checked = await asyncio.gather(*(shell(fork, "sha256sum -c sum && cat shared") for fork in forks))
        assert set(checked) == {"big: OK\nshared"}

        assert set(await asyncio.gather(*(attack(fork) for fork in forks[::2]))) == {"[]"}
        seen = await asyncio.gather(*(shell(fork, "sha256sum -c sum && cat shared") for fork in forks[1::2]))
        assert set(seen) == {"big: OK\nshared"}, "a fork sees what another has written"
        assert await shell(box, "sha256sum -c sum && cat shared") == "big: OK\nshared"
        marks = await asyncio.gather(*(shell(fork, f"echo {fork.id} > mark; cat mark; ls") for fork in forks))
        assert all(fork.id in mark for fork, mark in zip(forks, marks, strict=True))
        await asyncio.gather(*(fork.destroy() for fork in forks))


def _shmem() -> int:
    """Bytes of all tmpfs files on this machine."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Shmem"].split()[0]) * 1024
