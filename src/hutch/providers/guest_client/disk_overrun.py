"""A box over its disk limit, where only a count holds that limit: when its processes are ended, what it may then do.

Over the limit a box still runs commands, or nobody in it could remove anything. The measure is then no longer the limit
but what the box had when its processes were last ended: whoever removes may take all the time he needs, whoever goes on
writing is ended again. After too many of these no command starts until files are gone, because a box that is asked
again and again would fill the disk piece by piece.
"""

from typing import NamedTuple

from hutch.errors import QuotaExceeded
from hutch.model.results import Cause, Verdict
from hutch.providers.guest_client.verdicts import MB, Excess

MOST_HITS = 8
"""How often in a row commands of a box may go on writing over its limit."""


class Use(NamedTuple):
    """What a box has on disk, or may have."""

    bytes: int = 0
    entries: int = 0
    """Names, hard links included, as a tmpfs counts them against nr_inodes."""
    unread: int = 0
    """Directories that could not be counted: what they hold is unknown."""

    def exceeds(self, bound: "Use") -> bool:
        return any(have > may for have, may in zip(self, bound, strict=True))


_SPARE = Use(1 << 20, 256)
"""What a command that removes may itself need: the directories and whiteouts of an overlay, a shell's own files."""
_ANY = 1 << 62
UNKNOWN = Use(_ANY, _ANY, _ANY)


class Overrun:
    """Of one box."""

    def __init__(self, limit: Use, *, lived: bool = False) -> None:
        """`lived`: it may have been over its limit before we came, and nobody has to be ended for that."""
        self.limit = limit
        self._kept: Use | None = UNKNOWN if lived else None
        """What it had when its processes were last ended; None: it is within its limit."""
        self._hits = 0
        """Since it was last within its limit."""
        self.excess: Excess | None = None
        """How it stood when we last looked; None: within its limit."""
        self.ends = 0
        """How often the guest has had to end processes; see `Counters.disk_ends`."""
        self.reason: Excess | None = None
        """Why they were last ended."""

    @property
    def bound(self) -> Use:
        """What it may have now."""
        if self._kept is None:
            return self.limit
        return Use(*(had + spare for had, spare in zip(self._kept, _SPARE, strict=True)))

    def hit(self, used: Use) -> Excess:
        """It has more than that: its processes are to be ended, and then it is to be counted anew."""
        self.excess = self.reason = _excess(used, self.limit)
        self._kept = UNKNOWN
        self._hits += 1
        return self.reason

    def counted(self, used: Use) -> None:
        """All that it has, and it was not over the bound."""
        if not used.exceeds(self.limit):
            self._kept, self._hits, self.excess = None, 0, None
        elif self._kept is not None:
            self._kept = Use(*map(min, self._kept, used))
            self.excess = _excess(used, self.limit)

    @property
    def settling(self) -> bool:
        """Its processes are ended, and it was not yet counted: what a command wrote now would be taken for theirs."""
        return self.excess is not None and self._kept == UNKNOWN

    @property
    def jammed(self) -> bool:
        return self.excess is not None and self._hits > MOST_HITS


def refusal(excess: Excess) -> Verdict:
    """Of a command in a jammed box."""
    return Verdict(
        cause=Cause.DISK,
        message=f"not started: {_told(excess)}, and its commands went on writing",
        limit=excess.limit,
        peak=excess.used,
        unit=excess.unit,
        remedy="remove files by file operations, which still work, or raise limits.disk_mb",
    )


def full(excess: Excess, op: str) -> QuotaExceeded:
    """For an operation that would add to what is too much already."""
    return QuotaExceeded(
        f"nothing can be written: {_told(excess)}",
        op=op,
        remedy="remove files, or raise limits.disk_mb",
        details={"limit": excess.limit, "used": excess.used, "unit": excess.unit},
    )


def _told(excess: Excess) -> str:
    return f"the box is over its disk limit ({excess.used:.0f} of {excess.limit:.0f} {excess.unit})"


def _excess(used: Use, limit: Use) -> Excess:
    if used.bytes > limit.bytes:
        return Excess(used=used.bytes / MB, limit=limit.bytes / MB, unit="MB")
    if used.entries > limit.entries:
        return Excess(used=float(used.entries), limit=float(limit.entries), unit="files")
    return Excess(used=float(used.unread), limit=float(limit.unread), unit="directories that cannot be counted")
