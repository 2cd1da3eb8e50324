"""Verdicts: why a command ended as it did, and what it used. Pure functions turn the facts into plain words.

Remedies for refusals that a failed command shows_refused_fork about in its own words are hints, never facts.
"""

import signal
from typing import Protocol

import msgspec

from hutch.model.limits import Limits
from hutch.model.results import Cause, Usage, Verdict
from hutch.model.spec import EffectiveSpec, NetworkMode

MB = 1 << 20
_COMPLAINTS = (b"Resource temporarily unavailable", b"can't start new thread", b"annot fork", b"an't fork")
"""The messages of strerror(EAGAIN), of Python when a thread is refused, and of shells."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A job's end or current state as its guest reports it, checked for its types, not for truth."""

    job: str
    ended: bool
    exit_code: int | None
    signal: int | None
    timed_out: bool
    cancelled: bool
    lingering: bool
    shared: bool
    """Whether other jobs ran during this one."""
    wall: float | None
    usage: tuple[float, float, int]
    """The user seconds, the system seconds, and the largest resident set in kB."""
    stdout_total: int
    stderr_total: int
    dropped: int
    pid: int = 0
    """The pid of the job's first process inside the box, or 0 if the guest does not say."""
    cleared: int = 0
    """The number of processes left by earlier commands that were killed so that this one could start."""


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """The amount by which a box is over a disk limit that counting enforces."""

    used: float
    limit: float
    unit: str


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's counters for the whole box since it was made. None means that it does not count that."""

    oom_kills: int = 0
    pids_hits: int | None = None
    memory_peak_bytes: int | None = None
    pids_peak: int | None = None
    disk_ends: int = 0
    """The number of times that processes were ended because the box was over its disk limit."""
    excess: Excess | None = None
    """The excess for which processes were last ended."""


