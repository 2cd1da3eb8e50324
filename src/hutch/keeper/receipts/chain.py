"""The hash chain of a box's receipts: each receipt holds the hash of the one before, so any changed byte is found.

The stored bytes of a receipt are hashed, so checking it encodes nothing again. The first receipt's `prev` is derived
from box and owner: a chain that was moved to another box or owner does not begin right.
"""

import hashlib
import re
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hutch.errors import Invalid
from hutch.logs import HIDDEN
from hutch.model.compatibility import decode_record
from hutch.model.receipts import (
    ARRIVED,
    GAP,
    GONE,
    HANDED_OVER,
    LEFT,
    NOTES,
    OWNER_LOG,
    SPELLED,
    Chain,
    ChainCheck,
    Details,
    Pruned,
    Receipt,
)

LATE_SECONDS = 3600.0
"""Time past its day in which an owner log stays open, for receipts that were drafted before midnight."""
DAY_SECONDS = 86400.0

_VERSION = b"hutch receipts 1"
_TAIL = len(',"hash":""}') + 64
_ASSIGNED = (
    r"""((?:[\w-]*(?:secret|token|passw|passphrase|credential|api[_-]?key|private[_-]?key)[\w-]*["']?\s*[=:\s]\s*["']?)"""
    r"""|(?:authorization:\s*(?:bearer|basic)?\s*))([^\s"';&|]+)"""
)
"""Secrets that a command spells out: `TOKEN=x`, `--password x`, `Authorization: Bearer x`. Compiled at first use,
because most commands of the CLI write no receipt."""


class Row(NamedTuple):
    """A receipt as it is stored."""

    seq: int
    hash: str
    body: bytes

    @property
    def line(self) -> bytes:
        """The receipt as it is exported: the body, with its hash as the last field."""
        return self.body[:-1] + b',"hash":"' + self.hash.encode() + b'"}'

    @classmethod
    def of_line(cls, line: bytes) -> "Row":
        """Parse an exported line.

        Raises:
            Invalid: the line does not have that form, byte by byte.
        """
        body, tail = line[:-_TAIL] + b"}", line[-_TAIL:]
        found = re.fullmatch(rb',"hash":"([0-9a-f]{64})"}', tail)
        if found is None:
            raise Invalid("a receipt does not end in its hash")
        return cls(decode_record(body, Receipt).seq, found[1].decode(), body)


def genesis(box: str, owner: str) -> str:
    """Return the hash that the first receipt of a chain has as its `prev`."""
    return hashlib.sha256(b"\0".join((_VERSION, box.encode(), owner.encode()))).hexdigest()


def owner_log(owner: str, at: float) -> str:
    """Return the id of the owner's log of that day (UTC): the chain of what concerns no box.

    Each day has its own, because retention removes whole chains, and one that never ends could never be removed.
    """
    day = time.strftime("%Y%m%d", time.gmtime(at))
    return f"{OWNER_LOG}{day}-{hashlib.sha256(owner.encode()).hexdigest()[:24]}"


def _new_chain(first: Receipt) -> Chain:
    ended = first.at - first.at % DAY_SECONDS + DAY_SECONDS + LATE_SECONDS if first.box.startswith(OWNER_LOG) else 0.0
    return Chain(
        box=first.box, owner=first.owner, head=genesis(first.box, first.owner), begun_at=first.at, ended_at=ended
    )  # fmt: skip


def link(chain: Chain | None, drafts: Sequence[Receipt]) -> tuple[Chain, list[Row]]:
    """Append drafts of one box to its chain; return the new head and the rows to store."""
    chain = chain or _new_chain(drafts[0])
    rows: list[Row] = []
    count, head, last_at, last_op = chain.count, chain.head, chain.last_at, chain.last_op
    for draft in drafts:
        if draft.op == ARRIVED:
            draft = _arrival(draft, last_at or draft.at, last_op)
        count += 1
        sealed = draft.but(owner=chain.owner, seq=count, prev=head, details=_masked(draft.details))
        body = sealed.to_json()
        head = hashlib.sha256(body).hexdigest()
        rows.append(Row(count, head, body))
        # The duration of a note is the caller's own claim, so it must not date what follows.
        last_at = draft.at if draft.op.startswith(NOTES) else draft.at + draft.duration_ms / 1000
        last_op = draft.op
    ended = last_at if last_op == GONE else chain.ended_at
    return chain.but(count=count, head=head, last_at=last_at, last_op=last_op, ended_at=ended), rows


