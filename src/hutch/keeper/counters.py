"""Counts what happens to boxes, by owner, kind and profile: for `Hutch.metrics` and for Prometheus.

Counting is one dictionary update. Profiles are those of the configuration; kinds are named by callers, so only the
first hundred are distinguished.
"""

import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from hutch.keeper.boxes.records import POOL_OWNER, BoxRecord
from hutch.model.boxes import Event, EventCause

if TYPE_CHECKING:
    from hutch.model.status import Metrics

KIND_LABEL = "kind"
"""The label of a box that `box_for(kind=…)` created."""
MOST_KINDS = 100
OTHER_KINDS = "other"
_EVENT_KINDS = frozenset({"created", "claimed", "adopted"})
_SHOWN = {
    "created": "created", "claimed": "created", "reused": "reused", "gone": "cleaned",
    "health_check_failures": "health_check_failures",
}  # fmt: skip
"""The field of `BoxCounts` to which each counted happening belongs."""


class Counted(NamedTuple):
    """What is counted together."""

    what: str
    owner: str
    kind: str
    profile: str
    cause: str = ""
    """The `EventCause` of a box that is gone."""


class BoxCounters:
    """The counts of one keeper since it was made."""

    def __init__(self) -> None:
        self.since = time.time()
        self._counts: Counter[Counted] = Counter()
        self._kinds: set[str] = set()

    def on_transition(self, _: BoxRecord | None, record: BoxRecord, event: Event | None) -> None:
        """Count a state change; the keeper calls this for each."""
        if event is None:
            return
        if event.kind in _EVENT_KINDS:
            self.count(event.kind, record)
        elif event.kind == "gone":
            self.count("gone", record, event.cause)
        elif event.cause == EventCause.HEALTH_CHECK:
            self.count("health_check_failures", record)

    def count(self, what: str, record: BoxRecord, cause: str = "") -> None:
        self._counts[Counted(what, record.owner, self._kind(record), record.spec.profile, cause)] += 1

    def by_profile(self, what: str) -> dict[str, int]:
        found: Counter[str] = Counter()
        for counted, number in self._counts.items():
            if counted.what == what:
                found[counted.profile] += number
        return found

    def ends(self) -> dict[tuple[str, str], int]:
        """Return the boxes that are gone by cause and profile."""
        found: Counter[tuple[str, str]] = Counter()
        for counted, number in self._counts.items():
            if counted.what == "gone":
                found[counted.cause, counted.profile] += number
        return found

    def metrics(self, owner: str | None, boxes: Iterable[BoxRecord]) -> "Metrics":
        """Return the counts of one owner, or of all with None. `boxes` are the records that the keeper holds.

        Boxes of the pool count when somebody gets them.
        """
        from hutch.model.status import BoxCounts, Metrics

        kinds: dict[str, Counter[str]] = {}
        for counted, number in self._counts.items():
            if counted.what in _SHOWN and counted.owner != POOL_OWNER and owner in (None, counted.owner):
                kinds.setdefault(counted.kind, Counter())[_SHOWN[counted.what]] += number
        for record in boxes:
            if record.owner != POOL_OWNER and owner in (None, record.owner):
                kinds.setdefault(self._kind(record), Counter())["active"] += 1
        total: Counter[str] = sum(kinds.values(), Counter())
        return Metrics(
            since=self.since, total=BoxCounts(**total),
            kinds={kind: BoxCounts(**counts) for kind, counts in sorted(kinds.items())},
        )  # fmt: skip

    def _kind(self, record: BoxRecord) -> str:
        kind = record.labels.get(KIND_LABEL) or record.spec.profile
        if kind not in self._kinds:
            if len(self._kinds) >= MOST_KINDS:
                return OTHER_KINDS
            self._kinds.add(kind)
        return kind
