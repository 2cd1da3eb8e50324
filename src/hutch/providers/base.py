"""The contract of a provider, version 1: *where* boxes run (`Provider`) and *what* a box can do (`Instance`).

The author of an engine needs only this file and `handles.py`, which has what an instance hands out. Methods raise only
`HutchError`s, and which one is part of the contract. Leases, owners and clocks are the keeper's. A provider keeps no
durable state: everything that is needed to find a box again is in the `InstanceRecord`, which the keeper stores before
and after creation.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Mapping, Set
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from hutch.errors import ConfigError, Unsupported
from hutch.model.capabilities import Capabilities
from hutch.model.ids import BoxId
from hutch.model.images import ImageDefaults
from hutch.model.limits import Limits
from hutch.model.record import Record
from hutch.model.results import JobInfo, Result, Usage
from hutch.model.spec import CheckedMount, EffectiveSpec, Order
from hutch.providers.handles import Entrance, PortStream, Process

if TYPE_CHECKING:
    from hutch.api import Files
    from hutch.model.boxes import PortInfo
    from hutch.providers.layers import Layers

CONTRACT = 1


class InstanceRecord(Record, frozen=True, kw_only=True):
    """What a provider needs to find a box again after every process of ours has died."""

    provider: str
    box_id: BoxId
    keeper: str
    data: dict[str, str | int | float | bool | list[str] | None] = msgspec.field(default_factory=dict)
    """The provider's own facts (pids with start times, paths, engine ids). Flat, JSON, no secret."""


class Leftover(Record, frozen=True, kw_only=True):
    """One object that killed keepers left behind."""

    kind: str
    """box | group | network | directory | container | volume | keeper"""
    name: str
    problem: str = ""
    """Why it could not be removed; "" if it was removed, or would be."""


class Command(Record, frozen=True, kw_only=True):
    """A process to start. A string runs under `bash -c`, else `sh -c`; a tuple is argv."""

    command: str | tuple[str, ...]
    cwd: str | None = None
    """Relative to the box's workdir; None means the workdir itself."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: bytes | None = None
    """Sent at once, then closed. None means end of file for `run` and an open pipe for `start`."""
    timeout_sec: float | None = None
    """Seconds until the process group is killed; None means never, for jobs only."""
    user: str | None = None
    pty: bool = False
    rows: int = 24
    cols: int = 80
    name: str = ""
    keep_output: int = 1 << 20
    """Bytes of each stream that `run` returns, 60 % head and 40 % tail. The rest is spilled and read by cursor."""
    open_stdin: bool = True
    """Whether a job's input is a pipe that stays open; else it is at its end."""
    follow: bool = False
    """Whether the starter reads along, so that output waits for the reader instead of being spilled."""


