"""A box is a machine that an agent knows: names, sizes and package managers are where programs look for them."""

import asyncio
import os

import pytest
from tests.providers.native.boxes import LIMITS, box, engine, out, run

from hutch.errors import NotRunnable, Refused, Unsupported
from hutch.providers.base import Command
from hutch.providers.native.rootfs.machine_view import machine_view

SIZES = (
    "nproc; grep -c ^processor /proc/cpuinfo; python3 -c 'import os; print(os.cpu_count())';"
    "free -m | awk '/^Mem/{print $2}'"
)
CPUS = min(2, os.cpu_count() or 1)

DEB = """
set -e
mkdir -p /tmp/pack/DEBIAN /tmp/pack/usr/bin
cd /tmp/pack/DEBIAN
printf 'Package: greeter\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n' > control
printf '#!/bin/sh\necho greetings\n' > /tmp/pack/usr/bin/greeter
chmod 755 /tmp/pack/usr/bin/greeter
dpkg-deb -b /tmp/pack /tmp/greeter.deb >/dev/null
apt-get install -y /tmp/greeter.deb >/tmp/log 2>&1 || cat /tmp/log
greeter
dpkg -s greeter | grep ^Status
"""


@pytest.mark.slow
async def test_tools_show_the_limits_of_the_box() -> None:
    """`free`, `nproc`, /proc/meminfo and /proc/cpuinfo show what the box may use, not what the machine has."""
    async with engine() as native, box(native, limits=LIMITS.but(cpus=0.5, memory_mb=96)) as made:
        assert (await out(made, SIZES)).split() == ["1", "1", "1", "96"]
        assert await out(made, "ps -o comm= -p 1") == "hutch-guest"


@pytest.mark.slow
async def test_new_limits_are_shown_in_a_running_box() -> None:
    """What can change live is also shown live (B14)."""
    async with engine() as native, box(native, limits=LIMITS.but(cpus=1, memory_mb=96)) as made:
        assert "cpus" not in await made.change_limits(LIMITS.but(cpus=2, memory_mb=200))
        shown = (await out(made, SIZES)).split()
        assert shown[1:] == [str(CPUS), str(CPUS), "200"]


def test_the_text_for_a_large_machine_stays_small() -> None:
    """The text travels in a program of at most 128 KB (`spawn.program`)."""
    assert sum(len(text) for _, text in machine_view(10_000, 1 << 20)) < 100_000
    assert dict(machine_view(0.1, 512))["cpuinfo"].count("processor\t") == 1


async def test_names_that_agents_expect_are_there() -> None:
    async with engine() as native, box(native) as made:
        assert (await out(made, "python --version")) == (await out(made, "python3 --version"))
        assert (await out(made, "bash -lc 'python --version'")) == (await out(made, "python3 --version"))
        assert await out(made, "cat /etc/hostname") == await out(made, "hostname") == made.record.box_id[:12]


@pytest.mark.slow
async def test_pip_installs_for_the_user_without_a_wall() -> None:
    """PEP 668 protects a machine from pip; a box is thrown away. What pip installs is found at once."""
    project = (
        "mkdir -p p/greet && cd p && printf 'def main(): print(\"hi\")\\n' > greet/__init__.py && "
        'printf \'from setuptools import setup\\nsetup(name="greet", version="1", packages=["greet"], '
        'entry_points={"console_scripts": ["greet=greet:main"]})\\n\' > setup.py && '
        "pip install --no-index --no-build-isolation . 2>&1"
    )
    async with engine() as native, box(native, limits=LIMITS.but(disk_mb=64, memory_mb=512)) as made:
        answer = await out(made, project)
        assert "externally-managed" not in answer
        assert await out(made, "greet") == "hi", answer


@pytest.mark.slow
async def test_apt_installs_as_root_where_the_root_is_writable(rootless: bool) -> None:
    async with engine() as native:
        if rootless:
            with pytest.raises(Unsupported) as refused:
                async with box(native, read_only_root=False):
                    pass
            assert "run Hutch as root" in refused.value.remedy
            return
        async with box(native, read_only_root=False, limits=LIMITS.but(disk_mb=256, memory_mb=512)) as made:
            assert await out(made, DEB, user="root") == "greetings\nStatus: install ok installed"
            answer = await out(
                made, "adduser --disabled-password --gecos '' bob >/tmp/log 2>&1 || cat /tmp/log", user="root"
            )
            assert await out(made, "echo $(whoami) $HOME", user="bob") == "bob /home/bob", answer


async def test_an_unknown_user_cannot_run_anything() -> None:
    async with engine() as native, box(native) as made:
        with pytest.raises(NotRunnable, match="no user 'mallory'"):
            await made.run(Command(command="true", user="mallory"))
        with pytest.raises(NotRunnable, match="no user 'mallory'"):
            await made.start(Command(command="true", user="mallory"))


async def test_root_has_no_other_name(rootless: bool) -> None:
    """Threat: a caller who may not be root names an account of the image that has root's id."""
    if rootless:
        return
    async with engine() as native, box(native, read_only_root=False) as made:
        await out(made, "echo toor:x:0:0::/:/bin/sh >> /etc/passwd", user="root")
        with pytest.raises(Refused):
            await made.run(Command(command="true", user="toor"))


async def test_a_signal_is_reported_beside_the_exit_code() -> None:
    """As a shell reports it (B2)."""
    async with engine() as native, box(native) as made:
        result = await run(made, "kill -TERM $$")
        assert (result.exit_code, result.signal) == (143, 15)
        job = await made.start(Command(command="kill -KILL $$"))
        await asyncio.wait_for(job.wait(), 60)
        info = await job.info()
        assert (info.exit_code, info.signal) == (137, 9)
