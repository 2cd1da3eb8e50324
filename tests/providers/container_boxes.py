"""Orders and boxes for the container tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hutch.conformance.workbench import LIMITS, pinned
from hutch.model.ids import new_box_id
from hutch.model.limits import Limits
from hutch.model.results import Result
from hutch.model.spec import EffectiveSpec, NetworkMode, Order, Retention, Workspace
from hutch.providers.base import Command
from hutch.providers.docker.instance import ContainerInstance
from hutch.providers.docker.provider import DockerProvider
from tests.providers import rootfs


def order(keeper: str = "tests", **changes: Any) -> Order:
    limits = {name: changes.pop(name) for name in Limits.__struct_fields__ if name in changes}
    spec = EffectiveSpec(
        profile="", provider="docker", image=f"oci:{rootfs.NAME}", workspace=Workspace(), workdir="/workspace",
        user="user", mounts=(), env={}, secrets={}, network=NetworkMode.OFF, allow_private=(),
        limits=LIMITS.but(**limits), read_only_root=True, retention=Retention.TEMPORARY, idle_timeout_sec=0, ttl_sec=0,
        labels={}, ports=(), name="",
    ).but(**changes)  # fmt: skip
    return Order(box_id=new_box_id(), keeper=keeper, spec=spec, places=pinned(spec), orphan_grace_sec=30.0)


@asynccontextmanager
async def box(
    provider: DockerProvider, wanted: Order | None = None, **changes: Any
) -> AsyncIterator[ContainerInstance]:
    """A box that is destroyed at the end, whatever happens."""
    wanted = wanted or order(**changes)
    planned = provider.plan(wanted)
    try:
        instance = await provider.create(wanted, planned)
        try:
            yield instance
        finally:
            await instance.close()
    finally:
        await provider.destroy(planned)


async def run(instance: ContainerInstance, command: str | list[str], **fields: Any) -> Result:
    argv = tuple(command) if isinstance(command, list) else command
    return await instance.run(Command(command=argv, timeout_sec=30.0, **fields))
