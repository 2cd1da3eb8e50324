"""The workbench of a check: a provider, boxes that are destroyed at the end, orders, scratch space on the host."""

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from hutch.conformance.claims import broken, same
from hutch.conformance.shared_box import CommonBox
from hutch.errors import HutchError, Invalid
from hutch.model.capabilities import Capabilities
from hutch.model.ids import new_box_id
from hutch.model.limits import Limits
from hutch.model.results import Result
from hutch.model.spec import (
    CheckedMount,
    CheckedMounts,
    EffectiveSpec,
    Mount,
    MountMode,
    NetworkMode,
    Order,
    Retention,
    Workspace,
)
from hutch.providers.base import Command, Instance, InstanceRecord, Provider
from hutch.providers.handles import Process

LIMITS = Limits(cpus=1, memory_mb=256, pids=64, disk_mb=64, open_files=256, timeout_sec=30, max_timeout_sec=0)
KEEPER = f"conformance-{secrets.token_hex(4)}"
"""The keeper's name in this process, because two runs on one machine are two keepers."""
POLL = 0.02


class Workbench:
    """The workbench for one provider."""

    def __init__(
        self,
        make: Callable[[], Provider],
        provider: Provider,
        capabilities: Capabilities,
        *,
        image: str = "",
        patience: float = 30.0,
        one_plain_box: bool = False,
    ) -> None:
        self.make = make
        self.provider = provider
        self.capabilities = capabilities
        self.image = image or _usual_image(capabilities)
        self.patience = patience
        """The seconds after which something that must happen counts as failed. It is never a measure of speed."""
        self._common = CommonBox(self.box, patience) if one_plain_box else None
        self._scratch: Path | None = None

    async def close(self) -> None:
        if self._common is not None:
            await self._common.close()

    @property
    def scratch(self) -> Path:
        """Return a new, empty directory of the host in which every user may write."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="conformance-", dir="/tmp"))
            self._scratch.chmod(0o777)
        return self._scratch

    def clear(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch)
            self._scratch = None

    def spec(self, **changes: Any) -> EffectiveSpec:
        """Return the spec of a plain box with these fields changed. Limits may be given flat."""
        limits = {name: changes.pop(name) for name in Limits.__struct_fields__ if name in changes}
        plain = EffectiveSpec(
            profile="conformance", provider=self.provider.name, image=self.image, workspace=Workspace(),
            workdir="/workspace", user="user", mounts=(), env={}, secrets={}, network=NetworkMode.OFF,
            allow_private=(), limits=LIMITS.but(**limits), read_only_root=True, retention=Retention.TEMPORARY,
            idle_timeout_sec=0, ttl_sec=0, labels={}, ports=(), name="",
        )  # fmt: skip
        return plain.but(**changes)

    def order(self, **changes: Any) -> Order:
        """Return an order for a new box. Mounts and a workspace of the host are pinned here, as policy would do it."""
        places = changes.pop("places", None)
        spec = self.spec(**changes)
        return Order(
            box_id=new_box_id(), keeper=KEEPER, spec=spec, places=places or pinned(spec), orphan_grace_sec=30.0
        )

    @asynccontextmanager
    async def box(self, **changes: Any) -> AsyncIterator[Instance]:
        """Create a box, and destroy it at the end."""
        order = self.order(**changes)
        async with self.made(order) as instance:
            yield instance

    def plain_box(self) -> AbstractAsyncContextManager[Instance]:
        """Return an empty plain box for a check that neither changes nor ends it. Several checks may share it."""
        return self._common.box() if self._common is not None else self.box()

    @asynccontextmanager
    async def made(self, order: Order) -> AsyncIterator[Instance]:
        """Create the box of this order, and destroy it whatever happens, if need be from its plan."""
        planned = self.provider.plan(order)
        record = planned
        try:
            instance = await self.provider.create(order, planned)
            record = instance.record
            try:
                yield instance
            finally:
                await instance.close()
        finally:
            await self.provider.destroy(record)

    @asynccontextmanager
    async def another(self) -> AsyncIterator[Provider]:
        """Yield a second provider object that knows nothing of the first."""
        provider = self.make()
        try:
            yield provider
        finally:
            await provider.close()

    @asynccontextmanager
    async def attached(
        self, record: InstanceRecord, spec: EffectiveSpec, provider: Provider | None = None
    ) -> AsyncIterator[Instance]:
        """Yield one more handle on a box, and close it at the end."""
        instance = await (provider or self.provider).attach(record, spec)
        try:
            yield instance
        finally:
            await instance.close()

    async def listed(self, record: InstanceRecord) -> bool:
        return any(each.box_id == record.box_id for each in await self.provider.list())

    async def run(self, box: Instance, command: str | tuple[str, ...], **fields: Any) -> Result:
        """Return the command's result, whatever it did."""
        fields.setdefault("timeout_sec", self.patience)
        return await box.run(Command(command=command, **fields))

    async def output(self, box: Instance, command: str | tuple[str, ...], **fields: Any) -> bytes:
        """Return the standard output of a command that has to succeed."""
        result = await self.run(box, command, **fields)
        if not result.ok:
            broken(f"{command!r} ended with {result.verdict.cause} {result.exit_code}: {result.stderr[-200:]!r}")
        return result.stdout_bytes

    async def answers(self, box: Instance) -> None:
        """Fail unless the box still works."""
        same(await self.output(box, "echo alive"), b"alive\n", "the box's answer afterwards")

    async def start(self, box: Instance, command: str | tuple[str, ...], **fields: Any) -> Process:
        return await box.start(Command(command=command, **fields))

    async def ended(self, process: Process) -> Result:
        """Return the result of a job that has to end by itself."""
        return await process.wait(self.patience)

    async def read_until(self, process: Process, wanted: bytes, stream: str = "stdout") -> bytes:
        """Return all output so far, once it contains `wanted`."""
        seen, cursor = b"", 0
        async with self.within(f"{wanted!r} on {stream}"):
            while wanted not in seen:
                chunk = await process.read(cursor, stream=stream, wait=1.0)
                seen, cursor = seen + chunk.data, chunk.cursor
                if chunk.eof and wanted not in seen:
                    broken(f"{stream} ended without {wanted!r}: {seen[-200:]!r}")
        return seen

    async def read_all(self, process: Process, stream: str = "stdout", limit: int = 65536) -> bytes:
        """Return everything from the first byte to the end of file, read by cursor."""
        pieces: list[bytes] = []
        cursor = 0
        async with self.within(f"the end of {stream}"):
            while True:
                chunk = await process.read(cursor, stream=stream, limit=limit, wait=1.0)
                pieces.append(chunk.data)
                cursor = chunk.cursor
                if chunk.eof:
                    return b"".join(pieces)

    @asynccontextmanager
    async def within(self, what: str) -> AsyncIterator[None]:
        """Fail if the body does not end in time."""
        try:
            async with asyncio.timeout(self.patience):
                yield
        except TimeoutError as error:
            if isinstance(error, HutchError):
                raise
            broken(f"{what}: not within {self.patience:g} s")

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for something that has to become true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience
        while not await condition():
            if loop.time() > deadline:
                broken(f"{what}: not within {self.patience:g} s")
            await asyncio.sleep(POLL)

    async def processes(self, box: Instance, mark: str) -> int:
        """Return how many processes of the box have `mark` on their command line. Zombies have none."""
        # The list is complete before grep starts, and the pattern is split, so that the search does not find itself.
        script = f"""all=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n')
        echo "$all" | grep -c '{mark[0]}''{mark[1:]}'"""
        result = await self.run(box, ("sh", "-c", script))
        return int(result.stdout or "0")


def pinned(spec: EffectiveSpec) -> CheckedMounts:
    """Return the host paths of a spec with the inodes that are there now."""
    own = spec.workspace.source == "own" or spec.workspace.mode is MountMode.NONE
    return CheckedMounts(
        mounts=tuple(pin(mount) for mount in spec.mounts if mount.mode is not MountMode.NONE),
        workspace=None if own else pin(Mount(
            source=spec.workspace.source, target="/workspace", mode=spec.workspace.mode
        )),
    )  # fmt: skip


def pin(mount: Mount) -> CheckedMount:
    found = os.stat(mount.source)
    return CheckedMount(
        real=os.path.realpath(mount.source), target=mount.target, mode=mount.mode, dev=found.st_dev, ino=found.st_ino
    )


def _usual_image(capabilities: Capabilities) -> str:
    if "host" in capabilities.images or not capabilities.images:
        return "host"
    raise Invalid(
        f"provider {capabilities.provider} needs an image for its boxes",
        remedy=f"name one of kind {', '.join(capabilities.images)} with --image",
    )
