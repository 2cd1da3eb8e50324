"""The history of AstrBot's executions is bounded, also over the life of many sandboxes."""

import tracemalloc

from hutch.server.bay.history import MAX_BYTES, Filter, History


def _add(history: History, sandbox: str, output: str = "") -> str:
    return history.add(
        sandbox, box="b", kind="shell", code="true", success=True, milliseconds=1, output=output, error=None,
        description=None, tags=None,
    ).id  # fmt: skip


def test_deleted_sandboxes_leave_nothing_behind() -> None:
    """AstrBot makes a sandbox for each chat, for as long as the server runs (P21)."""
    history = History()
    tracemalloc.start()
    try:
        for number in range(2000):
            if number == 100:
                before, _ = tracemalloc.get_traced_memory()
            _add(history, f"sandbox-{number}")
            history.forget(f"sandbox-{number}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000


def test_the_oldest_executions_of_any_sandbox_go_first() -> None:
    history = History()
    first = _add(history, "old", "x" * 10_000)
    kept = [_add(history, "new", "x" * 10_000) for _ in range(MAX_BYTES // 10_000)]
    assert history.list("old", Filter(), 10, 0)["total"] == 0
    assert history.last("new").id == kept[-1]
    assert first not in kept
    assert 0 < history.list("new", Filter(), 1, 0)["total"] < len(kept)
