"""Mutants that give a command something else than was asked."""

import asyncio
import shlex

from hutch.model.results import Cause, Result, Usage, Verdict
from hutch.model.spec import Order
from hutch.providers.base import Command, InstanceRecord
from tests.conformance.mutants.mutant import Mutant, MutantInstance, argv, texts


class JoinsArguments(Mutant):
    """Everything goes through a shell."""

    kills = (
        "exec.argv", "exec.missing_program", "exec.not_executable", "jobs.not_runnable", "jobs.start",
    )  # fmt: skip

    def command(self, command: Command) -> Command:
        return argv(command, " ".join)


class SpeaksAscii(Mutant):
    kills = ("exec.odd_argv",)

    def command(self, command: Command) -> Command:
        return texts(command, lambda text: text.encode("ascii", "replace").decode())


class SplitsStrings(Mutant):
    """A string is no script but a list of words."""

    kills = ("exec.shell",)

    def command(self, command: Command) -> Command:
        return command.but(command=tuple(shlex.split(command.command))) if isinstance(command.command, str) else command


class IgnoresCwd(Mutant):
    kills = ("exec.cwd", "exec.bad_cwd")

    def command(self, command: Command) -> Command:
        return command.but(cwd=None)


class IgnoresWorkdir(Mutant):
    kills = ("exec.workdir",)

    def order(self, order: Order) -> Order:
        return order.but(spec=order.spec.but(workdir="/workspace"))


class DropsEmptyVariables(Mutant):
    kills = ("exec.env",)

    def command(self, command: Command) -> Command:
        return command.but(env={name: value for name, value in command.env.items() if value})


class ShowsSecrets(Mutant):
    """The record shows what the box was given."""

    kills = ("exec.secrets",)

    def order(self, order: Order) -> Order:
        self.secrets = list(order.spec.secrets.values())
        return order

    def record(self, record: InstanceRecord) -> InstanceRecord:
        return record.but(data={**record.data, "secrets": self.secrets})


class StartsWithNothing(Mutant):
    kills = ("exec.usual_env",)

    def command(self, command: Command) -> Command:
        return command.but(env={"HOME": "/nonexistent", **command.env})


class IgnoresUser(Mutant):
    kills = ("exec.unknown_user", "exec.root_user")

    def command(self, command: Command) -> Command:
        return command.but(user=None)


class CutsAtNul(Mutant):
    """As every program in C does that forgets to look."""

    kills = ("exec.nul",)

    def command(self, command: Command) -> Command:
        cut = texts(command, lambda text: text.partition("\0")[0])
        return cut.but(env={name: value.partition("\0")[0] for name, value in command.env.items()})


class CutsLongArguments(Mutant):
    kills = ("exec.long_command",)

    def command(self, command: Command) -> Command:
        return texts(command, lambda text: text[:4096])


class LateTimeouts(Mutant):
    """The command has long ended by itself, or never does."""

    kills = ("exec.timeout", "jobs.job_timeout")
    patience = 1.0

    def command(self, command: Command) -> Command:
        return command.but(timeout_sec=30.0)


class KillsBoxOnTimeout(Mutant):
    """Lesson 16."""

    kills = ("exec.timeout_keeps_box",)

    class Box(MutantInstance):
        async def run(self, command: Command) -> Result:
            result = await super().run(command)
            if result.verdict.cause is Cause.TIMEOUT:
                await self.mutant.destroy(self.record)
            return result


class HidesSignals(Mutant):
    kills = ("exec.signal_death", "jobs.signal")

    def result(self, result: Result) -> Result:
        return result.but(signal=None)


class HasNoExitCodeForSignals(Mutant):
    kills = ("exec.signal_death", "jobs.signal")

    def result(self, result: Result) -> Result:
        return result.but(exit_code=None) if result.signal else result


class IgnoresHangups(Mutant):
    """Started as under nohup."""

    kills = ("exec.default_signals",)
    patience = 1.0

    def command(self, command: Command) -> Command:
        return argv(command, lambda words: ("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words))


class KeepsDirectory(Mutant):
    """One shell for all commands, which stays where the last one went."""

    kills = ("exec.nothing_persists",)
    cwd: str | None = None

    def command(self, command: Command) -> Command:
        command = command.but(cwd=command.cwd or self.cwd)
        if "cd /tmp" in command.command:
            self.cwd = "/tmp"
        return command


class NeverLingers(Mutant):
    kills = ("exec.lingering",)

    def result(self, result: Result) -> Result:
        return result.but(lingering=False)


class GoesOnWhenCancelled(Mutant):
    kills = ("exec.cancel",)
    patience = 1.0

    class Box(MutantInstance):
        async def run(self, command: Command) -> Result:
            return await asyncio.shield(asyncio.ensure_future(super().run(command)))


class MixesUpResults(Mutant):
    """Answers come back in the order of the questions, for all callers."""

    kills = ("exec.many_at_once",)

    class Box(MutantInstance):
        last: Result | None = None

        async def run(self, command: Command) -> Result:
            result = await super().run(command)
            previous, self.last = self.last, result
            return previous or result


class ReportsSuccess(Mutant):
    """Every command ends well."""

    kills = (
        "exec.exit_code", "streams.unread_stdin", "jobs.start", "jobs.several", "isolation.kernel_knobs",
        "isolation.read_only_workspace",
    )  # fmt: skip

    def result(self, result: Result) -> Result:
        return result.but(exit_code=0, signal=None, verdict=Verdict(cause=Cause.OK))


class CountsNothing(Mutant):
    kills = ("exec.usage", "limits.box_usage")

    def result(self, result: Result) -> Result:
        return result.but(usage=Usage())

    class Box(MutantInstance):
        async def usage(self) -> Usage:
            return Usage()
