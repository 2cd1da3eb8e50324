"""One operation on a box: timed, reported to listeners, and recorded as a receipt.

    async with operations.begin(live, session, "exec", {"command": command}) as operation:
        operation.result = await instance.run(order)

Its receipt is written whatever happens inside: an error is recorded by its code, a caller that left as `cancelled`.
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

MAX_TEXT = 2000
MAX_PARTS = 50

Listener = Callable[[Receipt], None]


class Operations:
    """Records the operations of one keeper and reports them to listeners."""

    def __init__(self, queue: "ReceiptQueue | None", key: "StateKey | None" = None, *, strict: bool = False) -> None:
        self.queue = queue
        """None if no receipts are kept."""
        self._key = key
        """None if texts that receipts do not show whole cannot be proven either."""
        self.strict = strict
        """True if an operation returns only after its receipt was committed."""
        self.listeners: list[Listener] = []
        """Called at the end of each operation, before its receipt is committed."""
        self._digests: dict[str, tuple[EffectiveSpec, str]] = {}

    def begin(self, live: Live, session: str, op: str, details: Details) -> "Operation":
        return Operation(self, live, session, op, details)

    @property
    def observed(self) -> bool:
        """Whether receipts are kept or anybody listens."""
        return self.queue is not None or bool(self.listeners)

    def finish(self, draft: Receipt) -> int:
        """Report and queue a receipt; return its number in the queue to wait for, 0 if there is none."""
        for listener in self.listeners:
            listener(draft)
        return self.queue.put(draft) if self.queue is not None else 0

    def shown_details(self, details: Details) -> tuple[Details, dict[str, str]]:
        """Return the details as a receipt shows them, and keyed digests of those that it does not show whole.

        A command always has a digest: its secrets are hidden later, off the reply path (`chain.link`).
        """
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
        """Return the digest of the box's effective spec as it is shown to people."""
        known = self._digests.get(record.id)
        if known is None or known[0] is not record.spec:
            known = self._digests[record.id] = (record.spec, digest(record.spec.shown().to_json()))
        return known[1]

    def forget(self, box_id: str) -> None:
        """Drop what is remembered of a destroyed box."""
        self._digests.pop(box_id, None)


class Operation:
    """One operation in progress; the caller fills in `result` and `changed` as they become known."""

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
        """Add details of what was asked or found."""
        self._details.update(details)

    async def __aenter__(self) -> "Operation":
        queue = self._operations.queue
        if queue is not None and queue.full:
            await queue.wait_for_space()
        self._span = telemetry.start(f"hutch.{self._op}", {"hutch.box": self._live.record.id}) if telemetry.on else None
        self._at = time.time()
        self._begun = time.perf_counter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        operations = self._operations
        if not operations.observed and self._span is None:
            return
        draft = self._receipt(error)
        if self._span is not None:
            telemetry.finish(self._span, draft.error, {"hutch.cause": draft.cause} if draft.cause else {})
        number = operations.finish(draft)
        if operations.strict and number and operations.queue is not None:
            await operations.queue.committed(number)

    def _receipt(self, error: BaseException | None) -> Receipt:
        record, result = self._live.record, self.result
        details, digests = self._operations.shown_details(self._details)
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
    """Hide the secrets of all live boxes, and cut texts to the length of a receipt."""
    return {name: _bounded(value) for name, value in details.items() if value is not None}


def bounded_text(text: str) -> str:
    # Secrets are hidden before the cut: half a secret is still one.
    text = redact(text)
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}… ({len(text)} characters)"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def bounded_texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    kept = tuple([bounded_text(text) for text in texts[:MAX_PARTS]])
    return kept if len(texts) <= MAX_PARTS else (*kept, f"… ({len(texts)} in all)")


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
