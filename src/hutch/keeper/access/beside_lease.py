"""Access to a box beside its lease: an observer reads and changes nothing; an admin does everything, and is logged.

An observer pins and resumes nothing, and extends no clock.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hutch.errors import Conflict, HutchError, LeaseLost, Refused
from hutch.keeper.access.code import KernelsHandle
from hutch.keeper.access.files import GuardedFiles
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.access.jobs import JobHandle
from hutch.keeper.access.views import box_info_with_jobs
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import describe_state
from hutch.keeper.keeper import Keeper
from hutch.keeper.receipts.operations import Operation
from hutch.logs import log
from hutch.model.boxes import BoxInfo, PortInfo, State
from hutch.model.files import Edited, FileInfo
from hutch.model.layers import Checkpoint
from hutch.model.receipts import Details
from hutch.model.results import JobInfo, Usage
from hutch.model.spec import Adjustment, EffectiveSpec
from hutch.providers.base import Instance


class ObserverGuard:
    """Guards the operations of an observer."""

    def __init__(self, keeper: Keeper, live: Live) -> None:
        self._keeper = keeper
        self._live = live

    async def begin(self) -> Instance:
        """Only a running box can be observed: a paused one would have to be resumed."""
        self._live.check_not_gone()
        self._keeper.check_owned(self._live)
        if self._live.record.state is not State.RUNNING:
            raise Conflict(describe_state(self._live.record), details={"state": str(self._live.record.state)})
        return self._live.running

    def end(self) -> None:
        """Nothing was pinned."""

    async def failed(self, error: HutchError) -> None:
        """The session that works with the box has it checked."""

    def operation(self, op: str, details: Details) -> Operation:
        """An observation leaves a receipt too, which says who saw what."""
        return self._keeper.operations.begin(self._live, "", op, details)

    def check_volumes(self, op: str, *, adds: bool = False) -> int:
        """An observer adds nothing."""
        return 0


class ObservedFiles(GuardedFiles):
    """Files that can only be read."""

    async def write(
        self, path: str, data: bytes | str | AsyncIterator[bytes], *, append: bool = False, mode: int | None = None,
        sync: bool = False, parents: bool = True,
    ) -> FileInfo:  # fmt: skip
        refuse("write")

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        refuse("edit")

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        refuse("mkdir")

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        refuse("move")

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        refuse("remove")

    async def copy_in(self, source: str | Path, target: str) -> int:
        refuse("copy_in")


class ObservedJob(JobHandle):
    """A job that can only be read."""

    async def write(self, data: bytes | str) -> None:
        refuse("write")

    async def close_stdin(self) -> None:
        refuse("close_stdin")

    async def signal(self, number: int = 15) -> None:
        refuse("signal")

    async def resize(self, rows: int, cols: int) -> None:
        refuse("resize")


class ObservedKernels(KernelsHandle):
    """Kernels that can only be listed."""

    async def start(self, language: str = "python", **options: Any) -> NoReturn:
        refuse("start a kernel")

    async def run(self, language: str, code: str, **options: Any) -> NoReturn:
        refuse("run code")

    def stream(self, language: str, code: str, **options: Any) -> NoReturn:
        refuse("run code")

    async def interrupt(self, kernel: str) -> None:
        refuse("interrupt")

    async def restart(self, kernel: str) -> NoReturn:
        refuse("restart a kernel")

    async def remove(self, kernel: str) -> None:
        refuse("remove a kernel")


class ObservedBox:
    """The `Box` protocol for an observer."""

    notes: tuple[str, ...] = ()

    def __init__(self, keeper: Keeper, live: Live) -> None:
        self._live = live
        self._guard = ObserverGuard(keeper, live)
        self.files = ObservedFiles(self._guard)
        self.kernels = ObservedKernels(self._guard, live, keeper.engines.templates, keeper.states.announce)

    @property
    def id(self) -> str:
        return self._live.record.id

    @property
    def spec(self) -> EffectiveSpec:
        return self._live.record.spec

    @property
    def adjustments(self) -> tuple[Adjustment, ...]:
        return self._live.record.spec.adjustments

    async def jobs(self) -> tuple[JobInfo, ...]:
        return await (await self._guard.begin()).jobs()

    async def job(self, job_id: str) -> ObservedJob:
        return ObservedJob(self._guard, await (await self._guard.begin()).job(job_id))

    async def checkpoint(self, name: str = "", *, kill: bool = False) -> NoReturn:
        refuse("checkpoint")

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        return tuple(each.checkpoint for each in self._live.record.checkpoints)

    async def delete_checkpoint(self, checkpoint: str) -> None:
        refuse("delete a checkpoint")

    async def rollback(self, checkpoint: str, *, kill: bool = False) -> NoReturn:
        refuse("rollback")

    async def undo(self, steps: int = 1, *, kill: bool = False) -> NoReturn:
        refuse("undo")

    async def diff(self, start: str = "", end: str = "", *, text: bool = False) -> NoReturn:
        refuse("diff")

    async def fork(self, count: int = 1, *, checkpoint: str = "", kernel: bool = False) -> NoReturn:
        refuse("fork")

    async def merge(self, fork: str) -> NoReturn:
        refuse("merge")

    async def attempt(self, command: str | Sequence[str], **options: Any) -> NoReturn:
        refuse("attempt")

    async def usage(self) -> Usage:
        return await (await self._guard.begin()).usage()

    async def ports(self, *, wait: float = 0.0) -> tuple[PortInfo, ...]:
        return await (await self._guard.begin()).ports()

    async def previews(self) -> NoReturn:
        refuse("previews")

    async def connect(self, port: int) -> NoReturn:
        refuse("connect")

    async def url(self, port: int, *, public: bool = False, ttl_sec: float = 3600.0) -> NoReturn:
        refuse("url")

    async def revoke(self, preview_id: str) -> None:
        refuse("revoke")

    async def info(self) -> BoxInfo:
        self._live.check_not_gone()
        return await box_info_with_jobs(self._live)

    async def state(self) -> State:
        return self._live.record.state

    async def exec(self, command: str | Sequence[str], **options: Any) -> NoReturn:
        refuse("exec")

    def stream(self, command: str | Sequence[str], **options: Any) -> NoReturn:
        refuse("stream")

    async def start(self, command: str | Sequence[str], **options: Any) -> NoReturn:
        refuse("start")

    async def forget(self, job_id: str) -> None:
        refuse("forget")

    async def python(self, code: str, **options: Any) -> NoReturn:
        refuse("run code")

    async def code(self, language: str, code: str, **options: Any) -> NoReturn:
        refuse("run code")

    async def export(self, file: str | Path) -> NoReturn:
        refuse("export")

    async def pause(self) -> None:
        refuse("pause")

    async def resume(self) -> None:
        refuse("resume")

    async def stop(self) -> None:
        refuse("stop")

    async def rename(self, name: str) -> None:
        refuse("rename")

    async def change(self, **changes: Any) -> NoReturn:
        refuse("change")

    async def renew(self) -> None:
        refuse("renew")

    async def ready(self, timeout_sec: float | None = None) -> None:
        refuse("ready")

    async def move_to(self, template: str, /, *, kind: str = "", **values: object) -> None:
        refuse("move_to")

    async def release(self) -> None:
        """There is no lease to give up."""

    async def destroy(self) -> None:
        refuse("destroy")


def refuse(op: str) -> NoReturn:
    raise Refused(
        f"whoever only looks at a box may not {op}", op=op, remedy="attach to the box instead of observing it"
    )


class AdminHandle(BoxHandle):
    """An admin's handle. It takes no lease, so the handles of the session that holds it go on working."""

    async def begin(self) -> Instance:
        self._epoch = self._live.record.epoch  # The box may have changed hands since the last operation.
        return await super().begin()

    def operation(self, op: str, details: Details) -> Operation:
        log("keeper").warning("admin acts past the lease", operation=op, box=self.id, by=self._session)
        return super().operation(op, details)

    async def renew(self) -> None:
        raise LeaseLost("an admin holds no lease that could be renewed", op="renew", remedy="attach to the box instead")

    async def release(self) -> None:
        """Close this handle; the holder keeps the lease."""
        self.close()

    async def destroy(self) -> None:
        log("keeper").warning("admin acts past the lease", operation="destroy", box=self.id, by=self._session)
        await self._keeper.destroy(self.id)
        self.close()
