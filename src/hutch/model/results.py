"""What a command left behind: output, verdict, usage."""

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
    """Told by a server of a newer release; the message says what it is."""


class Verdict(Record, frozen=True, kw_only=True):
    """Why an exec ended as it did, what limit it met, and what to do about it."""

    cause: Cause
    message: str = ""
    limit: float | None = None
    """The limit that was met, in the unit the message names."""
    peak: float | None = None
    """How far the command or its box went, in the same unit."""
    unit: str = ""
    remedy: str = ""
    certain: bool = True
    """False: the fact belongs to the box and several commands ran; this one may not have caused it."""

    @property
    def ok(self) -> bool:
        return self.cause is Cause.OK


class Usage(Record, frozen=True, kw_only=True):
    """What the command used: wait4's numbers for its own processes, the box's peak beside them."""

    wall_sec: float = 0.0
    cpu_user_sec: float = 0.0
    cpu_system_sec: float = 0.0
    memory_peak_mb: float | None = None
    """Largest resident set of the command and the children it waited for."""
    box_memory_peak_mb: float | None = None


class Result(Record, frozen=True, kw_only=True):
    """What `exec` returns, whatever the command did."""

    job_id: str
    exit_code: int | None
    """None: it did not exit by itself (a signal ended it)."""
    signal: int | None = None
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_total: int = 0
    """Bytes the command wrote; larger than len(stdout_bytes) when the middle was left out."""
    stderr_total: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    lingering: bool = False
    """Descendants still held the output open when the command had ended; they were not waited for."""
    verdict: Verdict = msgspec.field(default_factory=lambda: Verdict(cause=Cause.OK))
    usage: Usage = msgspec.field(default_factory=Usage)
    notes: tuple[str, ...] = ()
    """What the caller should know: clamped timeouts, a replaced box, ..."""

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
    """A process as a resource, as `job.info()` and `box.jobs()` show it."""

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
    """Seconds after which it is killed; None: it may run as long as its box."""
    stdout_total: int = 0
    stderr_total: int = 0
    dropped: int = 0
    """Bytes of output that were past every bound and are lost."""
    verdict: Verdict | None = None
    usage: Usage | None = None


class Chunk(Record, frozen=True, kw_only=True):
    """A piece of a job's output, and where to go on reading."""

    data: bytes
    cursor: int
    """Pass it to the next read of the same stream."""
    eof: bool
    dropped: int = 0
    """Bytes between the cursor given and the first byte of `data` that are lost."""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")
