"""Native boxes for tests: a provider with directories of its own, and specs with few words."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hutch.model.ids import new_box_id
from hutch.model.limits import Limits
from hutch.model.results import Result
from hutch.model.spec import (
    CheckedMount,
    CheckedMounts,
    EffectiveSpec,
    MountMode,
    NetworkMode,
    Order,
    Retention,
    Workspace,
)
from hutch.providers.base import Command, Instance
from hutch.providers.native import cleanup
from hutch.providers.native.instance import NativeInstance
from hutch.providers.native.provider import NativeProvider

LIMITS = Limits(cpus=1, memory_mb=256, pids=64, disk_mb=32, open_files=512, timeout_sec=30, max_timeout_sec=60)
TIMEOUT = 30.0


def spec(**changes: Any) -> EffectiveSpec:
    plain = EffectiveSpec(
        profile="default", provider="native", image="host", workspace=Workspace(), workdir="/workspace", user="user",
        mounts=(), env={}, secrets={}, network=NetworkMode.OFF, allow_private=(), limits=LIMITS, read_only_root=True,
        retention=Retention.TEMPORARY, idle_timeout_sec=0, ttl_sec=0, labels={}, ports=(), name="",
    )  # fmt: skip
    return plain.but(**changes)


def order(**changes: Any) -> Order:
    grace = changes.pop("orphan_grace_sec", 60.0)
    wanted = spec(**changes)
    return Order(
        box_id=new_box_id(), keeper=f"test-{os.getpid()}", spec=wanted, places=places(wanted), orphan_grace_sec=grace
    )  # fmt: skip


def places(wanted: EffectiveSpec) -> CheckedMounts:
    """What policy would pin, without asking whether it is allowed."""
    kind, _, image = wanted.image.partition(":")
    source = wanted.workspace.source
    named = source != "own"
    return CheckedMounts(
        mounts=tuple(pin(mount.source, mount.target, mount.mode) for mount in wanted.mounts if mount.mode != "none"),
        workspace=pin(source, "/workspace", wanted.workspace.mode) if named else None,
        image=pin(image, "/", MountMode.RO) if kind in ("dir", "tar") else None,
    )


def pin(source: str, target: str, mode: MountMode) -> CheckedMount:
    found = os.stat(source)
    return CheckedMount(real=os.path.realpath(source), target=target, mode=mode, dev=found.st_dev, ino=found.st_ino)


@asynccontextmanager
async def engine(kind: type[NativeProvider] = NativeProvider, **options: Any) -> AsyncIterator[NativeProvider]:
    """A provider whose boxes are all destroyed at the end."""
    top = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    top.chmod(0o755)
    provider = kind(state_dir=top / "s", run_dir=top / "r", **options)
    try:
        yield provider
    finally:
        for record in await provider.list():
            await provider.destroy(record)
        await provider.close()
        assert run_names(provider) == [], "something is left in the run directory"
        cleanup.remove_tree(str(top))


def run_dir(provider: NativeProvider) -> Path:
    return Path(provider._run)


def run_names(provider: NativeProvider) -> list[str]:
    return sorted(os.listdir(run_dir(provider))) if run_dir(provider).exists() else []


async def make(provider: NativeProvider, **changes: Any) -> NativeInstance:
    wanted = order(**changes)
    return await provider.create(wanted, provider.plan(wanted))


@asynccontextmanager
async def box(provider: NativeProvider, **changes: Any) -> AsyncIterator[NativeInstance]:
    made = await make(provider, **changes)
    try:
        yield made
    finally:
        await made.close()
        await provider.destroy(made.record)


async def run(instance: Instance, command: str, **options: Any) -> Result:
    return await instance.run(Command(command=command, timeout_sec=options.pop("timeout_sec", 30.0), **options))


async def out(instance: Instance, command: str, **options: Any) -> str:
    """What a command wrote to either stream, stripped."""
    result = await run(instance, command, **options)
    return (result.stdout + result.stderr).strip()


async def until(true: Callable[[], bool], what: str) -> None:
    """Poll with a deadline that only a fault reaches."""
    deadline = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        await asyncio.sleep(0.01)


def pid_of(instance: Instance) -> int:
    pid = instance.record.data["pid"]
    assert isinstance(pid, int)
    return pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
