"""The bytes of an owner's volumes: commands, uploads and hidden files that would fill the machine's disk."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import QuotaExceeded
from hutch.model.results import Cause
from hutch.model.spec import Mount, MountMode

MB = 1 << 20
FILL = "dd if=/dev/zero of=/data/{name} bs=1M count=400 && sleep 60"


def _hutch(tmp_path: Path) -> Hutch:
    quotas = {"local": {"volume_mb": 32}}
    return Hutch(quotas=quotas, state_dir=tmp_path / "s", run_dir=tmp_path / "r")


def _data(mode: MountMode = MountMode.RW) -> tuple[Mount, ...]:
    return (Mount(source="volume:data", target="/data", mode=mode),)


async def test_a_command_that_overfills_a_volume_is_ended(tmp_path: Path) -> None:
    """It says why. Nothing more can be added then, also by a new box, until files are removed (B15, lesson 24)."""
    async with _hutch(tmp_path) as hutch:
        await hutch.volumes.create("data")
        async with hutch.box(mounts=_data(), timeout_sec=120) as box:
            result = await box.exec(FILL.format(name="big"), timeout=110)
            assert result.verdict.cause is Cause.DISK, result.verdict
            assert "volume_mb" in result.verdict.remedy
            with pytest.raises(QuotaExceeded, match="volumes hold"):
                await box.files.write("/data/more", b"x")
            with pytest.raises(QuotaExceeded, match="volumes hold"):
                async with hutch.box(mounts=_data()):
                    pass
            async with hutch.box(mounts=_data(MountMode.RO)) as reader:
                assert (await reader.exec("test -s /data/big")).exit_code == 0
            assert (await box.exec("rm /data/big")).exit_code == 0
            await _until_writable(box)
            assert (await box.exec("dd if=/dev/zero of=/data/small bs=1M count=4")).exit_code == 0


async def test_a_file_without_a_name_is_counted(tmp_path: Path) -> None:
    """A box cannot hide what it writes by removing the file's name."""
    hidden = "exec 3>/data/hidden; rm /data/hidden; dd if=/dev/zero bs=1M count=400 >&3; sleep 60"
    async with _hutch(tmp_path) as hutch:
        await hutch.volumes.create("data")
        async with hutch.box(mounts=_data(), timeout_sec=120) as box:
            assert (await box.exec(hidden, timeout=110)).verdict.cause is Cause.DISK


async def test_an_upload_without_end_is_ended(tmp_path: Path) -> None:
    """Uploads count as commands do, and what other owners or boxes without the volume do is not stopped."""
    async with _hutch(tmp_path) as hutch:
        await hutch.volumes.create("data")
        async with hutch.box(mounts=_data()) as box, hutch.box() as other:
            job = await other.start("sleep 60")
            with pytest.raises(QuotaExceeded, match="volumes hold"):
                await box.files.write("/data/endless", _endless())
            assert (await other.exec("true")).exit_code == 0
            assert (await job.info()).exit_code is None
            await job.signal(9)


async def _endless() -> AsyncIterator[bytes]:
    for _ in range(2000):  # 2 GB at most, should nothing stop it
        yield b"\0" * MB
        await asyncio.sleep(0.01)


async def _until_writable(box) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(60):
        while True:
            try:
                await box.files.write("/data/ok", b"x")
            except QuotaExceeded:
                await asyncio.sleep(0.1)
            else:
                return
