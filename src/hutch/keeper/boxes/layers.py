"""Checkpoints, rollbacks, comparisons, forks and merges of the keeper's boxes.

The engine freezes states of files and knows them by a text (`providers.layers`); the record of a box says which of them
are checkpoints, which one a fork began with, and so which ones the engine must keep. A record is written after the
engine has done its part. A keeper that dies in between leaves a box with one state more than its record knows, which
the next operation drops.
"""

import asyncio
import os
import time
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from hutch.errors import Conflict, HutchError, Invalid, NotFound, QuotaExceeded
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord, ForkOrigin, ForkRecord, StoredCheckpoint
from hutch.keeper.locks import KeyedLocks, run_uncancelled
from hutch.model.boxes import EventCause, State
from hutch.model.ids import is_name
from hutch.model.layers import Checkpoint, Diff, Merge, Rollback, Way
from hutch.model.spec import EffectiveSpec
from hutch.policy import rights
from hutch.policy.rights import Action
from hutch.providers.layers import Frozen, Layers

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper
    from hutch.kernels.table import Copies, KernelTable

MAX_FORKS = 64
"""Most forks of one call."""
_FORKS_AT_ONCE = 8


class LayerKeeper:
    """Keeps the states of the boxes' files. Operations on one box take turns."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper
        self._states = keeper.states
        self._store = keeper.store
        self._most = keeper.config.checkpoints_max
        self._days = keeper.config.checkpoints_days
        self._most_bytes = keeper.config.checkpoints_mb << 20
        self._locks = KeyedLocks()

    # --- checkpoints ------------------------------------------------------------------------------------------

    def checkpoints(self, live: Live) -> tuple[Checkpoint, ...]:
        """Return the checkpoints of a box, oldest first."""
        return tuple(each.checkpoint for each in live.record.checkpoints)

    async def checkpoint(
        self, live: Live, name: str = "", *, kill: bool = False, automatic: bool = False
    ) -> Checkpoint:  # fmt: skip
        """Freeze the box's files as a checkpoint."""
        _check_name(live.record, name)
        async with self._locks.lock(live.record.id):
            self._check_room(live.record, automatic)
            if not automatic:
                await self._check_size(live)
            return (await run_uncancelled(self._checkpoint(live, name, kill, automatic))).checkpoint

    async def _checkpoint(self, live: Live, name: str, kill: bool, automatic: bool) -> StoredCheckpoint:
        kept = self._kept_checkpoints(live.record)
        layers = self._layers(live)
        is_large = bool(self._most_bytes) and sum(await _sizes(layers, kept, "")) > self._most_bytes
        frozen = await layers.freeze(await self._keep(live, kept), kill=kill, squash=is_large)
        made = self._stored(live.record, frozen, name, automatic)
        # Copied around processes, it has all layers of the earlier ones, so that dropping them would free nothing.
        dropped = await self._too_large(layers, kept, frozen.state) if is_large and frozen.way is not Way.COPY else ()
        kept = tuple(each for each in kept if each not in dropped)
        await self._write(live, f"checkpoint {name or made.checkpoint.id}", checkpoints=(*kept, made))
        if dropped:
            await layers.drop(await self._keep(live))
        return made

    def _stored(self, record: BoxRecord, frozen: Frozen, name: str, automatic: bool) -> StoredCheckpoint:
        checkpoint = Checkpoint(
            id=f"cp-{os.urandom(5).hex()}", box_id=record.id, name=name, created_at=time.time(), way=frozen.way,
            automatic=automatic, left_out=left_out(record.spec),
        )  # fmt: skip
        return StoredCheckpoint(checkpoint=checkpoint, state=frozen.state)

    async def delete(self, live: Live, wanted: str) -> None:
        """Forget a checkpoint, and drop what only it needs."""
        async with self._locks.lock(live.record.id):
            found = _find(live.record, wanted)
            kept = tuple(each for each in live.record.checkpoints if each is not found)
            await self._write(live, f"deleted checkpoint {found.checkpoint.id}", checkpoints=kept)
            await self._layers(live).drop(await self._keep(live, kept))

    async def rollback(self, live: Live, wanted: str, *, kill: bool = False) -> Rollback:
        """Give the box the files of a checkpoint; the checkpoints stay."""
        async with self._locks.lock(live.record.id):
            found = _find(live.record, wanted)
            return await run_uncancelled(self._go_back(live, found, live.record.checkpoints, kill))

    async def undo(self, live: Live, steps: int, *, kill: bool = False) -> Rollback:
        """Go back to before the last commands, by their automatic checkpoints, which are used up."""
        if steps < 1:
            raise Invalid(f"{steps} steps cannot be undone", op="undo", remedy="give a number of at least 1")
        async with self._locks.lock(live.record.id):
            automatic = [each for each in live.record.checkpoints if each.checkpoint.automatic]
            if len(automatic) < steps:
                raise Conflict(
                    f"box {live.record.id} has {len(automatic)} steps to undo, not {steps}",
                    op="undo",
                    remedy="create boxes with auto_checkpoint = exec, or roll back to a checkpoint by name",
                )
            used = automatic[-steps:]
            kept = tuple(each for each in live.record.checkpoints if each not in used)
            return await run_uncancelled(self._go_back(live, used[0], kept, kill))

    async def _go_back(
        self, live: Live, found: StoredCheckpoint, kept: tuple[StoredCheckpoint, ...], kill: bool
    ) -> Rollback:
        await self._layers(live).go_back(found.state, await self._keep(live, kept), kill=kill)
        await self._write(live, f"rolled back to {found.checkpoint.name or found.checkpoint.id}", checkpoints=kept)
        return Rollback(box_id=live.record.id, checkpoint=found.checkpoint.id, left_out=left_out(live.record.spec))

    async def diff(self, live: Live, start: str, end: str, *, text: bool) -> Diff:
        """Compare two checkpoints; "" is the newest checkpoint as a start, and the present state as an end."""
        async with self._locks.lock(live.record.id):
            if not start and not live.record.checkpoints:
                raise NotFound(f"box {live.record.id} has no checkpoint to compare with", op="diff", remedy="make one")
            first = _find(live.record, start) if start else live.record.checkpoints[-1]
            last = _find(live.record, end) if end else None
            changes, truncated = await self._layers(live).compare(first.state, last.state if last else "", text=text)
        return Diff(
            box_id=live.record.id, start=first.checkpoint.id, end=last.checkpoint.id if last else "", changes=changes,
            truncated=truncated, left_out=left_out(live.record.spec),
        )  # fmt: skip

    async def write_layer(self, live: Live, path: str) -> None:
        """Write what the box has changed over its image to a file, as the tar of one layer of an OCI image."""
        async with self._locks.lock(live.record.id):
            layers = self._layers(live)
            frozen = await run_uncancelled(layers.freeze(await self._keep(live)))
            await layers.write_layer(frozen.state, path)

    # --- forks ------------------------------------------------------------------------------------------------

    async def fork(
        self, live: Live, session: str, count: int, wanted: str, *, kernel: bool = False
    ) -> tuple[Live, ...]:  # fmt: skip
        """Make boxes that begin with a checkpoint of this one, or with its present files, leased to `session`.

        With `kernel` they also have its Python kernels with their state. All of them or none.
        """
        rights.require(rights.current(), Action.CREATE)
        config = self._keeper.config
        rights.check_copy(live.record.spec, rights.current(), config.profile, config.profiles)
        if not 1 <= count <= MAX_FORKS:
            raise Invalid(f"{count} forks cannot be made at once", op="fork", remedy=f"ask for 1 to {MAX_FORKS}")
        if kernel and wanted:
            raise Invalid(
                "a kernel can be forked with the present files only, not with those of a checkpoint", op="fork",
                remedy="leave out the checkpoint, or the kernel",
            )  # fmt: skip
        copying = self._copies(live) if kernel else nullcontext()
        async with self._locks.lock(live.record.id), copying as copies:
            found = _find(live.record, wanted) if wanted else None
            freezing = asyncio.ensure_future(run_uncancelled(self._state_to_fork(live, found)))
            made: list[Live] = []
            turns = asyncio.Semaphore(_FORKS_AT_ONCE)

            async def one() -> None:
                async with turns:
                    lease = self._keeper.new_lease(session)
                    made.append(await self._keeper.creator.fork(live, _shielded(freezing), lease))

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(count):
                        group.create_task(one())
                if copies is not None:
                    await copies.give([(self._kernels(fork), fork.running) for fork in made])
                forks = await self._forks(live, made, await freezing)
                await self._write(live, f"forked {count} times", forks=forks)
            except BaseException as error:
                await asyncio.wait({freezing})
                for fork in made:
                    await run_uncancelled(_ignoring(self._destroy(fork)))
                if not freezing.cancelled() and (reason := freezing.exception()) is not None:
                    raise reason from error
                if isinstance(error, BaseExceptionGroup):
                    raise error.exceptions[0] from error
                raise
        await self._register_ancestors(live, made)
        for fork in made:
            await self._keeper.skill_mounts.ensure_shown(fork)
            await self._keeper.hooks.run_created(fork)
        return tuple(made)

    def _kernels(self, live: Live) -> "KernelTable":
        from hutch.keeper.access.code import kernels_of  # Most keepers run no code.

        return kernels_of(live, self._keeper.engines.templates)

    def _copies(self, live: Live) -> "AbstractAsyncContextManager[Copies]":
        return self._kernels(live).copies(live.running)

    async def _state_to_fork(self, live: Live, found: StoredCheckpoint | None) -> str:
        if found is not None:
            return found.state
        return (await self._layers(live).freeze(await self._keep(live), to_fork=True)).state

    def _destroy(self, fork: Live) -> Awaitable[object]:
        return self._keeper.teardown.destroy(fork, "another fork failed", EventCause.CREATION_FAILED)

    async def _forks(self, live: Live, made: list[Live], state: str) -> tuple[ForkRecord, ...]:
        """The forks that still live, with the new ones."""
        living = [each for each in live.record.forks if await self._store.get(each.box_id) is not None]
        return (*living, *(ForkRecord(box_id=fork.record.id, state=state) for fork in made))

    async def _register_ancestors(self, live: Live, made: list[Live]) -> None:
        """Have the boxes from which this one descends keep the layers that the new forks use too."""
        # Only live boxes of this keeper hold layers that can be dropped; those of a destroyed box stay as they are.
        origin, seen = live.record.origin, {live.record.id}
        while origin is not None and origin.box_id not in seen:
            seen.add(origin.box_id)
            above = self._keeper.held(origin.box_id)
            if above is None:
                return
            await self._write(above, "", forks=await self._forks(above, made, origin.state))
            origin = above.record.origin

    async def merge(self, live: Live, fork: Live) -> Merge:
        """Bring what a fork changed into the box that it was forked from, all or nothing."""
        origin = fork.record.origin
        if origin is None or origin.box_id != live.record.id:
            raise Conflict(
                f"box {fork.record.id} is no fork of box {live.record.id}",
                op="merge", remedy="merge a box that `fork` of this one has made",
            )  # fmt: skip
        async with self._locks.lock(live.record.id), self._locks.lock(fork.record.id):
            self._check_room(live.record, automatic=False)
            return await run_uncancelled(self._merge(live, fork, origin))

    async def _merge(self, live: Live, fork: Live, origin: ForkOrigin) -> Merge:
        theirs = await self._layers(fork).freeze(await self._keep(fork))
        kept = self._kept_checkpoints(live.record)
        frozen = await self._layers(live).freeze(await self._keep(live, kept))
        if frozen.way is Way.COPY:
            raise Conflict(
                f"box {live.record.id} is working", op="merge", remedy="wait for its jobs, or end them, and merge again"
            )
        before = self._stored(live.record, frozen, "", automatic=False)
        keep = (*await self._keep(live, kept), frozen.state)
        paths = await self._layers(live).merge(fork.running, origin.state, origin.start, theirs.state, keep)
        await self._write(live, f"merged {fork.record.id}: {len(paths)} paths", checkpoints=(*kept, before))
        return Merge(box_id=live.record.id, fork=fork.record.id, paths=paths, checkpoint=before.checkpoint.id)

    # --- records ----------------------------------------------------------------------------------------------

    def _layers(self, live: Live) -> Layers:
        """The engine's part, for a box that runs."""
        self._keeper.check_owned(live)
        if live.record.state is not State.RUNNING:
            raise Conflict(
                f"box {live.record.id} is {live.record.state}", details={"state": str(live.record.state)},
                remedy="resume it first" if live.record.state is State.PAUSED else None,
            )  # fmt: skip
        return live.running.layers

    async def _keep(self, live: Live, checkpoints: tuple[StoredCheckpoint, ...] | None = None) -> tuple[str, ...]:
        """The states that the engine must not drop: of these checkpoints, and of forks that still live."""
        stored = live.record.checkpoints if checkpoints is None else checkpoints
        kept = [each.state for each in stored]
        if live.record.origin is not None:
            kept.append(live.record.origin.start)
        for fork in live.record.forks:
            if await self._store.get(fork.box_id) is not None:
                kept.append(fork.state)
        return tuple(dict.fromkeys(kept))

    def _check_room(self, record: BoxRecord, automatic: bool) -> None:
        named = [each for each in record.checkpoints if not each.checkpoint.automatic]
        if not automatic and len(self._unexpired(tuple(named))) >= self._most:
            raise QuotaExceeded(
                f"box {record.id} has {len(named)} checkpoints, the most that are kept",
                op="checkpoint", details={"limit": self._most, "used": len(named)},
                remedy="delete some of them, or raise checkpoints_max", retryable=False,
            )  # fmt: skip

    async def _check_size(self, live: Live) -> None:
        named = tuple(each for each in self._unexpired(live.record.checkpoints) if not each.checkpoint.automatic)
        if not self._most_bytes or not named:
            return
        used = sum(await _sizes(self._layers(live), named))
        if used > self._most_bytes:
            raise QuotaExceeded(
                f"the named checkpoints of box {live.record.id} have {used >> 20} MB of files, more than are kept",
                op="checkpoint", details={"limit": self._most_bytes >> 20, "used": used >> 20},
                remedy="delete some of them, or raise checkpoints_mb", retryable=False,
            )  # fmt: skip

    async def _too_large(
        self, layers: Layers, kept: tuple[StoredCheckpoint, ...], newest: str
    ) -> tuple[StoredCheckpoint, ...]:
        """The oldest steps that must go so that the files of all checkpoints are within their limit."""
        first, *sizes = await _sizes(layers, kept, newest)
        total, dropped = first + sum(sizes), []
        for each, size in zip(kept, reversed(sizes), strict=True):
            if total <= self._most_bytes:
                break
            if each.checkpoint.automatic:
                dropped.append(each)
                total -= size
        return tuple(dropped)

    def _unexpired(self, checkpoints: tuple[StoredCheckpoint, ...]) -> tuple[StoredCheckpoint, ...]:
        if not self._days:
            return checkpoints
        oldest = time.time() - self._days * 86_400
        return tuple(each for each in checkpoints if each.checkpoint.created_at >= oldest)

    def _kept_checkpoints(self, record: BoxRecord) -> tuple[StoredCheckpoint, ...]:
        """The checkpoints that stay beside a new one: none is too old, and the oldest steps go first."""
        kept = list(self._unexpired(record.checkpoints))
        while len(kept) >= self._most:
            step = next((each for each in kept if each.checkpoint.automatic), None)
            if step is None:
                break
            kept.remove(step)
        return tuple(kept)

    async def _write(self, live: Live, reason: str, **fields: object) -> None:
        async with live.state_lock:
            kind = "layers" if reason else ""
            await self._states.update(live.record, into=live, kind=kind, reason=reason, **fields)


