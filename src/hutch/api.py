"""The public protocols: `Hutch`, `Box`, `Job`, `Files`. The embedded and the remote form both implement them.

`Raises:` names the errors that a caller should branch on. Besides them, every call on a box raises `Gone` once the box
was destroyed, `LeaseLost` once another session took it, `BoxBroken` if its guest died, and `Unavailable` while its
engine or server cannot be reached.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from hutch.model.boxes import BoxInfo, Event, Moved, VolumeInfo
from hutch.model.capabilities import Capabilities
from hutch.model.files import Change, Edited, FileInfo, GrepResult, Matches
from hutch.model.questions import Answer, AskRequest, QuestionInfo
from hutch.model.receipts import Chain, ChainCheck, Detail, Receipt
from hutch.model.results import Chunk, JobInfo, Result, Usage
from hutch.model.skills import FoundSkill, SkillBinding, SkillFile, SkillInfo, SkillPlace, SkillPreview, SkillVersion
from hutch.model.spec import Adjustment, EffectiveSpec, Retention
from hutch.model.state import State
from hutch.model.status import Status

Shell = str
Argv = Sequence[str]


class Files(Protocol):
    """Files as the box's user sees them. Relative paths start at the workdir.

    Raises: FileMissing, FileThere, FileDenied, IsDirectory and NotDirectory, which are also the builtin errors of the
    same meaning; FileFailed for any other answer of the kernel, with its errno.
    """

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read a range, or the whole file. Raises: FileTooLarge for a whole file of over 64 MB."""

    async def read_text(self, path: str) -> str:
        """Read the whole file as UTF-8; bytes that are not UTF-8 are replaced."""

    async def read_lines(self, path: str, *, start: int = 1, count: int = 2000) -> tuple[list[str], bool]:
        """Read lines from the `start`-th on; also tell whether they reach the end of the file."""

    def open(self, path: str, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        """Read a file of any size in pieces; the box sends only as fast as they are taken."""

    async def write(
        self, path: str, data: bytes | str | AsyncIterator[bytes], *, append: bool = False, mode: int | None = None,
        sync: bool = False, parents: bool = True,
    ) -> FileInfo:  # fmt: skip
        """Write a file, atomically (temporary file and rename) unless appending; an existing file keeps its mode."""

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        """Replace an exact match.

        Raises: NoMatch unless `old` is there once (with `replace_all`: at least once); FileChanged if `expect` (a
        digest from an earlier edit or from `digest`) is not the file's.
        """

    async def digest(self, path: str) -> str: ...

    async def stat(self, path: str) -> FileInfo: ...

    async def exists(self, path: str) -> bool: ...

    async def list(self, path: str = ".") -> list[FileInfo]:
        """List the entries of one directory, sorted by name."""

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None: ...

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None: ...

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None: ...

    async def glob(self, pattern: str, *, root: str = ".", limit: int = 10_000) -> Matches:
        """Find paths. `**` crosses directories; hidden names match only a pattern that names the dot."""

    async def grep(
        self, pattern: str, *, root: str = ".", glob: str | None = None, ignore_case: bool = False,
        limit: int = 1000, timeout_sec: float = 10.0,
    ) -> GrepResult:  # fmt: skip
        """Search text files for a Python regular expression; a result that was cut by a bound says so."""

    def watch(self, path: str = ".", *, recursive: bool = True) -> "Watch":
        """Watch for changes; it begins when `async with` is entered or the first item is awaited."""

    async def copy_in(self, source: str | Path, target: str) -> int:
        """Copy a host file or tree into the box; return the number of bytes."""

    async def copy_out(self, source: str, target: str | Path, *, most: int | None = None) -> int:
        """Copy a file or tree of the box to the host; return the number of bytes.

        Raises: Refused for names that would leave `target`; FileTooLarge for more than `most` bytes on disk (default:
        what the box's own disk can hold, and 16 GB of an image).
        """


class Watch(Protocol):
    """Changes of files as they happen. A cancelled wait, as by a timeout, loses no change."""

    def __aiter__(self) -> AsyncIterator[Change]: ...

    async def __anext__(self) -> Change: ...

    async def __aenter__(self) -> "Watch": ...

    async def __aexit__(self, *_: object) -> None: ...

    async def aclose(self) -> None: ...


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
        """Wait for the end of the job. Raises: Timeout if it still runs after `timeout_sec`; the job goes on."""


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

    async def usage(self) -> Usage: ...

    async def info(self) -> BoxInfo:
        """Return state, lease and clocks. Looking at a box does not count as use."""

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

    async def renew(self) -> None:
        """Extend the lease from now. Raises: LeaseLost if it has run out."""

    async def release(self) -> None:
        """Give up the lease; the box goes on until its clocks end it."""

    async def export(self, file: str | Path) -> Moved:
        """Write the box to one file for `Hutch.import_box`; the box goes on.

        The file holds workspace, home, changes of the system, spec and labels; no processes and no values of secrets.
        """

    async def destroy(self) -> None: ...


class Stream(Protocol):
    """A command whose output is read while it runs. Leaving the iteration early kills it."""

    def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]: ...

    @property
    def result(self) -> Result:
        """The result. Raises: Invalid before the iteration has ended."""


