"""The protocols of a box, its jobs and its streams."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from hutch.api.code import Kernels
from hutch.api.files import Files
from hutch.model.boxes import BoxInfo, Moved, PortInfo, Preview, State
from hutch.model.code import CodeResult
from hutch.model.layers import Attempt, Checkpoint, Diff, Merge, Rollback
from hutch.model.results import Chunk, JobInfo, Result, Usage
from hutch.model.spec import Adjustment, EffectiveSpec, Retention

Shell = str
Argv = Sequence[str]


class Job(Protocol):
    """A command that runs in a box and can be read, fed and signalled by several callers."""

    @property
    def id(self) -> str: ...

    async def info(self) -> JobInfo: ...

    async def read(
        self, cursor: int | None = None, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0
    ) -> Chunk:
        """Read from `cursor`; None continues where this handle's last read of that stream ended."""

    def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]: ...

    async def write(self, data: bytes | str) -> None:
        """Write to the job's input. Raises: Conflict if the job has ended or its input is closed."""

    async def close_stdin(self) -> None: ...

    async def signal(self, number: int = 15) -> None: ...

    async def resize(self, rows: int, cols: int) -> None: ...

    async def wait(self, timeout_sec: float | None = None) -> Result:
        """Wait for the end of the job. Raises: Timeout if it still runs after `timeout_sec`; the job keeps running."""


