"""The chain of a box's receipts: how each is bound to the one before, and how a change of any byte is found.

A receipt is hashed as the bytes that are stored, so nothing has to be encoded again to check it. The first one's
`prev` is made of box and owner: a chain moved to another box, or to another owner, does not begin right.
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
    DAYBOOK,
    GAP,
    GONE,
    HANDED_OVER,
    LEFT,
    NOTES,
    SPELLED,
    Chain,
    ChainCheck,
    Details,
    Pruned,
    Receipt,
)

LATE_SECONDS = 3600.0
"""How long past its day a daybook stays open, for what was drafted before midnight and could not be written at once."""
DAY_SECONDS = 86400.0

_VERSION = b"hutch receipts 1"
_TAIL = len(',"hash":""}') + 64
_ASSIGNED = (
    r"""((?:[\w-]*(?:secret|token|passw|passphrase|credential|api[_-]?key|private[_-]?key)[\w-]*["']?\s*[=:\s]\s*["']?)"""
    r"""|(?:authorization:\s*(?:bearer|basic)?\s*))([^\s"';&|]+)"""
)
"""What a command says in the open: `TOKEN=x`, `--password x`, `Authorization: Bearer x`. Compiled at first use: most
commands of the CLI write no receipt."""


class Row(NamedTuple):
    """A receipt as it is stored."""

    seq: int
    hash: str
    body: bytes

    @property
    def line(self) -> bytes:
        """As it is exported: the body, with its hash as the last field."""
        return self.body[:-1] + b',"hash":"' + self.hash.encode() + b'"}'

    @classmethod
    def of_line(cls, line: bytes) -> "Row":
        """Raises Invalid if the line does not have that form, byte by byte."""
        body, tail = line[:-_TAIL] + b"}", line[-_TAIL:]
        found = re.fullmatch(rb',"hash":"([0-9a-f]{64})"}', tail)
        if found is None:
            raise Invalid("a receipt does not end in its hash")
        return cls(decode_record(body, Receipt).seq, found[1].decode(), body)


def genesis(box: str, owner: str) -> str:
    """What the first receipt of a chain is bound to."""
    return hashlib.sha256(b"\0".join((_VERSION, box.encode(), owner.encode()))).hexdigest()


def daybook(owner: str, at: float) -> str:
    """The chain of what was done or decided for an owner outside of any box: one for each day (UTC), because a chain is
    pruned whole, and one that never ends could never go."""
    day = time.strftime("%Y%m%d", time.gmtime(at))
    return f"{DAYBOOK}{day}-{hashlib.sha256(owner.encode()).hexdigest()[:24]}"


def _begun(first: Receipt) -> Chain:
    ended = first.at - first.at % DAY_SECONDS + DAY_SECONDS + LATE_SECONDS if first.box.startswith(DAYBOOK) else 0.0
    return Chain(
        box=first.box, owner=first.owner, head=genesis(first.box, first.owner), begun_at=first.at, ended_at=ended
    )  # fmt: skip


def link(chain: Chain | None, drafts: Sequence[Receipt]) -> tuple[Chain, list[Row]]:
    """The receipts of one box, sealed in order behind those there are; and the head after them."""
    chain = chain or _begun(drafts[0])
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
        # How long it took is the caller's own word in a note, and must not date what follows.
        last_at = draft.at if draft.op.startswith(NOTES) else draft.at + draft.duration_ms / 1000
        last_op = draft.op
    ended = last_at if last_op == GONE else chain.ended_at
    return chain.but(count=count, head=head, last_at=last_at, last_op=last_op, ended_at=ended), rows


def _arrival(draft: Receipt, since: float, last_op: str) -> Receipt:
    """A keeper that went on purpose wrote so, as its last word; after any other word, operations may be missing."""
    if last_op == LEFT:
        return draft.but(op=HANDED_OVER)
    return draft.but(op=GAP, details={**draft.details, "from": since, "to": draft.at})


def _masked(details: Details) -> Details:
    """Secrets that were told to the box are hidden before; these are the ones that a command spells out."""
    spelled = {name: text for name in SPELLED if isinstance(text := details.get(name), str)}
    if not spelled:
        return details
    return details | {
        name: re.sub(_ASSIGNED, lambda found: found[1] + HIDDEN, text, flags=re.IGNORECASE)
        for name, text in spelled.items()
    }


def pruning_problem(chain: Chain, held: int | None = None) -> str:
    """Why the receipts of a pruned chain should still be there; empty: retention asked for it. `held`: how many the
    owner had at that time at least, if that is known."""
    if chain.pruned_why is Pruned.AGE and chain.ended_at + chain.pruned_limit > chain.pruned_at + 1.0:
        kept = (chain.pruned_at - chain.ended_at) / DAY_SECONDS
        return f"removed {kept:.1f} days after its end, and {chain.pruned_limit / DAY_SECONDS:.1f} are kept"
    if chain.pruned_why is Pruned.ROWS and held is not None and held <= chain.pruned_limit:
        return f"removed as one too many, and its owner never had more than {held} of {chain.pruned_limit:.0f}"
    return "" if chain.ended_at else "removed, and its box is not gone"


class Walk:
    """Goes along one chain and stops at the first receipt that is not what was written."""

    def __init__(self, box: str, owner: str) -> None:
        self.box = box
        self.owner = owner
        self._head = genesis(box, owner)
        self.count = 0
        self.broken: int | None = None
        self.problem = ""

    def along(self, rows: Iterable[Row]) -> bool:
        """Whether all of these are in order."""
        for row in rows:
            problem = self._problem(row)
            if problem:
                self.stop(problem)
                return False
            self.count += 1
            self._head = row.hash
        return True

    def stop(self, problem: str) -> None:
        """The next receipt is not what was written."""
        if self.broken is None:
            self.broken, self.problem = self.count + 1, problem

    def end(self, chain: Chain) -> ChainCheck:
        """The verdict, with the head that was kept beside the chain."""
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