class Volumes(Protocol):
    """Named directories that outlive boxes, each of one owner."""

    async def create(self, name: str) -> VolumeInfo:
        """Create a volume. Raises: Conflict if there is one of this name."""

    async def all(self) -> tuple[VolumeInfo, ...]: ...

    async def get(self, name: str) -> VolumeInfo:
        """Return one volume. Raises: NotFound."""

    async def remove(self, name: str) -> None:
        """Remove a volume with its files. Raises: NotFound; Conflict while a box works in it."""


class Receipts(Protocol):
    """The tamper-evident record of what was done to boxes, which outlives them.

    Operations that concern no box are in the owner's log, a chain for each day. A method that takes the id of a box
    also takes the id of such a log, as `chains` gives it.
    """

    async def list(self, box_id: str, after: int = 0, limit: int = 1000) -> tuple[Receipt, ...]:
        """Return receipts in order, beginning after number `after`. Raises: NotFound if the box has none."""

    async def chains(self) -> tuple[Chain, ...]:
        """List the chains: one for each box that has or had receipts, and the owner's logs."""

    async def verify(self, box_id: str = "") -> tuple[ChainCheck, ...]:
        """Check that every receipt of one box, or of all, is what was written."""

    def export(self, box_id: str = "") -> AsyncIterator[bytes]:
        """Export lines of JSON that `hutch receipts verify --file` can check anywhere."""

    async def note(
        self, box_id: str, op: str, details: Mapping[str, Detail] | None = None, *, error: str = "",
        duration_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """Add a receipt of your own: `op` is `tool.NAME`, `mcp.NAME` or `note.NAME`, `error` the code it ended with.
        With an empty `box_id` it goes into the owner's log."""


class Questions(Protocol):
    """Questions of agents that a person has to decide.

    `Tools(hutch, ask=hutch.questions.ask)` asks them; a dashboard or a chat shows and answers them. An embedded Hutch
    has those of its own process.
    """

    async def waiting(self) -> tuple[QuestionInfo, ...]:
        """List the open questions, oldest first."""

    async def answer(self, question_id: str, answer: Answer | str) -> None:
        """Answer `allow`, `deny` or `always`; the first counts. Raises: NotFound if nobody waits for it any more."""

    async def ask(self, request: AskRequest) -> Answer:
        """Ask, and wait for the answer; a cancelled wait withdraws the question.

        Raises: Timeout if no answer comes; QuotaExceeded if too many questions are open.
        """


class Skills(Protocol):
    """The skill packages of this owner and their versions (docs/guides/skills.md). Raises: NotFound for others."""

    async def all(self) -> tuple[SkillInfo, ...]: ...

    async def get(self, name: str) -> SkillInfo: ...

    async def body(self, name: str) -> str:
        """Return the instructions of its SKILL.md, without the front matter."""

    async def files(self, name: str, version: str = "") -> tuple[SkillFile, ...]: ...

    async def read_file(self, name: str, path: str, version: str = "") -> bytes: ...

    async def versions(self, name: str) -> tuple[SkillVersion, ...]:
        """List the kept versions, newest first."""

    async def export(self, name: str, version: str = "") -> bytes:
        """Return a zip archive; the same version always gives the same bytes."""

    async def scan(self, directory: str | Path) -> tuple[FoundSkill, ...]:
        """Find the skills in a directory tree of this machine; `problem` says why one could not be installed."""

    async def preview(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False
    ) -> SkillPreview:
        """Show what `install` would install and change."""

    async def install(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False, digest: str = ""
    ) -> SkillInfo:
        """Install from a directory, a zip (a file or its bytes), a git URL, or with `local_git` a local repository.

        `path` selects one of several skills; `digest` allows only the version that a preview has shown. The same
        content twice is one version. Raises: Conflict while the skill is pinned to another version.
        """

    async def create(self, name: str, description: str, body: str = "") -> SkillInfo:
        """Create a skill of one file."""

    async def write_file(
        self, name: str, path: str, data: bytes | str, *, executable: bool = False, expect: str = ""
    ) -> SkillInfo:
        """Make a new version that differs in this file. Raises: Conflict if `expect` is not the active version."""

    async def remove_file(self, name: str, path: str, *, expect: str = "") -> SkillInfo: ...

    async def save(self, name: str, box: Box, path: str = "") -> SkillInfo:
        """Make a new version of what was edited in a box, by default in the skill's state directory under `edit`."""

    async def upgrade(self, name: str) -> SkillInfo:
        """Install the newest version from the source of the active one."""

    async def rollback(self, name: str, version: str = "") -> SkillInfo:
        """Activate the version before, or the one that is named."""

    async def pin(self, name: str, version: str = "") -> SkillInfo:
        """Keep the active version, or the one that is named, until it is unpinned."""

    async def unpin(self, name: str) -> SkillInfo: ...

    async def remove(self, name: str) -> None:
        """Remove a skill with all its versions; running boxes no longer show it."""

    async def bindings(self) -> tuple[SkillBinding, ...]: ...

    async def bind(self, group: str, names: Sequence[str]) -> SkillBinding:
        """Set the skills of a group, which boxes made with `skills=group` show. Without names the group ends."""

    async def prepare(self, name: str, box: Box) -> SkillPlace:
        """Install a skill's dependencies in a box and make its state directory; return what its programs need."""


class Hutch(Protocol):
    """One session's view of the boxes.

    Raises, from every method but `boxes` and `status`: Disabled if Hutch is switched off by its configuration.
    """

    @property
    def session(self) -> str:
        """The session that holds the leases which this object acquires."""

    def for_session(self, name: str) -> "Hutch":
        """Return a view for another session, such as another agent of this application.

        Closing it closes nothing; it lives as long as this object.
        """

    # --- boxes ----------------------------------------------------------------------------------------------

    def box(self, /, **spec: Any) -> AbstractAsyncContextManager[Box]:
        """Create a box that is destroyed at exit. Raises: as `create`."""

    async def create(self, /, *, key: str = "", **spec: Any) -> Box:
        """Create a box that stays until it is destroyed or its clocks end it.

        `key` makes a retry safe: the same key gives the same box while it lives.

        Raises: Invalid for a wrong spec; Refused by policy; QuotaExceeded; Unsupported or EngineError of the engine.
        """

    def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> AbstractAsyncContextManager[Box]:
        """Find the box of this conversation, or create it from `spec`. Leaving releases it and does not destroy it.

        Raises: as `create`; BoxBusy while another session holds the box.
        """

    async def import_box(
        self, file: str | Path, *, provider: str = "", profile: str | None = None, image: str | None = None,
        name: str | None = None,
    ) -> Box:  # fmt: skip
        """Create a box from a file of `Box.export`, on the same or another provider; arguments win over the file.

        `Box.notes` says what could not be taken over. Raises: as `create`; Invalid if the file is no exported box.
        """

    async def attach(self, box_id: str, *, takeover: bool = False) -> Box:
        """Lease a box and return a handle on it.

        Raises: NotFound or Gone; BoxBusy while another session holds it, unless it is taken over; HeldElsewhere if
        another process keeps it that cannot be reached.
        """

    async def observe(self, box_id: str) -> Box:
        """Return a handle that only looks and needs no lease. Raises: NotFound or Gone; its changes raise Refused."""

    async def find(self, text: str) -> BoxInfo:
        """Find a box by its id, the beginning of it, or its name. Raises: NotFound or Gone; Invalid if several fit."""

    async def boxes(self) -> tuple[BoxInfo, ...]:
        """List the boxes that this caller may see, oldest first. Looking does not count as use."""

    async def destroy(self, box_id: str, *, force: bool = False) -> None:
        """Destroy a box, if it is still there. Raises: BoxBusy while another session holds it, unless forced."""

    # --- the session's current box ------------------------------------------------------------------------------

    async def current(self) -> str | None:
        """Return the id of this session's current box, which may be gone by now."""

    async def switch(self, box_id: str, *, takeover: bool = False) -> Box:
        """Make a box current and hold its lease. Raises: as `attach`."""

    async def working(self, /, **spec: Any) -> Box:
        """Return the box that this session works in: its current one, else the owner's default, else a new one.

        A box that is busy, broken or gone is skipped, and `Box.notes` says so. Raises: as `create`.
        """

    async def leave(self) -> None:
        """Release the current box."""

    async def default(self, provider: str = "") -> str | None:
        """Return the id of the owner's default box on that provider, else of its default on any."""

    async def set_default(self, box_id: str, provider: str = "") -> None: ...

    # --- volumes, receipts, skills, questions, events --------------------------------------------------------------

    @property
    def volumes(self) -> Volumes: ...

    @property
    def receipts(self) -> Receipts: ...

    @property
    def skills(self) -> Skills: ...

    @property
    def questions(self) -> Questions: ...

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Return the events after number `after`, oldest first."""

    async def providers(self, name: str = "") -> tuple[Capabilities, ...]:
        """Return what each engine, or one, can do here. Each is probed, and a broken one may take long to answer."""

    async def status(self) -> Status:
        """Tell whether boxes can be made, with reason and remedy if not. It never raises for a missing server."""

    async def close(self) -> None: ...
