"""One operation on a box, from its begin to its end: timed, told to whoever listens, and put on record.

    async with operations.begin(live, session, "exec", {"command": command}) as operation:
        operation.result = await instance.run(order)

Its receipt is written whatever happened inside: an error has its code, a caller who left is `cancelled`.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from hutch import telemetry
from hutch.errors import HutchError
from hutch.keeper.access.callers import current_caller
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.logs import redact
from hutch.model.ids import digest
from hutch.model.receipts import SPELLED, Detail, Details, Receipt
from hutch.model.results import Result
from hutch.model.spec import EffectiveSpec

if TYPE_CHECKING:
    from hutch.keeper.receipts.queue import ReceiptQueue
    from hutch.keeper.store.state_key import StateKey

LONGEST_TEXT = 2000
MOST_PARTS = 50

Ended = Callable[[Receipt], None]


class Operations:
    """Where all operations of one keeper end."""

    def __init__(self, queue: "ReceiptQueue | None", key: "StateKey | None" = None, *, strict: bool = False) -> None:
        self.queue = queue
        """None: no receipts are kept."""
        self._key = key
        """None: what receipts do not show is not proven either."""
        self.strict = strict
        """The answer waits until the receipt is on record."""
        self.listeners: list[Ended] = []
        """Told of every operation's end, before it is on record."""
        self._digests: dict[str, tuple[EffectiveSpec, str]] = {}

    def begin(self, live: Live, session: str, op: str, details: Details) -> "Operation":
        return Operation(self, live, session, op, details)

    @property
    def heard(self) -> bool:
        """Whether anybody is told how operations end."""
        return self.queue is not None or bool(self.listeners)

    def ended(self, draft: Receipt) -> int:
        """The number to wait for in the queue; 0: none."""
        for listener in self.listeners:
            listener(draft)
        return self.queue.put(draft) if self.queue is not None else 0

    def told(self, details: Details) -> tuple[Details, dict[str, str]]:
        """Details as a receipt shows them, and the keyed digests of those that it does not show whole. A command always
        has one: what it spells out is hidden only later, where nobody waits for it (`receipt_chain.link`)."""
        shown, key = bounded(details), self._key
        if key is None:
            return shown, {}
        digests = {
            name: key.digest(name, value)
            for name, value in details.items()
            if isinstance(value, str) and (name in SPELLED or shown[name] != value)
        }
        return shown, digests

    def policy(self, record: BoxRecord) -> str:
        """The digest of the box's effective spec, as people may see it."""
        known = self._digests.get(record.id)
        if known is None or known[0] is not record.spec:
            known = self._digests[record.id] = (record.spec, digest(record.spec.shown().to_json()))
        return known[1]

    def forget(self, box_id: str) -> None:
        """The box is gone."""
        self._digests.pop(box_id, None)


class Operation:
    """Fill in `result` and `changed` as they become known."""

    __slots__ = ("_at", "_begun", "_details", "_live", "_op", "_operations", "_session", "_span", "changed", "result")

    def __init__(self, operations: Operations, live: Live, session: str, op: str, details: Details) -> None:
        self._operations = operations
        self._live = live
        self._session = session
        self._op = op
        self._details = details
        self.result: Result | None = None
        self.changed: tuple[str, ...] | None = None

    def note(self, **details: Detail) -> None:
        """More of what was asked or found."""
        self._details.update(details)

    async def __aenter__(self) -> "Operation":
        queue = self._operations.queue
        if queue is not None and queue.full:
            await queue.room()
        self._span = telemetry.start(f"hutch.{self._op}", {"hutch.box": self._live.record.id}) if telemetry.on else None
        self._at = time.time()
        self._begun = time.perf_counter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        operations = self._operations
        if not operations.heard and self._span is None:
            return
        draft = self._receipt(error)
        if self._span is not None:
            telemetry.finish(self._span, draft.error, {"hutch.cause": draft.cause} if draft.cause else {})
        number = operations.ended(draft)
        if operations.strict and number and operations.queue is not None:
            await operations.queue.committed(number)

    def _receipt(self, error: BaseException | None) -> Receipt:
        record, result = self._live.record, self.result
        details, digests = self._operations.told(self._details)
        draft = Receipt(
            box=record.id,
            owner=record.owner,
            at=self._at,
            op=self._op,
            who=current_caller(self._session),
            details=details,
            digests=digests,
            policy=self._operations.policy(record),
            error=_code(error),
            changed=None if self.changed is None or error is not None else bounded_texts(self.changed),
            duration_ms=round((time.perf_counter() - self._begun) * 1000, 3),
        )
        if result is None:
            return draft
        return draft.but(
            cause=str(result.verdict.cause), exit_code=result.exit_code, signal=result.signal, usage=result.usage
        )


def bounded(details: Details) -> Details:
    """Without the secrets of any live box, and not longer than a record should be."""
    return {name: _bounded(value) for name, value in details.items() if value is not None}


def bounded_text(text: str) -> str:
    # Hidden first, then cut: half a secret is still one.
    text = redact(text)
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def bounded_texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    kept = tuple([bounded_text(text) for text in texts[:MOST_PARTS]])
    return kept if len(texts) <= MOST_PARTS else (*kept, f"… ({len(texts)} in all)")


def _bounded(value: Detail) -> Detail:
    if isinstance(value, str):
        return bounded_text(value)
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return "a number past 64 bits"
    return bounded_texts(value) if isinstance(value, tuple) else value


def _code(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, HutchError):
        return error.code
    return "cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "internal"
