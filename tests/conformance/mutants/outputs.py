"""Mutants that lose or change what goes in and comes out."""

from hutch.errors import NotFound
from hutch.model.results import JobInfo, JobState, Result
from hutch.providers.base import Command
from hutch.providers.handles import Process
from tests.conformance.mutants.mutant import Mutant, MutantInstance, MutantProcess


class CutsInput(Mutant):
    """Only the first bytes of the input arrive."""

    kills = ("streams.stdin", "jobs.given_stdin", "jobs.much_input")

    def command(self, command: Command) -> Command:
        return command.but(stdin=command.stdin[:4]) if command.stdin else command

    class Job(MutantProcess):
        async def write(self, data: bytes) -> None:
            await super().write(data[:4])


class InputStaysOpen(Mutant):
    """A command without input waits for some."""

    kills = ("streams.no_stdin",)
    patience = 1.0

    class Box(MutantInstance):
        async def run(self, command: Command) -> Result:
            return await (await self.inner.start(command)).wait(10)


class MergesStreams(Mutant):
    kills = ("streams.apart", "streams.much_output")

    def result(self, result: Result) -> Result:
        return result.but(stdout_bytes=result.stdout_bytes + result.stderr_bytes, stderr_bytes=b"")


class DecodesOutput(Mutant):
    kills = ("streams.binary",)

    def result(self, result: Result) -> Result:
        return result.but(stdout_bytes=result.stdout.encode())


class DropsLastByte(Mutant):
    kills = ("streams.whole",)

    def result(self, result: Result) -> Result:
        return result.but(stdout_bytes=result.stdout_bytes[:-1])


class KeepsOnlyTheHead(Mutant):
    kills = ("streams.head_and_tail",)

    def result(self, result: Result) -> Result:
        return result.but(stdout_bytes=result.stdout_bytes[: len(result.stdout_bytes) // 2])


class CountsWhatItKept(Mutant):
    """The total is what was returned, and what was not returned is not counted."""

    kills = ("streams.much_output", "jobs.unread_output")

    def result(self, result: Result) -> Result:
        return result.but(stdout_total=len(result.stdout_bytes), stdout_truncated=False)


class ForgetsJobs(Mutant):
    """A job is known to the handle that started it, and to nobody else."""

    kills = ("streams.middle_by_cursor", "jobs.find", "jobs.outlive_handle")

    class Box(MutantInstance):
        async def job(self, job_id: str) -> Process:
            raise NotFound(f"no job {job_id}")


class KeepsEveryCommand(Mutant):
    """The list grows with every command."""

    kills = ("streams.whole_results_are_let_go",)

    class Box(MutantInstance):
        ran = 0

        async def run(self, command: Command) -> Result:
            self.ran += 1
            return await super().run(command)

        async def jobs(self) -> tuple[JobInfo, ...]:
            kept = JobInfo(id="kept", command=("true",), state=JobState.EXITED, pid=1, started_at=0.0)
            return (*await super().jobs(), *[kept] * self.ran)
