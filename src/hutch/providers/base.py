"""The contract of a provider, version 1: *where* boxes run (`Provider`) and *what* one can do (`Instance`).

Read this file and you can write an engine. Methods raise only `HutchError`s; which one is part of the contract.
Nothing here knows of leases, owners or clocks: the keeper does that. A provider keeps no durable state of its own: all
that is needed to find a box again is in the `InstanceRecord`, which the keeper stores before and after creation.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from hutch.errors import ConfigError, Unsupported
from hutch.model.capabilities import Capabilities
from hutch.model.ids import BoxId
from hutch.model.images import ImageDefaults
from hutch.model.limits import Limits
from hutch.model.record import Record
from hutch.model.results import Chunk, JobInfo, Result, Usage
from hutch.model.spec import CheckedMount, EffectiveSpec, Order

if TYPE_CHECKING:
    from hutch.api import Files

CONTRACT = 1


class InstanceRecord(Record, frozen=True, kw_only=True):
    """Everything a provider needs to find a box again after every process of ours has died."""

    provider: str
    box_id: BoxId
    keeper: str
    data: dict[str, str | int | float | bool | list[str] | None] = msgspec.field(default_factory=dict)
    """The provider's own facts (pids with start times, paths, engine ids). Flat, JSON, no secret."""


class Leftover(Record, frozen=True, kw_only=True):
    """One thing that killed keepers left, and why it could not be removed ("": it was, or would be)."""

    kind: str
    """box | group | network | directory | container | volume | keeper"""
    name: str
    problem: str = ""


class Command(Record, frozen=True, kw_only=True):
    """A process to start. A string runs under `bash -c`, else `sh -c`; a tuple is argv."""

    command: str | tuple[str, ...]
    cwd: str | None = None
    """Relative to the box's workdir; None: the workdir itself."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: bytes | None = None
    """Given at once and then closed; None: no input (end of file) for `run`, an open pipe for `start`."""
    timeout_sec: float | None = None
    """Seconds until the process group is killed; None: never (jobs only)."""
    user: str | None = None
    pty: bool = False
    rows: int = 24
    cols: int = 80
    name: str = ""
    keep_output: int = 1 << 20
    """Bytes of each stream that `run` returns: 60 % head, 40 % tail; the rest is spilled and read by cursor."""
    follow: bool = False
    """The starter reads along: output waits for the reader instead of being spilled past the ring."""


class Process(ABC):
    """A job's live handle. Reading never loses a byte that is within the bounds, and never blocks the process."""

    id: str

    @abstractmethod
    async def info(self) -> JobInfo:
        """Its state now; after the end also verdict and usage."""

    @abstractmethod
    async def read(self, cursor: int = 0, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0) -> Chunk:
        """Bytes from `cursor` on. Waits up to `wait` seconds for the first new byte or the end; eof only at the end."""

    @abstractmethod
    def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
        """("stdout" | "stderr", bytes) from these cursors until the process has ended and all was read."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Raises Conflict if its input is closed or it has ended."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """End of input; closing twice is fine."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """To the whole process group. A process that has ended ignores it."""

    @abstractmethod
    async def resize(self, rows: int, cols: int) -> None:
        """Of its terminal; Unsupported if it has none."""

    @abstractmethod
    async def wait(self, timeout_sec: float | None = None) -> Result:
        """Its result, with head and tail of the output. Raises Timeout if it still runs then; the job goes on."""


class Instance(ABC):
    """A live box. Several callers may use it at once; every method is safe to cancel."""

    record: InstanceRecord

    @property
    @abstractmethod
    def files(self) -> "Files":
        """Files inside the box, with the rights of the box's user."""

    @abstractmethod
    async def run(self, command: Command) -> Result:
        """Start, wait, collect. Returns whatever the command did; raises NotRunnable (no such program, cwd, user),
        BoxBroken or Unavailable. Cancelling the call kills the command's process group."""

    @abstractmethod
    async def start(self, command: Command) -> Process:
        """Start a job and return at once; it outlives this handle and, with `durable_jobs`, the keeper."""

    @abstractmethod
    async def jobs(self) -> tuple[JobInfo, ...]:
        """Running jobs and those that ended and still hold unread or spilled output."""

    @abstractmethod
    async def job(self, job_id: str) -> Process:
        """Raises NotFound."""

    @abstractmethod
    async def forget(self, job_id: str) -> None:
        """Drop an ended job and its output; a running one is a Conflict."""

    @abstractmethod
    async def check(self) -> None:
        """Answers only if the box can really work; else BoxBroken (dead) or Unavailable (cannot say)."""

    def trouble(self) -> str:
        """What is wrong with a box that goes on all the same, and what to do; "": nothing that is known. Asked every
        second and after every failed command, so it must be cheap and must not block."""
        return ""

    async def set_clocks(self, *, orphan_grace_sec: float | None = None, ttl_sec: float | None = None) -> None:  # noqa: B027
        """Another keeper has it, or its life was counted anew: until when it lives without any keeper, and at all, in
        seconds from now. None: as it was; a ttl of 0: no end. An engine whose boxes have no clock of their own need not
        have this."""

    async def show(self, place: CheckedMount) -> None:
        """Mount one more directory in the live box, on a directory that is empty or not there. Unsupported: this engine
        mounts only when it makes a box; EngineError: it could not, and nothing is shown."""
        raise Unsupported("this engine mounts nothing in a box that lives", op="show", remedy="make a new box")

    async def work_alone(self) -> None:  # noqa: B027 - an engine whose boxes have no clock need not have this
        """The keeper leaves the box on purpose: from now on a running job keeps it from its own dead-man's clock."""

    @abstractmethod
    async def usage(self) -> Usage:
        """Of the whole box, now."""

    @abstractmethod
    async def pause(self) -> None:
        """No process of the box runs until `resume`. Unsupported where capabilities say so."""

    @abstractmethod
    async def resume(self) -> None: ...

    @abstractmethod
    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        """Apply to the live box; the names of the limits that would need a new box are returned, unapplied."""

    @abstractmethod
    async def close(self) -> None:
        """Drop the connection. The box goes on."""