def _shielded(work: "asyncio.Task[str]") -> "asyncio.Future[str]":
    """Return a future of its result for one of several waiters, of whom none may cancel it. Some may not ask."""
    shielded = asyncio.shield(work)
    shielded.add_done_callback(lambda done: done.cancelled() or done.exception())
    return shielded


async def _ignoring(work: Awaitable[object]) -> None:
    """Finish a clean-up whose failure must not hide why it is needed; the box's own clock ends what is left."""
    try:
        await work
    except HutchError:
        return


def left_out(spec: EffectiveSpec) -> tuple[str, ...]:
    """The directories of a box that lie on the host or in a volume."""
    workspace = ("/workspace",) if spec.workspace.source != "own" else ()
    return (*workspace, *(mount.target for mount in spec.mounts if mount.mode != "none"))


async def _sizes(layers: Layers, kept: tuple[StoredCheckpoint, ...], *newer: str) -> tuple[int, ...]:
    """The bytes of newer states, and what each of these checkpoints takes beside all that are newer."""
    return await layers.sizes((*newer, *(each.state for each in reversed(kept))))


def _check_name(record: BoxRecord, name: str) -> None:
    if not name:
        return
    if not is_name(name):
        raise Invalid(f"a checkpoint cannot be named {name[:80]!r}", remedy="use letters, digits and _ . - only")
    if any(name in (each.checkpoint.name, each.checkpoint.id) for each in record.checkpoints):
        raise Conflict(f"box {record.id} has a checkpoint {name} already", remedy="delete it, or take another name")


def _find(record: BoxRecord, wanted: str) -> StoredCheckpoint:
    for each in reversed(record.checkpoints):
        if wanted in (each.checkpoint.id, each.checkpoint.name) and wanted:
            return each
    raise NotFound(
        f"box {record.id} has no checkpoint {wanted[:80]!r}", remedy="`hutch box checkpoints` lists those it has"
    )