class Instance(ABC):
    """A live box. Several callers may use it at once; every method is safe to cancel."""

    record: InstanceRecord

    @property
    @abstractmethod
    def files(self) -> "Files":
        """The files inside the box, with the rights of the box's user."""

    def files_as(self, user: str) -> "Files":
        """Return the files with the rights of another user.

        Raises:
            Unsupported: This engine has the box's user only.
        """
        raise Unsupported(f"files of this engine's boxes are its user's, not {user!r}'s", op="files")

    @abstractmethod
    async def run(self, command: Command) -> Result:
        """Run a command to its end and return whatever it did. Cancelling the call kills its process group.

        Raises:
            NotRunnable: There is no such program, directory or user.
            BoxBroken: The box is dead.
            Unavailable: The box cannot be reached now.
        """

    @abstractmethod
    async def start(self, command: Command) -> Process:
        """Start a job and return at once. It outlives this handle and, with `durable_jobs`, the keeper.

        Raises:
            NotRunnable, BoxBroken, Unavailable: As for `run`.
        """

    @abstractmethod
    async def jobs(self) -> tuple[JobInfo, ...]:
        """Return the running jobs and those that ended and still hold unread or spilled output."""

    @abstractmethod
    async def job(self, job_id: str) -> Process:
        """Return the handle of a job.

        Raises:
            NotFound: There is no such job.
        """

    @abstractmethod
    async def forget(self, job_id: str) -> None:
        """Drop an ended job and its output.

        Raises:
            Conflict: It still runs.
        """

    async def connect(self, port: int) -> PortStream:
        """Connect to a TCP port on the box's own loopback, whatever its network.

        Raises:
            PortClosed: Nothing accepts connections there.
            Unsupported: The engine has no way to the ports of a box.
            QuotaExceeded: Too many connections are open.
        """
        raise Unsupported("this engine has no way to the ports of a box", op="connect")

    async def ports(self) -> tuple["PortInfo", ...]:
        """Return the TCP ports on which programs in the box listen. Raises: Unsupported, as `connect`."""
        raise Unsupported("this engine has no way to the ports of a box", op="ports")

    def watch_ports(self) -> AsyncIterator[tuple["PortInfo", ...]]:
        """Yield the listening ports now and after each change, until the caller stops. Raises: Unsupported."""
        raise Unsupported("this engine has no way to the ports of a box", op="ports")

    @abstractmethod
    async def check(self) -> None:
        """Return only if the box can really work.

        Raises:
            BoxBroken: The box is dead.
            Unavailable: Nobody can say now.
        """

    def trouble(self) -> str:
        """Return what is wrong with a box that still works, and what to do; "" if nothing is known.

        The keeper asks every second and after every failed command, so this must be cheap and must not block.
        """
        return ""

    async def set_clocks(self, *, orphan_grace_sec: float | None = None, ttl_sec: float | None = None) -> None:  # noqa: B027
        """Set how long the box lives without any keeper, and at all, in seconds from now.

        None leaves a clock as it is; a ttl of 0 means no end. Engines whose boxes have no clocks need not have this.
        """

    async def assign(self, *, owner: str, keeper: str) -> None:  # noqa: B027 - most engines show neither to anybody
        """Write on the engine's own object whose box this is and who keeps it, where the engine has a place for it.

        The keeper calls this when a box of its pool gets an owner, and when it takes over another keeper's box. It is a
        compare-and-set against what this handle has seen there.

        Raises:
            Conflict: Somebody else has changed it meanwhile.
        """

    async def show(self, place: CheckedMount) -> None:
        """Mount one more directory in the live box, on a directory that is empty or missing.

        Raises:
            Unsupported: This engine mounts only when it creates a box.
            EngineError: It failed, and nothing is mounted.
        """
        raise Unsupported("this engine mounts nothing in a box that lives", op="show", remedy="make a new box")

    async def entrance(self) -> Entrance | None:
        """Return a way into the box for a process of this machine, or None if this engine or this box has none.

        The caller closes it. It is how a prepared interpreter is forked into a box.
        """
        return None

    @property
    def layers(self) -> "Layers":
        """The states of the box's files: freezing, going back, comparing.

        Raises:
            Unsupported: The capabilities say so.
        """
        raise Unsupported(
            f"provider {self.record.provider} cannot freeze the files of a box",
            op="checkpoint",
            remedy="use the native provider, Docker or Podman; or copy the files out and in",
        )

    async def let_jobs_keep_box(self) -> None:  # noqa: B027 - an engine whose boxes have no clock need not have this
        """Let a running job keep the box from its dead-man's clock, because the keeper leaves it on purpose."""

    @abstractmethod
    async def usage(self) -> Usage:
        """Return what the whole box uses now."""

    def removed_bytes(self, devices: Set[int]) -> int:
        """Return the bytes of removed files on these devices that the box holds open, where that can be seen."""
        return 0

    async def reboot(self) -> None:
        """End every process of the box and keep its files, as a restart of a machine does. Raises Unsupported."""
        raise Unsupported("this engine cannot end all processes of a box", op="reboot", remedy="make a new box")

    @abstractmethod
    async def pause(self) -> None:
        """Stop every process of the box until `resume`.

        Raises:
            Unsupported: The capabilities say so.
        """

    @abstractmethod
    async def resume(self) -> None: ...

    @abstractmethod
    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        """Apply limits to the live box. Return the names of those that would need a new box and stay as they are."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection. The box keeps running."""


