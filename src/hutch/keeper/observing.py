"""Looking at a box without its lease: nothing is pinned, nothing is woken, nothing lives longer for it (P8)."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hutch.errors import Conflict, HutchError, Refused
from hutch.keeper.files import GuardedFiles
from hutch.keeper.handles import JobHandle
from hutch.keeper.keeper import Keeper
from hutch.keeper.live import Live
from hutch.keeper.showing import shown
from hutch.keeper.states import in_words
from hutch.model.boxes import BoxInfo
from hutch.model.files import Edited, FileInfo
from hutch.model.results import JobInfo, Usage
from hutch.model.spec import Adjustment, EffectiveSpec
from hutch.model.state import State
from hutch.providers.base import Instance


class Observing:
    """The guard of an observer."""

    def __init__(self, keeper: Keeper, live: Live) -> None:
        self._keeper = keeper
        self._live = live

    async def begin(self) -> Instance:
        """Only a running box can be looked into: a paused one would have to be woken."""
        self._keeper.check_ours(self._live)
        if self._live.record.state is not State.RUNNING:
            raise Conflict(in_words(self._live.record), details={"state": str(self._live.record.state)})
        return self._live.running

    def end(self) -> None:
        """Nothing was pinned."""

    async def failed(self, error: HutchError) -> None:
        """Whoever works with the box has it looked after."""


class ObservedFiles(GuardedFiles):
    """Files that can be read."""

    async def write(
        self, path: str, data: bytes | str | AsyncIterator[bytes], *, append: bool = False, mode: int | None = None,
        sync: bool = False, parents: bool = True,
    ) -> FileInfo:  # fmt: skip
        _refuse("write")

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        _refuse("edit")

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        _refuse("mkdir")

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        _refuse("move")

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        _refuse("remove")

    async def copy_in(self, source: str | Path, target: str) -> int:
        _refuse("copy_in")


class ObservedJob(JobHandle):
    """A job that can be read."""

    async def write(self, data: bytes | str) -> None:
        _refuse("write")

    async def close_stdin(self) -> None:
        _refuse("close_stdin")

    async def signal(self, number: int = 15) -> None:
        _refuse("signal")

    async def resize(self, rows: int, cols: int) -> None:
        _refuse("resize")


class ObservedBox:
    """The `Box` protocol for whoever only looks."""

    notes: tuple[str, ...] = ()

    def __init__(self, keeper: Keeper, live: Live) -> None:
        self._live = live
        self._guard = Observing(keeper, live)
        self.files = ObservedFiles(self._guard)

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

    async def usage(self) -> Usage:
        return await (await self._guard.begin()).usage()

    async def info(self) -> BoxInfo:
        return shown(self._live.record, self._live)

    async def state(self) -> State:
        return self._live.record.state

    async def exec(self, command: str | Sequence[str], **options: Any) -> NoReturn:
        _refuse("exec")

    def stream(self, command: str | Sequence[str], **options: Any) -> NoReturn:
        _refuse("stream")

    async def start(self, command: str | Sequence[str], **options: Any) -> NoReturn:
        _refuse("start")

    async def forget(self, job_id: str) -> None:
        _refuse("forget")

    async def pause(self) -> None:
        _refuse("pause")

    async def resume(self) -> None:
        _refuse("resume")

    async def stop(self) -> None:
        _refuse("stop")

    async def rename(self, name: str) -> None:
        _refuse("rename")

    async def change(self, **changes: Any) -> NoReturn:
        _refuse("change")

    async def renew(self) -> None:
        _refuse("renew")

    async def release(self) -> None:
        """There is no lease to give up."""

    async def destroy(self) -> None:
        _refuse("destroy")


def _refuse(op: str) -> NoReturn:
    raise Refused(
        f"whoever only looks at a box may not {op}", op=op, remedy="attach to the box instead of observing it"
    )
