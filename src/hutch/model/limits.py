"""Limits: what is asked, what is given, and what enforces each."""

from enum import StrEnum

from hutch.model.record import Record


class EnforcedBy(StrEnum):
    """What enforces a limit, strongest first; every built-in profile refuses `none`."""

    CGROUP = "cgroup"
    QUOTA = "quota"
    RLIMIT = "rlimit"
    WATCHDOG = "watchdog"
    NONE = "none"


class Limits(Record, frozen=True, kw_only=True):
    """All limits of a box."""

    cpus: float
    memory_mb: int
    pids: int
    disk_mb: int
    open_files: int
    timeout_sec: float
    """The timeout of a command that names none."""
    max_timeout_sec: float
    """The longest timeout that a command may ask for; 0 for no maximum."""


class LimitsAsked(Record, frozen=True, kw_only=True):
    """The limits that a caller asked for; None for others."""

    cpus: float | None = None
    memory_mb: int | None = None
    pids: int | None = None
    disk_mb: int | None = None
    open_files: int | None = None
    timeout_sec: float | None = None


class Grades(Record, frozen=True, kw_only=True):
    """The mechanism that enforces each limit on this machine, with this provider."""

    cpus: EnforcedBy = EnforcedBy.NONE
    memory_mb: EnforcedBy = EnforcedBy.NONE
    pids: EnforcedBy = EnforcedBy.NONE
    disk_mb: EnforcedBy = EnforcedBy.NONE
    open_files: EnforcedBy = EnforcedBy.NONE
    timeout_sec: EnforcedBy = EnforcedBy.WATCHDOG
