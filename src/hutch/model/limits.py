"""Limits: what is asked, what is given, and by what each one is enforced."""

from enum import StrEnum

from hutch.model.record import Record


class EnforcedBy(StrEnum):
    """By what a limit bites, strongest first; `none` is refused by every built-in profile."""

    CGROUP = "cgroup"
    QUOTA = "quota"
    RLIMIT = "rlimit"
    WATCHDOG = "watchdog"
    NONE = "none"


class Limits(Record, frozen=True, kw_only=True):
    """Every limit with a number."""

    cpus: float
    memory_mb: int
    pids: int
    disk_mb: int
    open_files: int
    timeout_sec: float
    """Default of a command that names none."""
    max_timeout_sec: float
    """The longest a command may ask for; 0: no maximum."""


class LimitsAsked(Record, frozen=True, kw_only=True):
    """The limits a caller named; None: not asked."""

    cpus: float | None = None
    memory_mb: int | None = None
    pids: int | None = None
    disk_mb: int | None = None
    open_files: int | None = None
    timeout_sec: float | None = None


class Grades(Record, frozen=True, kw_only=True):
    """Which mechanism holds each limit on this machine, with this provider."""

    cpus: EnforcedBy = EnforcedBy.NONE
    memory_mb: EnforcedBy = EnforcedBy.NONE
    pids: EnforcedBy = EnforcedBy.NONE
    disk_mb: EnforcedBy = EnforcedBy.NONE
    open_files: EnforcedBy = EnforcedBy.NONE
    timeout_sec: EnforcedBy = EnforcedBy.WATCHDOG
