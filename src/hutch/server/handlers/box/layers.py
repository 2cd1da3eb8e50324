"""States of a box's files over HTTP: checkpoints, rollback, undo, diff, fork, merge, attempt."""

from typing import Annotated, ClassVar

import msgspec

from hutch.model.layers import Attempt, Checkpoint, Diff, Forks
from hutch.model.record import Record
from hutch.server.access import find, using
from hutch.server.handlers.box.commands import Seconds
from hutch.server.request import Call, Reply
from hutch.server.wire import ExecResult, result_to_wire

Name = Annotated[str, msgspec.Meta(max_length=100)]


class CheckpointBody(Record, frozen=True, kw_only=True):
    name: Name = ""
    kill: bool = False
    """End the box's processes first, so that nothing has to be copied."""


class CheckpointList(Record, frozen=True, kw_only=True):
    checkpoints: tuple[Checkpoint, ...]
    """Oldest first."""


class RollbackBody(Record, frozen=True, kw_only=True):
    checkpoint: Name
    """Its id or its name."""
    kill: bool = False
    """End the box's processes first; otherwise `conflict` while some run."""


class UndoBody(Record, frozen=True, kw_only=True):
    steps: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    kill: bool = False


class DiffQuery(Record, frozen=True, kw_only=True):
    start: Name = ""
    """A checkpoint; empty is the newest."""
    end: Name = ""
    """A checkpoint; empty is the present state."""
    text: bool = False
    """Add a unified diff of each text file."""


class ForkBody(Record, frozen=True, kw_only=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    checkpoint: Name = ""
    """The checkpoint that the forks begin with; empty is the present state."""
    kernel: bool = False
    """Whether the forks also get the box's Python kernels with their variables."""


class MergeBody(Record, frozen=True, kw_only=True):
    fork: Name
    """The id of a box that was forked from this one."""


class AttemptBody(Record, frozen=True, kw_only=True):
    odd_names: ClassVar[bool] = True

    command: str | tuple[str, ...]
    check: str | tuple[str, ...] | None = None
    """A command that must succeed too, such as the tests."""
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    timeout: Seconds | None = None
    user: str | None = None
    kill: bool = False


class AttemptView(Record, frozen=True, kw_only=True):
    """A command whose changes were kept if it succeeded, and undone if not."""

    result: ExecResult
    kept: bool
    diff: Diff
    checkpoint: str


async def list_checkpoints(call: Call) -> Reply:
    """List the checkpoints of a box, oldest first."""
    live = await find(call)
    return Reply(CheckpointList(checkpoints=call.keeper.layers.checkpoints(live)))


async def create(call: Call, body: CheckpointBody) -> Reply:
    """Freeze the box's files as a checkpoint. `way` says whether that was a switch of layers or a copy."""

    async def work() -> Reply:
        async with using(call) as box:
            return Reply(await box.checkpoint(body.name, kill=body.kill), 201)

    return await call.service.operations.run_once(call, work())


async def delete(call: Call) -> Reply:
    """Forget a checkpoint, by its id or name, and free what only it needs."""
    async with using(call) as box:
        await box.delete_checkpoint(call.params["checkpoint"])
    return Reply(status=204)


async def rollback(call: Call, body: RollbackBody) -> Reply:
    """Give the box the files of a checkpoint. Checkpoints stay."""

    async def work() -> Reply:
        async with using(call) as box:
            return Reply(await box.rollback(body.checkpoint, kill=body.kill))

    return await call.service.operations.run_once(call, work())


async def undo(call: Call, body: UndoBody) -> Reply:
    """Undo the last commands of a box with `auto_checkpoint` exec."""

    async def work() -> Reply:
        async with using(call) as box:
            return Reply(await box.undo(body.steps, kill=body.kill))

    return await call.service.operations.run_once(call, work())


async def diff(call: Call, query: DiffQuery) -> Reply:
    """List what differs between two states of the box's files, with kind and size."""
    async with using(call) as box:
        return Reply(await box.diff(query.start, query.end, text=query.text))


async def fork(call: Call, body: ForkBody) -> Reply:
    """Make boxes that begin with this one's files and share them until they change; all of them or none."""

    async def work() -> Reply:
        async with using(call) as box:
            made = await box.fork(body.count, checkpoint=body.checkpoint, kernel=body.kernel)
            try:
                return Reply(Forks(boxes=tuple([await each.info() for each in made])), 201)
            finally:
                for each in made:
                    each.close()

    return await call.service.operations.run_once(call, work())


async def merge(call: Call, body: MergeBody) -> Reply:
    """Bring what a fork changed into this box, all or nothing; `conflict` lists in its details what both changed."""

    async def work() -> Reply:
        async with using(call) as box:
            return Reply(await box.merge(body.fork))

    return await call.service.operations.run_once(call, work())


async def attempt(call: Call, body: AttemptBody) -> Reply:
    """Run a command, and a check after it; what they changed stays only if both succeed."""

    async def work() -> Reply:
        async with using(call) as box:
            done = await box.attempt(
                body.command, check=body.check, cwd=body.cwd, env=body.env, timeout=body.timeout, user=body.user,
                kill=body.kill,
            )  # fmt: skip
        return Reply(_attempt_to_wire(done))

    return await call.service.operations.run_once(call, work())


def _attempt_to_wire(done: Attempt) -> dict[str, object]:
    return {
        "result": result_to_wire(done.result), "kept": done.kept, "diff": msgspec.to_builtins(done.diff),
        "checkpoint": done.checkpoint,
    }  # fmt: skip