class CounterSource(Protocol):
    """Reads an engine's counters before and after every command, so it must be cheap and must not block."""

    def read(self) -> Counters: ...


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """One filesystem of the box, as its guest's statvfs saw it."""

    size: int
    free: int
    files: int
    files_free: int
    read_only: bool = False

    @property
    def full(self) -> str:
        """Return what has run out: "space", "files" or an empty string."""
        if self.read_only or not self.size:
            return ""
        if self.free == 0:
            return "space"
        return "files" if self.files and self.files_free == 0 else ""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The free capacity of the box, which its guest reports after a failure."""

    space: dict[str, Space]
    tasks: int | None = None
    """The number of processes and threads, or None if not asked, because the engine counts refusals."""
    started: int | None = None
    """The number of them, ended or not, that are younger than the command, or None as above."""


def decide(
    end: End,
    *,
    before: Counters | None,
    after: Counters,
    limits: Limits,
    timeout_sec: float | None = None,
    room: Room | None = None,
    fork_refused: bool = False,
    trouble: str = "",
) -> Verdict:
    """Return why the job ended. Without `before` nobody saw its start, so growth of the counters is unknown.
    `fork_refused` is what `shows_refused_fork` returned; `trouble` (see `Instance`) may explain a failure that met no
    limit."""
    verdict = _from_facts(end, before, after, limits, timeout_sec, room, fork_refused)
    return verdict.but(remedy=trouble) if trouble and verdict.cause in (Cause.EXIT, Cause.TIMEOUT) else verdict


def _from_facts(
    end: End,
    before: Counters | None,
    after: Counters,
    limits: Limits,
    timeout_sec: float | None,
    room: Room | None,
    fork_refused: bool,
) -> Verdict:
    failed = end.exit_code != 0
    if failed and not end.timed_out and after.excess is not None and _ended_for_disk(end, before, after):
        return _over_disk(after.excess, seen=before is not None, shared=end.shared)
    if end.cancelled:
        return Verdict(cause=Cause.CANCELLED, message="cancelled: the caller gave up, and the command was ended")
    if end.timed_out:
        return _timeout(end, timeout_sec, limits)
    if failed:
        verdict = _limit_met(end, before, after, limits, room or Room(space={}), fork_refused)
        if verdict is not None:
            return verdict
    if end.dropped:
        return Verdict(
            cause=Cause.OUTPUT_LIMIT,
            message=f"the output was larger than the box keeps; {end.dropped} bytes from its middle are lost",
            remedy="write large output to a file, or read it while the command runs",
        )
    if end.signal is not None:
        return _signalled(end.signal, before)
    if failed:
        return _exited(end.exit_code or 0)
    return Verdict(cause=Cause.OK)


def shows_refused_fork(output: bytes) -> bool:
    """Return whether a program says that no process could be started, which is a hint, never a fact."""
    return any(words in output for words in _COMPLAINTS)


def cannot_start(limits: Limits, after: Counters, shared: bool) -> Verdict:
    """Return the verdict of a command for which the kernel refused one more process."""
    return _pids(limits, after, "the command could not be started", shared)


def _limit_met(
    end: End,
    before: Counters | None,
    after: Counters,
    limits: Limits,
    room: Room,
    fork_refused: bool,
) -> Verdict | None:
    """Return the verdict if the failed command ran into a limit of the box, else None."""
    if before is not None and after.oom_kills > before.oom_kills:
        return _oom(end, after, limits)
    if _by_signal(end, signal.SIGSYS):
        return Verdict(
            cause=Cause.SYSCALL_DENIED,
            message="ended by SIGSYS: it made a system call that boxes may not make",
            remedy="do it another way; mounts, kernel modules, tracing and new namespaces are not available in a box",
        )
    if before is not None and (after.pids_hits or 0) > (before.pids_hits or 0):
        return _pids(limits, after, "a process could not start another one", end.shared)
    if room.tasks is not None and room.tasks >= limits.pids:
        # Nobody has counted refusals here, so a full box is the best guess at why the command failed.
        full = _pids(limits, after, "the box was full of processes when the command failed", end.shared)
        return full.but(peak=float(room.tasks), certain=False)
    if fork_refused and room.tasks is not None and (room.started or 0) + room.tasks >= limits.pids:
        # The box has emptied again. It was full if all that the command started had lived at once.
        what = "the command says that it could not start another process, after enough to fill the box"
        return _pids(limits, after, what, end.shared).but(certain=False)
    for path, filesystem in room.space.items():
        if filesystem.full:
            return _disk(path, filesystem, end.shared)
    return None


def _ended_for_disk(end: End, before: Counters | None, after: Counters) -> bool:
    """Return whether the disk limit ended it, which is a guess if nobody saw the command start."""
    return after.disk_ends > before.disk_ends if before is not None else end.cancelled and after.disk_ends > 0


def _timeout(end: End, timeout_sec: float | None, limits: Limits) -> Verdict:
    longest = limits.max_timeout_sec
    if longest and timeout_sec is not None and timeout_sec >= longest:
        remedy = "start it as a job, or do less at once; no command may run longer here"
    else:
        remedy = "give it a longer timeout, start it as a job, or do less at once"
    limit = f" of {timeout_sec:g} s" if timeout_sec is not None else ""
    return Verdict(
        cause=Cause.TIMEOUT,
        message=f"timeout{limit} reached; the command's processes were killed, the box goes on",
        limit=timeout_sec,
        peak=end.wall,
        unit="s",
        remedy=remedy,
    )


def _oom(end: End, after: Counters, limits: Limits) -> Verdict:
    peak = after.memory_peak_bytes / MB if after.memory_peak_bytes is not None else None
    reached = f"memory limit of {limits.memory_mb} MB reached"
    if peak is not None:
        # An engine that keeps a box's files in memory adds their size to the limit.
        files = ", the room for files in memory included" if peak > limits.memory_mb + 1 else ""
        reached += f" (peak {peak:.0f} MB{files})"
    if not _by_signal(end, signal.SIGKILL):
        reached += "; one of the command's processes was killed for it"
    return Verdict(
        cause=Cause.OOM,
        message=reached + _doubt(end.shared),
        limit=float(limits.memory_mb),
        peak=peak,
        unit="MB",
        remedy="raise limits.memory_mb, or process the data in pieces",
        certain=not end.shared,
    )


def _pids(limits: Limits, after: Counters, what: str, shared: bool) -> Verdict:
    return Verdict(
        cause=Cause.PIDS,
        message=f"limit of {limits.pids} processes and threads reached: {what}" + _doubt(shared),
        limit=float(limits.pids),
        peak=float(after.pids_peak) if after.pids_peak is not None else None,
        unit="processes",
        remedy="raise limits.pids, start fewer at once, or end background processes",
        certain=not shared,
    )


def _disk(path: str, filesystem: Space, shared: bool) -> Verdict:
    if filesystem.full == "files":
        message = f"no room for another file on {path}: all {filesystem.files} inodes are used"
        limit, unit = float(filesystem.files), "files"
    else:
        limit, unit = filesystem.size / MB, "MB"
        message = f"no space left on {path}: all {limit:.0f} MB are used"
    return Verdict(
        cause=Cause.DISK,
        message=message + _doubt(shared),
        limit=limit,
        peak=limit,
        unit=unit,
        remedy="remove files, or raise limits.disk_mb",
        certain=not shared,
    )


def _over_disk(excess: Excess, *, seen: bool, shared: bool) -> Verdict:
    return Verdict(
        cause=Cause.DISK,
        message=f"disk limit of {excess.limit:.0f} {excess.unit} passed: the box had {excess.used:.0f} {excess.unit}; "
        "its processes were ended, its files stay" + _doubt(shared),
        limit=excess.limit,
        peak=excess.used,
        unit=excess.unit,
        remedy="remove files, or raise limits.disk_mb",
        certain=seen and not shared,
    )


def _signalled(number: int, before: Counters | None) -> Verdict:
    message = f"ended by {_name(number)}"
    if number == signal.SIGKILL and before is None:
        message += "; whether memory had run out cannot be said, its start was not seen"
        return Verdict(cause=Cause.SIGNAL, message=message, certain=False)
    return Verdict(cause=Cause.SIGNAL, message=message)


def _exited(code: int) -> Verdict:
    message, remedy = f"exit code {code}", ""
    if code == 127:
        remedy = "127 usually means that a program was not found"
    elif code == 126:
        remedy = "126 usually means that a file is not executable"
    elif 128 < code < 128 + signal.NSIG:
        remedy = f"usually means that {_name(code - 128)} ended a process of it"
    return Verdict(cause=Cause.EXIT, message=message, remedy=remedy)


def _by_signal(end: End, number: int) -> bool:
    """Return whether the signal ended the command itself, or its child as a shell reports it."""
    return end.signal == number or end.exit_code == 128 + number


def _doubt(shared: bool) -> str:
    return "; several commands ran, so it cannot be said which one caused it" if shared else ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_LAST_WORDS = 4096
"""Bytes at the end of each stream that are searched."""
_NO_NETWORK = (
    b"Could not resolve", b"Temporary failure in name resolution", b"Temporary failure resolving",
    b"Name or service not known", b"Network is unreachable", b"EAI_AGAIN", b"ENOTFOUND", b"ENETUNREACH",
)  # fmt: skip
_READ_ONLY = (b"Read-only file system", b"EROFS", b"read only lock file")
_NOT_ROOT = (
    b"are you root?",
    b"Could not open lock file",
    b"sudo: not found",
    b"sudo: command not found",
    b"requested operation requires superuser",
)


def remedy_for(stdout: bytes, stderr: bytes, spec: EffectiveSpec, user: str) -> str:
    """Return what to do about the refusal that the output names, if this box would have refused that; else ""."""
    words = stdout[-_LAST_WORDS:] + stderr[-_LAST_WORDS:]
    if spec.network is NetworkMode.OFF and _any(_NO_NETWORK, words):
        return "this box has no network: use one with network on, for example of profile network_basic or app"
    if spec.read_only_root and _any((*_READ_ONLY, *_NOT_ROOT), words):
        return (
            "the system of this box is read-only: write below /workspace, /tmp or the home directory, "
            "or use a box with a writable system, for example of profile code or app"
        )
    if user not in ("root", "0") and _any(_NOT_ROOT, words):
        return "there is no sudo in a box: run the command as user root"
    return ""


def _any(complaints: tuple[bytes, ...], words: bytes) -> bool:
    return any(complaint in words for complaint in complaints)


def usage_of(end: End, after: Counters) -> Usage:
    user, system, resident_kb = end.usage
    return Usage(
        wall_sec=end.wall or 0.0,
        cpu_user_sec=user,
        cpu_system_sec=system,
        memory_peak_mb=resident_kb / 1024,
        box_memory_peak_mb=megabytes(after.memory_peak_bytes),
    )


def exit_code(end: End) -> int | None:
    """Return the exit code as a shell reports it. The guest distinguishes the two ways to end, and so do verdicts."""
    return end.exit_code if end.signal is None else 128 + end.signal


def megabytes(size: int | None) -> float | None:
    return None if size is None else size / MB