class Provider(ABC):
    """One engine. `probe` is honest, `create` leaves nothing behind when it fails, `destroy` works from the record."""

    name: ClassVar[str]
    contract: ClassVar[int] = CONTRACT
    portable: ClassVar[bool] = False
    """Whether boxes can be reached from every machine, so that any keeper may take over those of a dead one."""
    settings: ClassVar[type[msgspec.Struct] | None] = None
    """The model of its table `[providers.NAME]`, for `configure` and for showing the configuration."""

    @abstractmethod
    async def probe(self) -> Capabilities:
        """Return what the engine can do here, verified by doing it once. An unusable engine says why.

        This never raises. The result may be kept until `forget_probe` is called.
        """

    def forget_probe(self) -> None:  # noqa: B027 - a provider that remembers nothing has nothing to forget
        """Note that the engine failed: the next probe must verify again."""

    async def check(self) -> None:
        """Ask a usable engine cheaply whether it is still there. Any HutchError says that it is not."""
        await self.list()

    def prompt(self) -> str:
        """Return what a model should know while one of this engine's boxes is current.

        A package brings tools of its own through the entry point group `hutch.provider_tools`.
        """
        return ""

    async def image(self, reference: str) -> ImageDefaults | None:
        """Return how commands of this image run by default; None if the engine sees to that or the image does not say.

        Raises:
            NotFound: There is no such image, and none will be pulled.
        """
        return None

    async def needs_pull(self, reference: str) -> bool:
        """Return whether a box of this `oci:` image would pull it, because it is not here.

        True where nobody can say: then only callers who may pull images get a box of it.
        """
        return True

    @abstractmethod
    def plan(self, order: Order) -> InstanceRecord:
        """Return the record by which the box can be found and destroyed even if `create` dies half-way.

        A pure function. The record is written to the store before `create` is called.
        """

    @abstractmethod
    async def create(self, order: Order, planned: InstanceRecord) -> Instance:
        """Return a box that has answered a real command. After a failure or a cancellation nothing of it remains.

        Raises:
            NotFound: There is no such image.
            Refused: A mount or an image may not be used.
            Unsupported: The engine cannot make such a box.
            QuotaExceeded: The machine is full.
            EngineError: The engine failed; the details name the step.
        """

    async def fork(
        self, order: Order, planned: InstanceRecord, source: Instance, state: Awaitable[str]
    ) -> tuple[Instance, str]:
        """Return a new box that begins with a state of another one's files, and the name of that state in the new box.

        The state may still be being frozen, so that an engine can create the box meanwhile.

        Raises:
            Unsupported: The capabilities say so.
            NotFound: The state is gone.
            QuotaExceeded, EngineError: As for `create`; nothing remains.
        """
        raise Unsupported(f"provider {self.name} cannot fork a box", op="fork", remedy="export it and import it twice")

    @abstractmethod
    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> Instance:
        """Return the same box again, with its jobs and unread output.

        Raises:
            NotFound: It is certainly gone.
            Unavailable: Nobody can say now.
        """

    @abstractmethod
    async def stop(self, record: InstanceRecord) -> None:
        """End all processes, and keep what `restore` needs to bring a persistent box back."""

    @abstractmethod
    async def restore(self, order: Order, record: InstanceRecord) -> Instance:
        """Return a stopped persistent box with its files. Its jobs are gone."""

    @abstractmethod
    async def destroy(self, record: InstanceRecord) -> None:
        """Remove everything of the box. A second call, or a box that never was, is fine."""

    @abstractmethod
    async def list(self) -> tuple[InstanceRecord, ...]:
        """Return every box on this engine that carries our label, whichever keeper has it."""

    async def sweep(self, *, dry_run: bool = False) -> tuple[Leftover, ...]:
        """Remove what killed keepers left on the engine besides boxes, never what a live keeper uses."""
        return ()

    @abstractmethod
    async def close(self) -> None:
        """Disconnect from the engine. Boxes keep running."""

    def set_directories(self, state_dir: str, run_dir: str) -> None:  # noqa: B027 most engines need no place on this machine
        """Say where its files may be: those that outlive a restart of the machine, and those of running boxes.

        Called once, before `configure`.
        """

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the table `[providers.NAME]` of the configuration.

        Raises:
            ConfigError: The provider does not know a key.
        """
        if settings:
            raise ConfigError(f"provider {self.name} has no setting {next(iter(settings))!r}")


Settings = TypeVar("Settings", bound=msgspec.Struct)


def read_settings(provider: str, model: type[Settings], table: Mapping[str, object]) -> Settings:
    """Return a provider's table as its model.

    Raises:
        ConfigError: A key or a value is wrong; the error names it and what is allowed.
    """
    for name in table:
        if name not in model.__struct_fields__:
            known = ", ".join(model.__struct_fields__)
            raise ConfigError(f"provider {provider} has no setting {name!r}", remedy=f"it has: {known}")
    try:
        return msgspec.convert(dict(table), model)
    except msgspec.ValidationError as error:
        raise ConfigError(f"provider {provider}: {error}") from error
