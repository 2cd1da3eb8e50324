"""What a handle does with the states of its box's files: each call is guarded, pinned and has a receipt."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hutch.errors import Conflict, HutchError
from hutch.keeper.receipts.operations import Operation
from hutch.model.boxes import State
from hutch.model.layers import Attempt, Checkpoint, Diff, Merge, Rollback, Way
from hutch.model.receipts import Details
from hutch.model.results import Result

if TYPE_CHECKING:
    from hutch.keeper.access.handles import BoxHandle
    from hutch.keeper.boxes.live import Live
    from hutch.keeper.keeper import Keeper
    from hutch.providers.base import Command


class HandleLayers:
    """The layers of one handle's box."""

    def __init__(self, handle: "BoxHandle", keeper: "Keeper", live: "Live", session: str) -> None:
        self._handle = handle
        self._keeper = keeper
        self._layers = keeper.layers
        self._live = live
        self._session = session

    @asynccontextmanager
    async def _operation(self, op: str, details: Details) -> AsyncIterator[Operation]:
        """Pin the box for one operation. A paused box is not woken: the session that paused it wants it so."""
        async with self._handle.operation(op, details) as operation:
            if self._live.record.state is State.PAUSED:
                raise Conflict(f"box {self._handle.id} is paused", op=op, remedy="resume it first")
            await self._handle.begin()
            try:
                yield operation
            except HutchError as error:
                await self._handle.failed(error)
                raise
            finally:
                self._handle.end()

    async def checkpoint(self, name: str, *, kill: bool) -> Checkpoint:
        async with self._operation("checkpoint", {"name": name, "kill": kill}) as operation:
            made = await self._layers.checkpoint(self._live, name, kill=kill)
            operation.note(checkpoint=made.id, way=made.way.value)
            return made

    async def delete(self, checkpoint: str) -> None:
        async with self._operation("checkpoint.delete", {"checkpoint": checkpoint}):
            await self._layers.delete(self._live, checkpoint)

    async def rollback(self, checkpoint: str, *, kill: bool) -> Rollback:
        async with self._operation("rollback", {"checkpoint": checkpoint, "kill": kill}):
            return await self._layers.rollback(self._live, checkpoint, kill=kill)

    async def undo(self, steps: int, *, kill: bool) -> Rollback:
        async with self._operation("undo", {"steps": steps, "kill": kill}) as operation:
            done = await self._layers.undo(self._live, steps, kill=kill)
            operation.note(checkpoint=done.checkpoint)
            return done

    async def diff(self, start: str, end: str, *, text: bool) -> Diff:
        async with self._operation("diff", {"start": start, "end": end}) as operation:
            found = await self._layers.diff(self._live, start, end, text=text)
            operation.note(changes=len(found.changes))
            return found

    async def write_layer(self, path: str) -> None:
        async with self._operation("image.from_box", {}):
            await self._layers.write_layer(self._live, path)

    async def fork(self, count: int, checkpoint: str, *, kernel: bool) -> "tuple[BoxHandle, ...]":
        from hutch.keeper.access.handles import BoxHandle

        details: Details = {"count": count, "checkpoint": checkpoint, "kernel": kernel}
        async with self._operation("fork", details) as operation:
            made = await self._layers.fork(self._live, self._session, count, checkpoint, kernel=kernel)
            operation.note(forks=", ".join(fork.record.id for fork in made))
        return tuple(BoxHandle(self._keeper, fork, self._session) for fork in made)

    async def merge(self, fork_id: str) -> Merge:
        async with self._operation("merge", {"fork": fork_id}) as operation:
            fork = await self._keeper.live(fork_id)
            if fork.record.owner != self._live.record.owner or fork.held_by_another(self._session):
                raise Conflict(f"box {fork_id} belongs to somebody else", op="merge", remedy="merge a fork of yours")
            done = await self._layers.merge(self._live, fork)
            operation.note(paths=len(done.paths))
            return done

    async def attempt(self, command: "Command", check: "Command | None", *, kill: bool) -> Attempt:
        """Run a command, and a check after it; what they changed stays only if both succeed."""
        async with self._operation("attempt", {"kill": kill}) as operation:
            before = await self._layers.checkpoint(self._live, kill=kill)
            if before.way is Way.COPY:
                await self._layers.delete(self._live, before.id)
                raise Conflict(
                    f"box {self._handle.id} is working, and a failed attempt could not be undone",
                    op="attempt", remedy="wait for its jobs, end them, or pass kill=True",
                )  # fmt: skip
            instance = self._live.running
            try:
                result = await instance.run(command)
                if _succeeded(result) and check is not None:
                    result = await instance.run(check)
                found = await self._layers.diff(self._live, before.id, "", text=False)
            except BaseException:
                await self._layers.rollback(self._live, before.id, kill=True)
                raise
            kept = _succeeded(result)
            if not kept:
                await self._layers.rollback(self._live, before.id, kill=True)
            operation.result = result
            operation.note(kept=kept, checkpoint=before.id)
            return Attempt(result=result, kept=kept, diff=found, checkpoint=before.id)

    async def step(self) -> tuple[str, ...]:
        """Make the automatic checkpoint before a command; return notes about it for the command's result.

        A box whose disk is full must still run the command that makes room, so a failure is a note.
        """
        try:
            made = await self._layers.checkpoint(self._live, automatic=True)
        except HutchError as error:
            return (f"this command cannot be undone: {error}",)
        return ("its checkpoint was made by copying, because processes run",) if made.way is Way.COPY else ()


def _succeeded(result: Result) -> bool:
    return result.exit_code == 0
