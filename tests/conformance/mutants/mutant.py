"""The native provider behind hooks: a mutant overrides one of them, and names the checks that have to notice."""

from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any, ClassVar

from hutch.api import Files
from hutch.model.boxes import PortInfo
from hutch.model.capabilities import Capabilities
from hutch.model.limits import Limits
from hutch.model.results import Chunk, JobInfo, Result, Usage
from hutch.model.spec import EffectiveSpec, Order
from hutch.providers.base import Command, Instance, InstanceRecord, Provider
from hutch.providers.handles import PortStream, Process


class MutantFiles:
    """The files of a box; what a mutant does not override is the native one."""

    def __init__(self, inner: Files, box: Instance) -> None:
        self.inner = inner
        self.box = box
        """The native box itself, for mutants that do with a command what should be a file operation."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class MutantProcess(Process):
    """A job of a box."""

    def __init__(self, inner: Process, mutant: "Mutant") -> None:
        self.inner = inner
        self.mutant = mutant
        self.id = inner.id

    async def info(self) -> JobInfo:
        return await self.inner.info()

    async def read(self, cursor: int = 0, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0) -> Chunk:
        return await self.inner.read(cursor, stream=stream, limit=limit, wait=wait)

    def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
        return self.inner.follow(stdout, stderr)

    async def write(self, data: bytes) -> None:
        await self.inner.write(data)

    async def close_stdin(self) -> None:
        await self.inner.close_stdin()

    async def signal(self, number: int) -> None:
        await self.inner.signal(number)

    async def resize(self, rows: int, cols: int) -> None:
        await self.inner.resize(rows, cols)

    async def wait(self, timeout_sec: float | None = None) -> Result:
        return self.mutant.result(await self.inner.wait(timeout_sec))


class MutantInstance(Instance):
    """A box."""

    def __init__(self, inner: Instance, mutant: "Mutant") -> None:
        self.inner = inner
        self.mutant = mutant
        self.record = mutant.record(inner.record)

    @property
    def files(self) -> Any:
        return self.mutant.Disk(self.inner.files, self.inner)

    async def run(self, command: Command) -> Result:
        return self.mutant.result(await self.inner.run(self.mutant.command(command)))

    async def start(self, command: Command) -> Process:
        return self.mutant.Job(await self.inner.start(self.mutant.command(command)), self.mutant)

    async def connect(self, port: int) -> PortStream:
        return await self.inner.connect(port)

    async def ports(self) -> tuple[PortInfo, ...]:
        return await self.inner.ports()

    def watch_ports(self) -> AsyncIterator[tuple[PortInfo, ...]]:
        return self.inner.watch_ports()

    async def jobs(self) -> tuple[JobInfo, ...]:
        return await self.inner.jobs()

    async def job(self, job_id: str) -> Process:
        return self.mutant.Job(await self.inner.job(job_id), self.mutant)

    async def forget(self, job_id: str) -> None:
        await self.inner.forget(job_id)

    async def check(self) -> None:
        await self.inner.check()

    async def set_clocks(self, *, orphan_grace_sec: float | None = None, ttl_sec: float | None = None) -> None:
        await self.inner.set_clocks(orphan_grace_sec=orphan_grace_sec, ttl_sec=ttl_sec)

    @property
    def layers(self) -> Any:
        return self.inner.layers

    async def usage(self) -> Usage:
        return await self.inner.usage()

    async def pause(self) -> None:
        await self.inner.pause()

    async def resume(self) -> None:
        await self.inner.resume()

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        return await self.inner.change_limits(limits)

    async def close(self) -> None:
        await self.inner.close()


class Mutant(Provider):
    """A provider with one fault."""

    name: ClassVar[str] = "native"
    kills: ClassVar[tuple[str, ...]] = ()
    """Checks that fail on it."""
    patience: ClassVar[float] = 20.0
    """Short where the fault is that something never happens."""
    alone: ClassVar[bool] = False
    """Found only while other tests leave it some processor time."""

    Box: ClassVar[type[MutantInstance]] = MutantInstance
    Job: ClassVar[type[MutantProcess]] = MutantProcess
    Disk: ClassVar[type[MutantFiles]] = MutantFiles

    def __init__(self, inner: Provider, made: list[InstanceRecord]) -> None:
        self.inner = inner
        self.made = made
        """Plans of every box, so that those a mutant leaks on purpose are destroyed after the check."""

    # --- hooks -----------------------------------------------------------------------------------------------

    def order(self, order: Order) -> Order:
        return order

    def command(self, command: Command) -> Command:
        return command

    def result(self, result: Result) -> Result:
        return result

    def record(self, record: InstanceRecord) -> InstanceRecord:
        return record

    # --- the contract ----------------------------------------------------------------------------------------

    async def probe(self) -> Capabilities:
        return await self.inner.probe()

    def plan(self, order: Order) -> InstanceRecord:
        return self.inner.plan(order)

    async def create(self, order: Order, planned: InstanceRecord) -> Instance:
        self.made.append(planned)
        return self.Box(await self.inner.create(self.order(order), planned), self)

    async def fork(
        self, order: Order, planned: InstanceRecord, source: Instance, state: Awaitable[str]
    ) -> tuple[Instance, str]:
        self.made.append(planned)
        fork, start = await self.inner.fork(order, planned, source, state)
        return self.Box(fork, self), start

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> Instance:
        return self.Box(await self.inner.attach(record, spec), self)

    async def stop(self, record: InstanceRecord) -> None:
        await self.inner.stop(record)

    async def restore(self, order: Order, record: InstanceRecord) -> Instance:
        return self.Box(await self.inner.restore(order, record), self)

    async def destroy(self, record: InstanceRecord) -> None:
        await self.inner.destroy(record)

    async def list(self) -> tuple[InstanceRecord, ...]:
        return await self.inner.list()

    async def close(self) -> None:
        await self.inner.close()

    def configure(self, settings: Any) -> None:
        self.inner.configure(settings)


def argv(command: Command, change: Any) -> Command:
    """The command with a changed tuple; strings go to the shell as they are."""
    return command.but(command=change(command.command)) if isinstance(command.command, tuple) else command


def texts(command: Command, change: Any) -> Command:
    """The command with every text of it changed."""
    words = command.command
    changed: str | Iterable[str] = change(words) if isinstance(words, str) else tuple(change(word) for word in words)
    return command.but(command=changed)
