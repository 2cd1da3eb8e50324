"""Results of commands and jobs: output, verdict, usage."""

from enum import StrEnum

import msgspec

from hutch.model.record import Record


class Cause(StrEnum):
    """Why a command ended as it did."""

    OK = "ok"
    EXIT = "exit"
    TIMEOUT = "timeout"
    OOM = "oom"
    PIDS = "pids"
    DISK = "disk"
    SIGNAL = "signal"
    SYSCALL_DENIED = "syscall_denied"
    EGRESS_DENIED = "egress_denied"
    OUTPUT_LIMIT = "output_limit"
    CANCELLED = "cancelled"
    BOX_BROKEN = "box_broken"
    UNKNOWN = "unknown"
    """A cause that only a newer release knows; the message explains it."""


class Verdict(Record, frozen=True, kw_only=True):
    """Why a command ended as it did, what limit it met, and what to do about it."""

    cause: Cause
    message: str = ""
    limit: float | None = None
    """The limit that was met, in the unit the message names."""
    peak: float | None = None
    """The highest use of the command or its box, in the same unit."""
    unit: str = ""
    remedy: str = ""
    certain: bool = True
    """False if several commands ran in the box, so that another one may have caused it."""

    @property
    def ok(self) -> bool:
        return self.cause is Cause.OK


class Usage(Record, frozen=True, kw_only=True):
    """What the command used: the numbers of wait4(2) for its own processes, and the box's peak."""

    wall_sec: float = 0.0
    cpu_user_sec: float = 0.0
    cpu_system_sec: float = 0.0
    memory_peak_mb: float | None = None
    """Largest resident set of the command and the children it waited for."""
    box_memory_peak_mb: float | None = None


class Result(Record, frozen=True, kw_only=True):
    """The result of a command, however it ended."""

    job_id: str
    exit_code: int | None
    """128 plus the signal's number if a signal ended it, as a shell reports it; None if it never ran to an end."""
    signal: int | None = None
    """The signal that ended it; None if it ended by itself."""
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_total: int = 0
    """Bytes that the command wrote; more than len(stdout_bytes) if the middle was left out."""
    stderr_total: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    lingering: bool = False
    """Whether descendants still held the output open at the end; nobody waited for them."""
    verdict: Verdict = msgspec.field(default_factory=lambda: Verdict(cause=Cause.OK))
    usage: Usage = msgspec.field(default_factory=Usage)
    notes: tuple[str, ...] = ()
    """Remarks for the caller: clamped timeouts, a replaced box, ..."""

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.verdict.cause is Cause.OK

    @property
    def duration_sec(self) -> float:
        return self.usage.wall_sec


class JobState(StrEnum):
    RUNNING = "running"
    EXITED = "exited"


class JobInfo(Record, frozen=True, kw_only=True):
    """A job, as `job.info()` and `box.jobs()` show it."""

    id: str
    command: tuple[str, ...]
    state: JobState
    pid: int
    started_at: float
    """Unix time."""
    name: str = ""
    exit_code: int | None = None
    signal: int | None = None
    pty: bool = False
    timeout_sec: float | None = None
    """Seconds after which it is killed; None if it may run as long as its box."""
    stdout_total: int = 0
    stderr_total: int = 0
    dropped: int = 0
    """Bytes of output that were past every bound and are lost."""
    verdict: Verdict | None = None
    usage: Usage | None = None


class Chunk(Record, frozen=True, kw_only=True):
    """A piece of a job's output, and the cursor of the next piece."""

    data: bytes
    cursor: int
    """Pass it to the next read of the same stream."""
    eof: bool
    dropped: int = 0
    """Bytes between the cursor given and the first byte of `data` that are lost."""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")
