"""The history of a sandbox's executions. It is kept in memory within a bound, so a restart of the server empties it."""

import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hutch.errors import NotFound

MAX_TEXT = 16 << 10
MAX_BYTES = 32 << 20
"""All histories together; the oldest executions of any sandbox are dropped first."""


@dataclass(frozen=True)
class Entry:
    """One execution, as the Bay API shows it."""

    id: str
    session_id: str
    exec_type: str
    code: str
    success: bool
    execution_time_ms: int
    output: str
    error: str | None
    description: str | None
    tags: str | None
    created_at: datetime
    notes: str | None = None
    payload_ref: None = None
    learn_enabled: bool = False
    learn_status: None = None

    @property
    def size(self) -> int:
        texts = (self.code, self.output, self.error, self.description, self.tags, self.notes)
        return 500 + sum(len(text) for text in texts if text)


@dataclass(frozen=True)
class Filter:
    """Which executions a caller wants to see."""

    exec_type: str = ""
    success_only: bool = False
    tags: str = ""
    """Separated by commas; an execution with any of them is shown."""
    has_notes: bool = False
    has_description: bool = False

    def takes(self, entry: Entry) -> bool:
        wanted = {tag.strip() for tag in self.tags.split(",") if tag.strip()}
        tags = {tag.strip() for tag in (entry.tags or "").split(",")}
        return (
            (not self.exec_type or entry.exec_type == self.exec_type)
            and (not self.success_only or entry.success)
            and (not wanted or bool(wanted & tags))
            and (not self.has_notes or bool(entry.notes))
            and (not self.has_description or bool(entry.description))
        )


class History:
    """The executions of all sandboxes."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Entry]] = {}
        self._order: dict[tuple[str, str], None] = {}
        """All executions by sandbox and id, the oldest first."""
        self._size = 0

    def add(
        self, sandbox: str, *, box: str, kind: str, code: str, success: bool, milliseconds: int, output: str,
        error: str | None, description: str | None, tags: str | None,
    ) -> Entry:  # fmt: skip
        entry = Entry(
            id=f"exec-{secrets.token_hex(6)}", session_id=box, exec_type=kind, code=code[:MAX_TEXT], success=success,
            execution_time_ms=milliseconds, output=output[:MAX_TEXT], error=error[:MAX_TEXT] if error else None,
            description=description[:MAX_TEXT] if description else None, tags=tags[:MAX_TEXT] if tags else None,
            created_at=datetime.now(UTC),
        )  # fmt: skip
        self._entries.setdefault(sandbox, {})[entry.id] = entry
        self._order[sandbox, entry.id] = None
        self._size += entry.size
        while self._size > MAX_BYTES:
            oldest_sandbox, oldest = next(iter(self._order))
            self._drop(self._entries[oldest_sandbox].pop(oldest), oldest_sandbox)
        return entry

    def list(self, sandbox: str, wanted: Filter, limit: int, offset: int) -> dict[str, Any]:
        """Return a page of the executions, newest first, and how many there are."""
        found = [entry for entry in reversed(self._entries.get(sandbox, {}).values()) if wanted.takes(entry)]
        return {"entries": found[offset : offset + limit], "total": len(found)}

    def get(self, sandbox: str, execution: str) -> Entry:
        entry = self._entries.get(sandbox, {}).get(execution)
        if entry is None:
            raise NotFound(f"Execution not found: {execution[:100]}")
        return entry

    def last(self, sandbox: str, kind: str = "") -> Entry:
        page = self.list(sandbox, Filter(exec_type=kind), 1, 0)["entries"]
        if not page:
            raise NotFound("No execution history found")
        entry: Entry = page[0]
        return entry

    def annotate(
        self, sandbox: str, execution: str, description: str | None, tags: str | None, notes: str | None
    ) -> Entry:
        """Change what people say about an execution; None leaves it as it is."""
        entry = self.get(sandbox, execution)
        changed = replace(
            entry,
            description=entry.description if description is None else description[:MAX_TEXT],
            tags=entry.tags if tags is None else tags[:MAX_TEXT],
            notes=entry.notes if notes is None else notes[:MAX_TEXT],
        )
        self._entries[sandbox][execution] = changed
        self._size += changed.size - entry.size
        return changed

    def forget(self, sandbox: str) -> None:
        for entry in self._entries.pop(sandbox, {}).values():
            self._drop(entry, sandbox)

    def _drop(self, entry: Entry, sandbox: str) -> None:
        del self._order[sandbox, entry.id]
        self._size -= entry.size