class Provider(ABC):
    """One engine. `probe` is honest, `create` leaves nothing behind when it fails, `destroy` works from the record."""

    name: ClassVar[str]
    contract: ClassVar[int] = CONTRACT
    portable: ClassVar[bool] = False
    """Whether its boxes can be reached from every machine, so that a keeper on any may take over a dead one's."""
    settings: ClassVar[type[msgspec.Struct] | None] = None
    """The model of its table `[providers.NAME]`, for `configure` and for whoever shows a configuration."""

    @abstractmethod
    async def probe(self) -> Capabilities:
        """What can be done here, verified by doing it once; never raises: an unusable engine says why. That it was done
        may be remembered, until `doubt`."""

    def doubt(self) -> None:  # noqa: B027 - a provider that remembers nothing has nothing to doubt
        """The engine failed: the next probe must verify anew what it remembers."""

    async def check(self) -> None:
        """A cheap question, asked of a usable engine now and then: an error says that it is no longer there."""
        await self.list()

    def prompt(self) -> str:
        """What a model should know about boxes of this engine; told while one of them is current. Tools of its own a
        package brings through the entry point group `hutch.provider_tools`."""
        return ""

    async def image(self, reference: str) -> ImageDefaults | None:
        """How commands of this image run if nobody says otherwise; None: the engine sees to that itself, or the image
        does not say. NotFound: there is no such image, and none will be fetched."""
        return None

    async def needs_pull(self, reference: str) -> bool:
        """Whether a box of this `oci:` image would have it fetched, because it is not here. True where that cannot be
        told: then only callers who may have images fetched get a box of it."""
        return True

    @abstractmethod
    def plan(self, order: Order) -> InstanceRecord:
        """The record from which a box of this order could be found and destroyed even if `create` dies half-way.
        Pure; written to the store before `create` is called."""

    @abstractmethod
    async def create(self, order: Order, planned: InstanceRecord) -> Instance:
        """A box that has answered a real command. On failure or cancellation nothing of it remains; raises
        NotFound (image), Refused, Unsupported, QuotaExceeded (machine full) or EngineError with the step."""

    @abstractmethod
    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> Instance:
        """The same box again, with its jobs and unread output. NotFound: it is certainly gone;
        Unavailable: cannot say."""

    @abstractmethod
    async def stop(self, record: InstanceRecord) -> None:
        """End all processes, keep what a persistent box needs to come back (`restore`)."""

    @abstractmethod
    async def restore(self, order: Order, record: InstanceRecord) -> Instance:
        """A stopped persistent box again, with its files; its jobs are gone."""

    @abstractmethod
    async def destroy(self, record: InstanceRecord) -> None:
        """Everything of the box is gone when this returns. Twice is fine; a box that never was is fine."""

    @abstractmethod
    async def list(self) -> tuple[InstanceRecord, ...]:
        """Every box of this provider on this engine that carries our label, whoever keeps it."""

    async def sweep(self, *, dry_run: bool = False) -> tuple[Leftover, ...]:
        """Remove what killed keepers left on the engine besides boxes, never what a live one uses.
        An engine that leaves nothing else need not have this."""
        return ()

    @abstractmethod
    async def close(self) -> None:
        """Let go of the engine. Boxes go on."""

    def settle(self, state_dir: str, run_dir: str) -> None:  # noqa: B027 most engines need no place on this machine
        """Where files of its own may be: those that outlive the machine's restart, and those of running boxes. Called
        once, before `configure`."""

    def configure(self, settings: Mapping[str, object]) -> None:
        """The table `[providers.NAME]` of the configuration. A key the provider does not know is a ConfigError."""
        if settings:
            raise ConfigError(f"provider {self.name} has no setting {next(iter(settings))!r}")


Settings = TypeVar("Settings", bound=msgspec.Struct)


def read_settings(provider: str, model: type[Settings], table: Mapping[str, object]) -> Settings:
    """The table of a provider as its model; ConfigError names what is wrong, and what there is."""
    for name in table:
        if name not in model.__struct_fields__:
            known = ", ".join(model.__struct_fields__)
            raise ConfigError(f"provider {provider} has no setting {name!r}", remedy=f"it has: {known}")
    try:
        return msgspec.convert(dict(table), model)
    except msgspec.ValidationError as error:
        raise ConfigError(f"provider {provider}: {error}") from error
