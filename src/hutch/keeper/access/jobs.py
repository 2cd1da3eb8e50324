"""The handles of jobs and of streamed commands."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from hutch.errors import Invalid
from hutch.keeper.receipts.operations import Operation
from hutch.model.receipts import Details
from hutch.model.results import Chunk, JobInfo, Result
from hutch.providers.base import Command, Instance
from hutch.providers.handles import Process

if TYPE_CHECKING:
    from hutch.keeper.access.files import Guard
    from hutch.keeper.access.handles import BoxHandle


class JobHandle:
    """A job. The handle remembers how far it has read each stream."""

    def __init__(self, box: "Guard", process: Process, notes: tuple[str, ...] = ()) -> None:
        self._box = box
        self._process = process
        self.notes = notes
        """What the caller did not get as requested when the job was started."""
        self._cursors = {"stdout": 0, "stderr": 0}
        self._recorded: set[str] = set()
        """Operations that already have a receipt: keystrokes and polls are too many to have one each."""

    @property
    def id(self) -> str:
        return self._process.id

    @property
    def pid(self) -> int:
        """Its pid in the box, if the handle has started it; else 0."""
        return self._process.pid

    async def info(self) -> JobInfo:
        await self._box.begin()
        try:
            return await self._process.info()
        finally:
            self._box.end()

    async def read(
        self, cursor: int | None = None, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0
    ) -> Chunk:
        if stream not in self._cursors:
            raise Invalid(f"a job has no stream {stream!r}", op="read", remedy="stdout or stderr")
        await self._box.begin()
        try:
            start = self._cursors[stream] if cursor is None else cursor
            chunk = await self._process.read(start, stream=stream, limit=limit, wait=wait)
        finally:
            self._box.end()
        self._cursors[stream] = chunk.cursor
        return chunk

    async def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
        async with self._box.operation("job.follow", {"job": self.id}):
            await self._box.begin()
            try:
                async for piece in self._process.follow(stdout, stderr):
                    yield piece
            finally:
                self._box.end()

    async def write(self, data: bytes | str) -> None:
        async with self._once("job.write"):
            await self._box.begin()
            try:
                await self._process.write(data.encode() if isinstance(data, str) else data)
            finally:
                self._box.end()

    async def close_stdin(self) -> None:
        await self._box.begin()
        try:
            await self._process.close_stdin()
        finally:
            self._box.end()

    async def signal(self, number: int = 15) -> None:
        async with self._box.operation("job.signal", {"job": self.id, "number": number}):
            await self._box.begin()
            try:
                await self._process.signal(number)
            finally:
                self._box.end()

    async def resize(self, rows: int, cols: int) -> None:
        await self._box.begin()
        try:
            await self._process.resize(rows, cols)
        finally:
            self._box.end()

    async def wait(self, timeout_sec: float | None = None) -> Result:
        await self._box.begin()
        try:
            result = await self._process.wait(timeout_sec)
        finally:
            self._box.end()
        async with self._once("job.ended") as operation:
            if operation is not None:
                operation.result = result
        return result

    def _once(self, op: str) -> "AbstractAsyncContextManager[Operation | None]":
        """Begin an operation with a receipt the first time only."""
        if op in self._recorded:
            return nullcontext()
        self._recorded.add(op)
        return self._box.operation(op, {"job": self.id})


class StreamHandle:
    """A command that is read while it runs. Leaving the iteration early kills it; the result is set at the end."""

    def __init__(self, box: "BoxHandle", order: Command, notes: tuple[str, ...]) -> None:
        self._box = box
        self._order = order
        self._notes = notes
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        if self._result is None:
            raise Invalid("the command has not ended: iterate to the end first", op="stream")
        return self._result

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        async with self._box.operation("exec", command_details(self._order)) as operation:
            instance = await self._box.begin()
            process: Process | None = None
            try:
                ends = self._box.check_volumes("exec")
                self._notes += await self._box.step()
                process = await instance.start(self._order)
                if self._order.stdin is None:  # Otherwise it was given at the start and closed.
                    await process.close_stdin()
                async for piece in process.follow():
                    yield piece
                result = operation.result = self._box.explained(await process.wait(), ends)
                self._result = result.but(notes=(*self._notes, *result.notes)) if self._notes else result
            finally:
                self._box.end()
                if process is not None:
                    await asyncio.shield(_clean_up(instance, process, ended=self._result is not None))


async def _clean_up(instance: Instance, process: Process, *, ended: bool) -> None:
    if not ended:
        await process.signal(9)
        await process.wait()
    await instance.forget(process.id)


def command_details(order: Command) -> Details:
    """Return what a receipt says about a command: never its input, nor the values of its environment."""
    command = order.command
    details: Details = {
        "command": command if isinstance(command, str) else shlex.join(command),
        "cwd": order.cwd,
        "user": order.user,
        "timeout_sec": order.timeout_sec,
    }
    if order.env:
        details["env"] = tuple(sorted(order.env))
    if order.stdin is not None:
        details["stdin_bytes"] = len(order.stdin)
    if order.pty:
        details["pty"] = True
    return details
