"""Mutants whose jobs are not quite resources."""

import signal
from collections.abc import AsyncIterator

from hutch.errors import Conflict, Timeout, Unsupported
from hutch.model.results import Chunk, JobInfo, JobState, Result
from hutch.providers.base import Command
from tests.conformance.mutants.mutant import Mutant, MutantInstance, MutantProcess


class SaysNothingOfTheEnd(Mutant):
    kills = ("jobs.info_after_end",)

    class Job(MutantProcess):
        async def info(self) -> JobInfo:
            return (await super().info()).but(verdict=None, usage=None)


class UsesUpWhatItReads(Mutant):
    kills = ("jobs.cursor",)

    class Job(MutantProcess):
        used = 0

        async def read(
            self, cursor: int = 0, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0
        ) -> Chunk:
            chunk = await super().read(max(cursor, self.used), stream=stream, limit=limit, wait=wait)
            self.used = chunk.cursor
            return chunk


class NeverWaits(Mutant):
    kills = ("jobs.read_waits",)

    class Job(MutantProcess):
        async def read(
            self, cursor: int = 0, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0
        ) -> Chunk:
            return await super().read(cursor, stream=stream, limit=limit)


class EndsTooEarly(Mutant):
    """No data now is taken for the end."""

    kills = ("jobs.eof", "jobs.read_waits")

    class Job(MutantProcess):
        async def read(
            self, cursor: int = 0, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0
        ) -> Chunk:
            chunk = await super().read(cursor, stream=stream, limit=limit, wait=wait)
            return chunk.but(eof=chunk.eof or not chunk.data)


class ReadsOneStream(Mutant):
    kills = ("jobs.streams_apart",)

    class Job(MutantProcess):
        async def read(
            self, cursor: int = 0, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0
        ) -> Chunk:
            return await super().read(cursor, limit=limit, wait=wait)


class WritesTwice(Mutant):
    """A retry after a write that had worked."""

    kills = ("jobs.write",)

    class Job(MutantProcess):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            await super().write(data)


class AcceptsLateInput(Mutant):
    kills = ("jobs.close_stdin", "jobs.write_after_end")

    class Job(MutantProcess):
        async def write(self, data: bytes) -> None:
            try:
                await super().write(data)
            except Conflict:
                return


class IgnoresSignals(Mutant):
    kills = ("jobs.signal", "limits.pids_recover")
    patience = 1.0

    class Job(MutantProcess):
        async def signal(self, number: int) -> None:
            return


class RefusesLateSignals(Mutant):
    kills = ("jobs.signal_after_end",)

    class Job(MutantProcess):
        async def signal(self, number: int) -> None:
            if (await self.info()).state is JobState.EXITED:
                raise Conflict("it has ended")
            await super().signal(number)


class KillsWhenWaitingEnds(Mutant):
    kills = ("jobs.wait_timeout",)

    class Job(MutantProcess):
        async def wait(self, timeout_sec: float | None = None) -> Result:
            try:
                return await super().wait(timeout_sec)
            except Timeout:
                await self.signal(signal.SIGKILL)
                await super().wait(20)
                raise


class ListsRunningJobs(Mutant):
    """What has ended is not listed, though its output is there."""

    kills = ("jobs.list",)

    class Box(MutantInstance):
        async def jobs(self) -> tuple[JobInfo, ...]:
            return tuple(info for info in await super().jobs() if info.state is JobState.RUNNING)


class ForgetsNothing(Mutant):
    kills = ("jobs.forget",)

    class Box(MutantInstance):
        async def forget(self, job_id: str) -> None:
            return


class FollowsOneStream(Mutant):
    kills = ("jobs.follow",)

    class Job(MutantProcess):
        async def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
            async for stream, data in self.inner.follow(stdout, stderr):
                if stream == "stdout":
                    yield stream, data


class FollowsAfterwards(Mutant):
    """Output is handed on when there will be no more of it."""

    kills = ("jobs.follow_live",)
    patience = 1.0

    class Job(MutantProcess):
        async def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
            for piece in [piece async for piece in self.inner.follow(stdout, stderr)]:
                yield piece


class DropsForSlowReaders(Mutant):
    kills = ("jobs.follow_everything",)

    class Job(MutantProcess):
        async def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
            size = 0
            async for stream, data in self.inner.follow(stdout, stderr):
                size += len(data)
                if size < 4_000_000:
                    yield stream, data


class ResizesAnything(Mutant):
    kills = ("jobs.resize_without_terminal",)

    class Job(MutantProcess):
        async def resize(self, rows: int, cols: int) -> None:
            try:
                await super().resize(rows, cols)
            except Unsupported:
                return


class HasNoTerminal(Mutant):
    """A pipe in place of a terminal."""

    kills = ("terminal.is_terminal",)

    def command(self, command: Command) -> Command:
        return command.but(pty=False)


class WrongSize(Mutant):
    kills = ("terminal.size", "terminal.resize")

    def command(self, command: Command) -> Command:
        return command.but(rows=command.cols, cols=command.rows)

    class Job(MutantProcess):
        async def resize(self, rows: int, cols: int) -> None:
            await super().resize(cols, rows)


class SwallowsControl(Mutant):
    """Bytes that are no text do not reach the terminal."""

    kills = ("terminal.interrupt", "terminal.echo")
    patience = 1.5

    class Job(MutantProcess):
        async def write(self, data: bytes) -> None:
            await super().write(data.translate(None, b"\x03\x04"))


class KeepsInputOpen(Mutant):
    kills = ("terminal.hangup", "jobs.eof")
    patience = 1.5

    class Job(MutantProcess):
        async def close_stdin(self) -> None:
            return