class Box(Protocol):
    """A handle on one box."""

    @property
    def id(self) -> str: ...

    @property
    def spec(self) -> EffectiveSpec: ...

    @property
    def adjustments(self) -> tuple[Adjustment, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the box itself: that it is new, or that an earlier one was lost."""

    @property
    def files(self) -> Files: ...

    async def exec(
        self, command: Shell | Argv, *, cwd: str | None = None, env: dict[str, str] | None = None,
        stdin: bytes | str | None = None, timeout: float | None = None, user: str | None = None,
        keep_output: int = 1 << 20,
    ) -> Result:  # fmt: skip
        """Run a command to its end. A failed, killed or timed out command is a result, not an error.

        Raises: NotRunnable if the program cannot be started; Refused if the caller may not use this `user`.
        """

    def stream(
        self, command: Shell | Argv, *, cwd: str | None = None, env: dict[str, str] | None = None,
        stdin: bytes | str | None = None, timeout: float | None = None, user: str | None = None,
    ) -> "Stream":  # fmt: skip
        """Run a command; iterate over ("stdout" | "stderr", bytes), then read `.result`. Raises: as `exec`."""

    async def start(
        self, command: Shell | Argv, *, cwd: str | None = None, env: dict[str, str] | None = None,
        timeout: float | None = None, user: str | None = None, pty: bool = False, rows: int = 24, cols: int = 80,
        name: str = "", follow: bool = False,
    ) -> Job:  # fmt: skip
        """Start a job; its input stays open. With `follow` its output waits for the caller's `Job.follow` instead of
        being spilled to disk. Raises: as `exec`."""

    async def jobs(self) -> tuple[JobInfo, ...]: ...

    async def job(self, job_id: str) -> Job:
        """Return a handle on a job. Raises: NotFound."""

    async def forget(self, job_id: str) -> None:
        """Drop an ended job and its output. Raises: Conflict if it still runs."""

    async def checkpoint(self, name: str = "", *, kill: bool = False) -> Checkpoint:
        """Freeze the box's files as a state to go back to; `Checkpoint.way` says what that cost.

        `kill` ends the box's processes first, so that nothing has to be copied. Raises: Unsupported if its provider
        cannot; Conflict if the name is taken or the box is paused; QuotaExceeded past `checkpoints_max`.
        """

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        """List the checkpoints, oldest first."""

    async def delete_checkpoint(self, checkpoint: str) -> None:
        """Forget a checkpoint, by its id or name, and free what only it needs. Raises: NotFound."""

    async def rollback(self, checkpoint: str, *, kill: bool = False) -> Rollback:
        """Give the box the files of a checkpoint, by its id or name; checkpoints stay.

        Raises: NotFound; Conflict while processes run, unless `kill` ends them.
        """

    async def undo(self, steps: int = 1, *, kill: bool = False) -> Rollback:
        """Undo the last commands of a box with `auto_checkpoint = exec`. Raises: Conflict if there are not so many."""

    async def diff(self, start: str = "", end: str = "", *, text: bool = False) -> Diff:
        """List what differs between two checkpoints: by default from the newest to the present state.

        `text` adds a unified diff of each text file. Raises: NotFound.
        """

    async def fork(
        self, count: int = 1, *, checkpoint: str = "", kernel: bool = False
    ) -> "tuple[Box, ...]":  # fmt: skip
        """Make boxes that begin with this one's files, or those of a checkpoint, and share them until they change.

        With `kernel` they also have its Python kernels, with all variables, as they are now (native engine). All of
        them or none. Raises: NotFound; QuotaExceeded; Unsupported; Conflict if a kernel is busy or dead, or none runs.
        """

    async def merge(self, fork: str) -> Merge:
        """Bring what a fork changed since it was made into this box, all or nothing.

        Raises: Conflict if both have changed something (`details["conflicts"]`), or while processes run.
        """

    async def attempt(
        self, command: Shell | Argv, *, check: Shell | Argv | None = None, cwd: str | None = None,
        env: dict[str, str] | None = None, timeout: float | None = None, user: str | None = None, kill: bool = False,
    ) -> Attempt:  # fmt: skip
        """Run a command, then `check`; if either fails, what they changed is undone and their processes are ended.

        Raises: as `exec`; Conflict while other processes run, unless `kill` ends them.
        """

    async def connect(self, port: int) -> "PortConnection":
        """Connect to a TCP port inside the box, whatever its network. Raises: PortClosed if nothing listens there."""

    async def ports(self, *, wait: float = 0.0) -> tuple[PortInfo, ...]:
        """Return what listens in the box. With `wait`, wait so many seconds until every port of the spec does.

        Raises: Timeout if one still does not.
        """

    async def url(self, port: int, *, public: bool = False, ttl_sec: float = 3600.0) -> Preview:
        """Open a port to browsers and programs that have the address; a `ttl_sec` of 0 lasts as long as the box.

        Raises: Unsupported if no server serves the boxes of this process.
        """

    async def previews(self) -> tuple[Preview, ...]:
        """Return the previews of the box that have not ended."""

    async def revoke(self, preview_id: str) -> None:
        """End a preview, and the connections made by it. Raises: NotFound."""

    @property
    def kernels(self) -> Kernels: ...

    async def python(
        self, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None, kernel: str = ""
    ) -> CodeResult:
        """Run Python in a kernel that keeps its state from call to call; see `Kernels.run`."""

    async def code(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "",
    ) -> CodeResult:  # fmt: skip
        """Run code of any language that kernels speak; see `Kernels.run`."""

    async def usage(self) -> Usage: ...

    async def info(self) -> BoxInfo:
        """Return state, lease, clocks and jobs. Looking at a box does not count as use."""

    async def ready(self, timeout_sec: float | None = None) -> None:
        """Wait until a box of `create(wait=False)` runs. Raises: Timeout; what `create` would raise, or Gone."""

    async def state(self) -> State: ...

    async def pause(self) -> None:
        """Freeze the box until its next use. Raises: Unsupported if its provider cannot; Conflict while it works."""

    async def resume(self) -> None: ...

    async def stop(self) -> None:
        """End a persistent box's processes and keep its files. Raises: Conflict if the box is temporary."""

    async def rename(self, name: str) -> None:
        """Rename the box; an empty name removes its name. Raises: Conflict if another live box of its owner has it."""

    async def change(
        self, /, *, retention: Retention | None = None, idle_timeout_sec: float | None = None, **limits: float
    ) -> tuple[str, ...]:
        """Change limits and clocks of the live box; return the names of those that only a new box could have.

        Locks and maxima of the profile bound the values (`adjustments`). Raises: Invalid for a wrong value; Refused
        without the right; QuotaExceeded; Unsupported or Conflict if the box cannot become persistent now.
        """

    async def move_to(self, template: str, /, *, kind: str = "", **values: object) -> None:
        """Make this the box of another conversation, with its files and jobs, as `Hutch.box_for` names it.

        The conversation that it belonged to gets a new box when it asks for one. Raises: Conflict if the other
        conversation has a box already.
        """

    async def renew(self) -> None:
        """Extend the lease from now. Raises: LeaseLost if it has run out."""

    async def release(self) -> None:
        """Give up the lease; the box keeps running until its clocks end it."""

    async def export(self, file: str | Path) -> Moved:
        """Write the box to one file for `Hutch.import_box`; the box keeps running.

        The file holds workspace, home, changes of the system, spec and labels; no processes and no values of secrets.
        """

    async def destroy(self) -> None: ...


class PortConnection(Protocol):
    """A TCP connection to a port of a box, for use with `async with`. Both directions wait for their reader."""

    async def receive(self) -> bytes:
        """Return the next bytes; none when the program has ended its side. Raises: PortClosed after a reset."""

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes. Raises: PortClosed if the program reads no more."""

    async def end(self) -> None:
        """End this side; the program may still send."""

    async def close(self) -> None:
        """Close both sides, and drop what is still on its way."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


class Stream(Protocol):
    """A command whose output is read while it runs. Leaving the iteration early kills it."""

    def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]: ...

    @property
    def result(self) -> Result:
        """The result. Raises: Invalid before the iteration has ended."""
