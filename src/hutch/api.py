"""The public protocols: `Hutch`, `Box`, `Job`, `Files`. The embedded and the remote form both implement them."""

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
from hutch.model.skills import (
    FoundSkill,
    SkillBinding,
    SkillFile,
    SkillInfo,
    SkillPlace,
    SkillPreview,
    SkillVersion,
)
from hutch.model.spec import Adjustment, EffectiveSpec
from hutch.model.spec_kinds import Retention
from hutch.model.state import State
from hutch.model.status import Status

Shell = str
Argv = Sequence[str]


class Files(Protocol):
    """Files as the box's user sees them. Relative paths start at the workdir; errors are also the builtin ones."""

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """A range, or all. Without a limit a file over 64 MB raises FileTooLarge: use `open` or a range."""

    async def read_text(self, path: str) -> str:
        """UTF-8 with replacement."""

    async def read_lines(self, path: str, *, start: int = 1, count: int = 2000) -> tuple[list[str], bool]:
        """Lines from the `start`-th on, and whether that reached the end of the file."""

    def open(self, path: str, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        """The content in pieces, with back-pressure, of any size."""

    async def write(
        self, path: str, data: bytes | str | AsyncIterator[bytes], *, append: bool = False, mode: int | None = None,
        sync: bool = False, parents: bool = True,
    ) -> FileInfo:  # fmt: skip
        """Atomic (temporary file and rename) unless appending; keeps the mode of a file that exists."""

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        """Replace an exact match, bytes in, bytes out. NoMatch unless it is there once (or `replace_all`);
        FileChanged if `expect` (a digest from an earlier edit or `digest`) is not the file's."""

    async def digest(self, path: str) -> str: ...

    async def stat(self, path: str) -> FileInfo: ...

    async def exists(self, path: str) -> bool: ...

    async def list(self, path: str = ".") -> list[FileInfo]:
        """Entries of one directory, by name."""

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None: ...

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None: ...

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None: ...

    async def glob(self, pattern: str, *, root: str = ".", limit: int = 10_000) -> Matches:
        """`**` crosses directories; hidden names match only a pattern that names the dot."""

    async def grep(
        self, pattern: str, *, root: str = ".", glob: str | None = None, ignore_case: bool = False,
        limit: int = 1000, timeout_sec: float = 10.0,
    ) -> GrepResult:  # fmt: skip
        """A Python regular expression over text files; what was found until a bound is returned, and says so."""

    def watch(self, path: str = ".", *, recursive: bool = True) -> "Watch":
        """Changes from now on; the watch is in place when the first item is awaited or `async with` is entered."""

    async def copy_in(self, source: str | Path, target: str) -> int:
        """A host file or tree into the box, streamed; returns bytes copied."""

    async def copy_out(self, source: str, target: str | Path, *, most: int | None = None) -> int:
        """A box's file or tree to the host, streamed. Names that would leave `target` are refused, and so is more than
        `most` bytes on disk (FileTooLarge); without it, more than the box's own disk can hold, and 16 GB of an image.
        """


class Watch(Protocol):
    """Changes of files as they happen. Cancelling one wait, as a timeout does, loses none."""

    def __aiter__(self) -> AsyncIterator[Change]: ...

    async def __anext__(self) -> Change: ...

    async def __aenter__(self) -> "Watch": ...

    async def __aexit__(self, *_: object) -> None: ...

    async def aclose(self) -> None: ...


class Job(Protocol):
    """A process as a resource."""

    @property
    def id(self) -> str: ...

    async def info(self) -> JobInfo: ...

    async def read(
        self, cursor: int | None = None, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0
    ) -> Chunk:
        """From `cursor`; None goes on where this handle's last read of that stream ended."""

    def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]: ...

    async def write(self, data: bytes | str) -> None: ...

    async def close_stdin(self) -> None: ...

    async def signal(self, number: int = 15) -> None: ...

    async def resize(self, rows: int, cols: int) -> None: ...

    async def wait(self, timeout_sec: float | None = None) -> Result: ...


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
        """What the caller should know of the box itself: that it is new, or that an earlier one was lost."""

    @property
    def files(self) -> Files: ...

    async def exec(
        self, command: Shell | Argv, *, cwd: str | None = None, env: dict[str, str] | None = None,
        stdin: bytes | str | None = None, timeout: float | None = None, user: str | None = None,
        keep_output: int = 1 << 20,
    ) -> Result:  # fmt: skip
        """Run to the end. Returns a result whatever the command did, and raises only if it could not be run."""

    def stream(
        self, command: Shell | Argv, *, cwd: str | None = None, env: dict[str, str] | None = None,
        stdin: bytes | str | None = None, timeout: float | None = None, user: str | None = None,
    ) -> "Stream":  # fmt: skip
        """Run and read along: iterate for ("stdout" | "stderr", bytes); `.result` is there at the end."""

    async def start(
        self, command: Shell | Argv, *, cwd: str | None = None, env: dict[str, str] | None = None,
        timeout: float | None = None, user: str | None = None, pty: bool = False, rows: int = 24, cols: int = 80,
        name: str = "", follow: bool = False,
    ) -> Job:  # fmt: skip
        """Start a job; stdin stays open. `follow`: the caller reads along, so output waits for `Job.follow` instead of
        being spilled."""

    async def jobs(self) -> tuple[JobInfo, ...]: ...

    async def job(self, job_id: str) -> Job: ...

    async def forget(self, job_id: str) -> None:
        """Drop an ended job and its output; a running one is a Conflict."""

    async def usage(self) -> Usage: ...

    async def info(self) -> BoxInfo:
        """As everybody sees it: state, lease, clocks. Looking extends nothing."""

    async def state(self) -> State: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def stop(self) -> None:
        """End a persistent box's processes and keep its files; the next attach brings it back."""

    async def rename(self, name: str) -> None:
        """An empty name is none. Conflict if another live box of its owner has it."""

    async def change(
        self, /, *, retention: Retention | None = None, idle_timeout_sec: float | None = None, **limits: float
    ) -> tuple[str, ...]:
        """Apply to the live box; the names of those that would need a new one are returned, unapplied (B14)."""

    async def renew(self) -> None:
        """Extend the lease from now; LeaseLost if it has run out."""

    async def release(self) -> None:
        """Give up the lease; the box goes on until its clocks end it."""

    async def export(self, file: str | Path) -> Moved:
        """All of it in one file of this machine, for `Hutch.import_box`: workspace, home, what was changed in the
        system, spec and labels; not its processes, nor the values of secrets. The box goes on."""

    async def destroy(self) -> None: ...


