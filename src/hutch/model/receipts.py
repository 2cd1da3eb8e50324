"""Receipts: the tamper-evident record of each operation on a box, and the chain that they form."""

from enum import StrEnum

import msgspec

from hutch.model.record import Record
from hutch.model.results import Usage

Detail = str | int | float | bool | tuple[str, ...] | None
Details = dict[str, Detail]

ARRIVED = "box.arrived"
"""Drafted by a keeper that took a box over; the receipt before it decides which of the next two it becomes."""
HANDED_OVER = "box.handed_over"
GAP = "gap"
LEFT = "box.left"
GONE = "box.gone"

OWNER_LOG = "daybook-"
"""Prefix of the ids of owner logs: the chains of what concerns no box, one for each owner and day."""


NOTES = ("tool.", "mcp.", "note.")
"""Prefixes of operations that callers add themselves."""


SPELLED = ("command", "what")
"""Details in which a command may contain a secret."""


class Pruned(StrEnum):
    """Why the receipts of a chain were removed."""

    AGE = "age"
    """Its box was gone for longer than receipts are kept."""
    ROWS = "rows"
    """Its owner had more receipts than are kept for one owner."""
    EARLIER = "earlier"
    """An earlier release removed them and did not say why."""


class Who(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The caller: a session, and over HTTP the key, its role and the request."""

    session: str = ""
    role: str = "local"
    """admin, user or observer; local for the user of the process itself; keeper if nobody asked."""
    key: str = ""
    """The key's id; never the key."""
    request: str = ""
    """The operation id that the log lines of the request carry."""
    admin: bool = False
    """Whether it ignored owner and lease (`Hutch-Admin: yes`)."""


class Receipt(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One operation. Unknown facts are left out, never guessed."""

    box: str
    """Its id; of what concerns no box, the id of the owner's log."""
    owner: str
    seq: int = 0
    """Number in the box's chain, from 1 without gaps."""
    at: float
    """Unix time at which the operation began; of a caller's own note, at which the server got it."""
    op: str
    """exec, job.start, files.write, box.paused, …, gap; `tool.…`, `mcp.…` and `note.…` are a caller's own."""
    who: Who = Who()
    details: Details = msgspec.field(default_factory=dict)
    """What was asked, bounded and without secrets: a command's text, paths, sizes; never content or values of env."""
    digests: dict[str, str] = msgspec.field(default_factory=dict)
    """Of a command, and of every other detail that is cut or has hidden parts: a keyed digest of its whole text, as
    `KEY:DIGEST`. Whoever has the state directory's key can prove that a text is the one, and nobody can guess it."""
    policy: str = ""
    """SHA-256 of the box's effective spec, as it is shown, when the operation began."""
    error: str = ""
    """The code of the error that the caller got; empty if it succeeded."""
    cause: str = ""
    """Cause in the verdict of a command."""
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage | None = None
    changed: tuple[str, ...] | None = None
    """Paths that the operation itself changed; absent if unknown, as for a command."""
    hosts: tuple[str, ...] | None = None
    """Hosts reached; absent if unknown."""
    duration_ms: float = 0.0
    """Duration; for a caller's own note, as the caller says."""
    prev: str = ""
    """Hash of the receipt before; for the first, of the chain's start (box and owner)."""
    hash: str = ""
    """SHA-256 of this receipt's JSON up to here. It is the last field, so that it can be cut off and checked."""


class Chain(Record, frozen=True, kw_only=True):
    """The head kept beside a chain: how long it is and how it ends, so that a cut tail is noticed."""

    box: str
    owner: str
    count: int = 0
    head: str = ""
    """Hash of the last receipt."""
    begun_at: float = 0.0
    last_at: float = 0.0
    last_op: str = ""
    ended_at: float = 0.0
    """The box is gone since, or the owner's log is closed; 0 if it is still written to."""
    pruned_at: float = 0.0
    """When retention removed all receipts; 0 if they are there."""
    pruned_why: Pruned | None = None
    pruned_limit: float = 0.0
    """The limit at that time: seconds after the end (age), or receipts of one owner (rows)."""


class ChainCheck(Record, frozen=True, kw_only=True):
    """What `verify` found in one chain."""

    box: str
    owner: str = ""
    count: int = 0
    """Number of valid receipts, from the first on."""
    ok: bool = True
    broken: int | None = None
    """Number of the first receipt that is not what was written; 0 for the head record itself."""
    problem: str = ""
    pruned_at: float = 0.0
    pruned_why: Pruned | None = None
