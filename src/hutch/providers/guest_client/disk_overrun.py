"""Boxes over a disk limit that only counting enforces: when their processes are ended, and what they may then do.

Over the limit a box still runs commands, or nobody in it could remove anything. It is then measured no longer by the
limit but by what it had when its processes were last ended: a command that removes files may take all the time it
needs, and one that goes on writing is ended again. After too many of these no command starts until files are gone,
because a box that is asked again and again would fill the disk piece by piece.
"""

from typing import NamedTuple

from hutch.errors import QuotaExceeded
from hutch.model.results import Cause, Verdict
from hutch.providers.guest_client.verdicts import MB, Excess

MOST_HITS = 8
"""The number of times in a row that commands of a box may go on writing over its limit."""


class Use(NamedTuple):
    """The amount that a box has on disk, or may have."""

    bytes: int = 0
    entries: int = 0
    """The number of names, hard links included, as a tmpfs counts them against nr_inodes."""
    unread: int = 0
    """The number of directories that could not be read, so that what they hold is unknown."""

    def exceeds(self, bound: "Use") -> bool:
        return any(have > may for have, may in zip(self, bound, strict=True))


_SPARE = Use(1 << 20, 256)
"""The disk that a command which removes files may itself need: overlay whiteouts and directories, a shell's files."""
_ANY = 1 << 62
UNKNOWN = Use(_ANY, _ANY, _ANY)


class Overrun:
    """The disk state of one box: its limit, and what happened since it was last within it."""

    def __init__(self, limit: Use, *, lived: bool = False) -> None:
        """`lived` says that the box may have been over its limit before, for which no process is ended."""
        self.limit = limit
        self._kept: Use | None = UNKNOWN if lived else None
        """What the box had when its processes were last ended, or None while it is within its limit."""
        self._hits = 0
        """The number of hits since the box was last within its limit."""
        self.excess: Excess | None = None
        """The excess at the last count, or None if the box was within its limit."""
        self.ends = 0
        """The number of times that the guest had to end processes; see `Counters.disk_ends`."""
        self.reason: Excess | None = None
        """The excess for which processes were last ended."""

    @property
    def bound(self) -> Use:
        """Return what the box may have now."""
        if self._kept is None:
            return self.limit
        return Use(*(had + spare for had, spare in zip(self._kept, _SPARE, strict=True)))

    def hit(self, used: Use) -> Excess:
        """Record that the box is over its bound. The caller then ends its processes and counts it again."""
        self.excess = self.reason = _excess(used, self.limit)
        self._kept = UNKNOWN
        self._hits += 1
        return self.reason

    def counted(self, used: Use) -> None:
        """Record a complete count that was not over the bound."""
        if not used.exceeds(self.limit):
            self._kept, self._hits, self.excess = None, 0, None
        elif self._kept is not None:
            self._kept = Use(*map(min, self._kept, used))
            self.excess = _excess(used, self.limit)

    @property
    def settling(self) -> bool:
        """Return whether no count followed the last hit yet: what a command wrote now would be taken for the old."""
        return self.excess is not None and self._kept == UNKNOWN

    @property
    def is_blocked(self) -> bool:
        """Return whether no command may start until files are removed."""
        return self.excess is not None and self._hits > MOST_HITS


def refusal(excess: Excess) -> Verdict:
    """Return the verdict of a command that was not started because its box is blocked."""
    return Verdict(
        cause=Cause.DISK,
        message=f"not started: {_describe(excess)}, and its commands went on writing",
        limit=excess.limit,
        peak=excess.used,
        unit=excess.unit,
        remedy="remove files by file operations, which still work, or raise limits.disk_mb",
    )


def full(excess: Excess, op: str) -> QuotaExceeded:
    """Return the error of an operation that would add files to a box over its limit."""
    return QuotaExceeded(
        f"nothing can be written: {_describe(excess)}",
        op=op,
        remedy="remove files, or raise limits.disk_mb",
        details={"limit": excess.limit, "used": excess.used, "unit": excess.unit},
    )


def _describe(excess: Excess) -> str:
    return f"the box is over its disk limit ({excess.used:.0f} of {excess.limit:.0f} {excess.unit})"


def _excess(used: Use, limit: Use) -> Excess:
    if used.bytes > limit.bytes:
        return Excess(used=used.bytes / MB, limit=limit.bytes / MB, unit="MB")
    if used.entries > limit.entries:
        return Excess(used=float(used.entries), limit=float(limit.entries), unit="files")
    return Excess(used=float(used.unread), limit=float(limit.unread), unit="directories that cannot be counted")