def _arrival(draft: Receipt, since: float, last_op: str) -> Receipt:
    """A keeper that ended in order wrote `box.left` last; after any other receipt, some may be missing: a gap."""
    if last_op == LEFT:
        return draft.but(op=HANDED_OVER)
    return draft.but(op=GAP, details={**draft.details, "from": since, "to": draft.at})


def _masked(details: Details) -> Details:
    """Hide secrets that a command spells out; those that the box was given as secrets are hidden already."""
    spelled = {name: text for name in SPELLED if isinstance(text := details.get(name), str)}
    if not spelled:
        return details
    return details | {
        name: re.sub(_ASSIGNED, lambda found: found[1] + HIDDEN, text, flags=re.IGNORECASE)
        for name, text in spelled.items()
    }


def pruning_problem(chain: Chain, held: int | None = None) -> str:
    """Say why a pruned chain should not have been removed; empty if a retention rule allowed it.

    `held` is the least number of receipts that the owner had then, if known.
    """
    if chain.pruned_why is Pruned.AGE and chain.ended_at + chain.pruned_limit > chain.pruned_at + 1.0:
        kept = (chain.pruned_at - chain.ended_at) / DAY_SECONDS
        return f"removed {kept:.1f} days after its end, and {chain.pruned_limit / DAY_SECONDS:.1f} are kept"
    if chain.pruned_why is Pruned.ROWS and held is not None and held <= chain.pruned_limit:
        return f"removed as one too many, and its owner never had more than {held} of {chain.pruned_limit:.0f}"
    return "" if chain.ended_at else "removed, and its box is not gone"


class ChainVerifier:
    """Checks one chain, receipt by receipt, up to the first that is not what was written."""

    def __init__(self, box: str, owner: str) -> None:
        self.box = box
        self.owner = owner
        self._head = genesis(box, owner)
        self.count = 0
        self.broken: int | None = None
        self.problem = ""

    def check(self, rows: Iterable[Row]) -> bool:
        """Check the next rows; False at the first bad one."""
        for row in rows:
            problem = self._problem(row)
            if problem:
                self.fail(problem)
                return False
            self.count += 1
            self._head = row.hash
        return True

    def fail(self, problem: str) -> None:
        """Note that the next receipt is not what was written. Only the first problem counts."""
        if self.broken is None:
            self.broken, self.problem = self.count + 1, problem

    def result(self, chain: Chain) -> ChainCheck:
        """Compare with the head record that is stored beside the chain, and return the verdict."""
        broken, problem = self.broken, self.problem
        if broken is None and chain.count > self.count:
            broken, problem = self.count + 1, f"missing: the head record tells of {chain.count} receipts"
        elif broken is None and chain.count < self.count:
            broken, problem = chain.count + 1, f"the head record tells of {chain.count} receipts only"
        elif broken is None and chain.head != self._head:
            broken, problem = 0, "the head record names another hash than the last receipt has"
        return ChainCheck(
            box=self.box, owner=self.owner, count=self.count, ok=broken is None, broken=broken, problem=problem
        )

    def _problem(self, row: Row) -> str:
        if hashlib.sha256(row.body).hexdigest() != row.hash:
            return "its hash does not fit its content"
        try:
            receipt = decode_record(row.body, Receipt)
        except Invalid as error:
            return error.message
        if receipt.box != self.box or receipt.owner != self.owner:
            return f"it is of box {receipt.box}, owner {receipt.owner}"
        if not receipt.seq == row.seq == self.count + 1:
            return f"it has number {receipt.seq}, in the place of {self.count + 1}"
        if receipt.prev != self._head:
            return "it does not follow the receipt before it"
        return ""
