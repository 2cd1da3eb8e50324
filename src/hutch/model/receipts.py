"""Receipts: the tamper-evident record of each operation on a box, and what is known of the chain they form."""

from enum import StrEnum

import msgspec

from hutch.model.record import Record
from hutch.model.results import Usage

Detail = str | int | float | bool | tuple[str, ...] | None
Details = dict[str, Detail]

ARRIVED = "box.arrived"
"""Drafted by a keeper that took a box over; what stands before it in the chain tells which of the next two it is."""
HANDED_OVER = "box.handed_over"
GAP = "gap"
LEFT = "box.left"
GONE = "box.gone"

OWNER_LOG = "daybook-"
"""Prefix of the ids of owner logs: the chains of what concerns no box, one for each owner and day."""


NOTES = ("tool.", "mcp.", "note.")
"""How operations begin that a caller puts on record himself."""


SPELLED = ("command", "what")
"""Details in which a command may spell a secret out."""


class Pruned(StrEnum):
    """Why the receipts of a chain were removed."""

    AGE = "age"
    """Its box was gone for longer than receipts are kept."""
    ROWS = "rows"
    """Its owner had more receipts than are kept of one."""
    EARLIER = "earlier"
    """By a release that did not say."""


class Who(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Who asked: a session, and over HTTP the key, its role and the request."""

    session: str = ""
    role: str = "local"
    """admin, user or observer; local: this machine's user, in the process itself; keeper: nobody asked."""
    key: str = ""
    """The key's id; never the key."""
    request: str = ""
    """The operation id that the log lines of the request carry."""
    admin: bool = False
    """Acted past owner and lease (`Hutch-Admin: yes`)."""


class Receipt(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One operation. What is not known is left out: a receipt never guesses."""

    box: str
    """Its id; of what concerns no box, the id of the owner's daybook (`keeper.receipt_chain`)."""
    owner: str
    seq: int = 0
    """From 1, without holes, within the box's chain."""
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
    """The code of the error that the caller got; empty: it was done."""
    cause: str = ""
    """Of a command's verdict."""
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage | None = None
    changed: tuple[str, ...] | None = None
    """Paths that the operation itself changed; absent: not known (what a command did to files)."""
    hosts: tuple[str, ...] | None = None
    """Hosts reached; absent: not known."""
    duration_ms: float = 0.0
    """Of a caller's own note: as the caller says."""
    prev: str = ""
    """The hash of the receipt before; of the first: of the chain's own beginning (box and owner)."""
    hash: str = ""
    """SHA-256 of this receipt's JSON up to here. It stands last, so that it can be cut off and checked."""


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
    """The box is gone since, or the daybook is closed from then on; 0: it goes on."""
    pruned_at: float = 0.0
    """The receipts were removed by retention then, all of them; 0: they are there."""
    pruned_why: Pruned | None = None
    pruned_limit: float = 0.0
    """What was kept at that time: seconds after the end (age), or receipts of one owner (rows)."""


class ChainCheck(Record, frozen=True, kw_only=True):
    """What `verify` found in one chain."""

    box: str
    owner: str = ""
    count: int = 0
    """Receipts that are in order, from the first on."""
    ok: bool = True
    broken: int | None = None
    """The number of the first receipt that is not what was written; 0: the head record itself."""
    problem: str = ""
    pruned_at: float = 0.0
    pruned_why: Pruned | None = None