class Stream(Protocol):
    """A command that is read while it runs. Leaving the iteration early kills it."""

    def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]: ...

    @property
    def result(self) -> Result:
        """Set when the iteration has ended."""


class Volumes(Protocol):
    """Named directories that outlive boxes, each of one owner."""

    async def create(self, name: str) -> VolumeInfo: ...

    async def all(self) -> tuple[VolumeInfo, ...]: ...

    async def get(self, name: str) -> VolumeInfo: ...

    async def remove(self, name: str) -> None:
        """Conflict while a box works in it."""


class Receipts(Protocol):
    """The tamper-evident record of what was done to boxes; it outlives them. Where a method takes a box, it also takes
    the id of a daybook, as `chains` names it."""

    async def list(self, box_id: str, after: int = 0, limit: int = 1000) -> tuple[Receipt, ...]:
        """In order, from past number `after` on. NotFound if there are none of this box."""

    async def chains(self) -> tuple[Chain, ...]:
        """One for each box that has, or had, receipts, and the daybooks."""

    async def verify(self, box_id: str = "") -> tuple[ChainCheck, ...]:
        """Whether every receipt is what was written: of one box, or of all."""

    def export(self, box_id: str = "") -> AsyncIterator[bytes]:
        """Lines of JSON that `hutch receipts verify --file` can check anywhere."""

    async def note(
        self, box_id: str, op: str, details: Mapping[str, Detail] | None = None, *, error: str = "",
        duration_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """Put a word of your own on record: `op` is `tool.NAME`, `mcp.NAME` or `note.NAME`. An empty `box_id` is for
        what concerns no box: it goes into the daybook, a chain for each day. `error` is the code it ended with."""


class Questions(Protocol):
    """What agents want to do and somebody has to decide: `Tools(hutch, ask=hutch.questions.ask)` puts it here, and
    whoever has people to ask (a dashboard, a chat) shows it and answers. Embedded, those of this process."""

    async def waiting(self) -> tuple[QuestionInfo, ...]:
        """Oldest first."""

    async def answer(self, question_id: str, answer: Answer | str) -> None:
        """`allow`, `deny` or `always`. The first answer counts; NotFound if nobody waits for it any more."""

    async def ask(self, request: AskRequest) -> Answer:
        """Waits for the answer; Timeout if none comes. Leaving withdraws the question."""


class Skills(Protocol):
    """Skill packages of this owner: what an agent can activate, and their versions. See docs/guides/skills.md."""

    async def all(self) -> tuple[SkillInfo, ...]: ...

    async def get(self, name: str) -> SkillInfo: ...

    async def body(self, name: str) -> str:
        """The instructions of its SKILL.md, without the front matter."""

    async def files(self, name: str, version: str = "") -> tuple[SkillFile, ...]: ...

    async def read_file(self, name: str, path: str, version: str = "") -> bytes: ...

    async def versions(self, name: str) -> tuple[SkillVersion, ...]:
        """Newest first."""

    async def export(self, name: str, version: str = "") -> bytes:
        """A zip; the same version gives the same bytes."""

    async def scan(self, directory: str | Path) -> tuple[FoundSkill, ...]:
        """The skills in a tree of directories of this machine; `problem` says why one could not be installed."""

    async def preview(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False
    ) -> SkillPreview:
        """What `install` would bring, and what that changes."""

    async def install(
        self, source: str | Path | bytes, *, path: str = "", ref: str = "", local_git: bool = False, digest: str = ""
    ) -> SkillInfo:
        """From a directory, a zip (a file or its bytes), a git URL, or with `local_git` a repository on this machine.
        `path` says which of several skills; with `digest` only exactly what a preview has shown is installed.
        The same content twice is one version. Conflict while the skill is pinned to another one."""

    async def create(self, name: str, description: str, body: str = "") -> SkillInfo:
        """A new skill of one file."""

    async def write_file(
        self, name: str, path: str, data: bytes | str, *, executable: bool = False, expect: str = ""
    ) -> SkillInfo:
        """A new version in which this file is so, and every other as it was. `expect`: Conflict if another version
        than this one is active."""

    async def remove_file(self, name: str, path: str, *, expect: str = "") -> SkillInfo: ...

    async def save(self, name: str, box: Box, path: str = "") -> SkillInfo:
        """What was edited in a box (by default in the skill's state directory under `edit`) as a new version."""

    async def upgrade(self, name: str) -> SkillInfo:
        """The newest from where the active version came."""

    async def rollback(self, name: str, version: str = "") -> SkillInfo:
        """To the version before, or to the one named."""

    async def pin(self, name: str, version: str = "") -> SkillInfo:
        """Nothing changes its active version until it is unpinned."""

    async def unpin(self, name: str) -> SkillInfo: ...

    async def remove(self, name: str) -> None:
        """With all its versions; running boxes no longer show it."""

    async def bindings(self) -> tuple[SkillBinding, ...]: ...

    async def bind(self, group: str, names: Sequence[str]) -> SkillBinding:
        """Boxes made with `skills=group` show exactly these, now and later. No names: the group ends."""

    async def prepare(self, name: str, box: Box) -> SkillPlace:
        """Make a skill ready in a box: its dependencies, its state directory; what its programs need to be told."""


class Hutch(Protocol):
    """The front door: one session's view of the boxes there are."""

    @property
    def session(self) -> str:
        """Who holds the leases that this object acquires."""

    def for_session(self, name: str) -> "Hutch":
        """The same boxes through the eyes of another session (another agent of this application). Closing it closes
        nothing; it lives as long as this one."""

    # --- boxes ----------------------------------------------------------------------------------------------

    def box(self, /, **spec: Any) -> AbstractAsyncContextManager[Box]:
        """A new box, destroyed at exit."""

    async def create(self, /, *, key: str = "", **spec: Any) -> Box:
        """A new box that stays until it is destroyed or its clocks end it. `key` makes a retry safe: the same key
        gives the same box while it lives."""

    def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> AbstractAsyncContextManager[Box]:
        """The box of this conversation: found, or made from `spec`. Leaving releases it and does not destroy it."""

    async def import_box(
        self, file: str | Path, *, provider: str = "", profile: str | None = None, image: str | None = None,
        name: str | None = None,
    ) -> Box:  # fmt: skip
        """A new box from a file that `Box.export` wrote, here or elsewhere, on the same or another provider; what is
        given wins over what the file says. `Box.notes` tells what was left behind."""

    async def attach(self, box_id: str, *, takeover: bool = False) -> Box:
        """A handle on a box there is. BoxBusy while another session holds it, unless it is taken over."""

    async def observe(self, box_id: str) -> Box:
        """A handle that only looks: it needs no lease and extends nothing. Changing through it is refused (P8)."""

    async def find(self, text: str) -> BoxInfo:
        """The box that `text` means: its id, the beginning of its id, or its name."""

    async def boxes(self) -> tuple[BoxInfo, ...]:
        """Those this caller may see, oldest first. Looking extends nothing."""

    async def destroy(self, box_id: str, *, force: bool = False) -> None:
        """BoxBusy while another session holds it, unless forced. Destroying what is gone already is fine."""

    # --- the session's current box (P6, P7) --------------------------------------------------------------------

    async def current(self) -> str | None:
        """The id of this session's current box; it may have gone meanwhile."""

    async def switch(self, box_id: str, *, takeover: bool = False) -> Box:
        """Make a box current; the session holds its lease from now on."""

    async def working(self, /, **spec: Any) -> Box:
        """The box a call of this session works in: its current one, else the owner's default, else a new one from
        `spec`. A box that is busy, broken or gone is not a crash: the next is tried, and `Box.notes` says so."""

    async def leave(self) -> None:
        """Release the current box."""

    async def default(self, provider: str = "") -> str | None:
        """The owner's default box on that provider, else its default anywhere."""

    async def set_default(self, box_id: str, provider: str = "") -> None: ...

    # --- what there is ------------------------------------------------------------------------------------------

    @property
    def volumes(self) -> Volumes: ...

    @property
    def receipts(self) -> Receipts: ...

    @property
    def skills(self) -> Skills: ...

    @property
    def questions(self) -> Questions: ...

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Those after the `seq` that was seen last, oldest first."""

    async def providers(self, name: str = "") -> tuple[Capabilities, ...]:
        """What each engine can do here, or that one alone. Each is tried: one that is out of order can take long."""

    async def status(self) -> Status:
        """Always answers; tells disabled, unreachable, unavailable and degraded apart, with reason and remedy."""

    async def close(self) -> None: ...
