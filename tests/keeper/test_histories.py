"""Property: whatever happens, no box leaks, none has two owners, no old epoch works. And each defence is needed."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.sqlite import SqliteStore
from hutch.keeper.store.store import MemoryStore, Store
from tests.keeper.histories import OPERATIONS, History, Step
from tests.proofs import write

pytestmark = pytest.mark.slow

STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 11), st.integers(0, 23)), min_size=30, max_size=60
)
BRIEF = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

Weaken = Callable[[Keeper], None]
SUCCEEDED: Counter[str] = Counter()


def play(steps: list[Step], kind: str, weaken: Weaken | None = None) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="hh-", dir="/tmp") as name:
        directory = Path(name)
        shared = MemoryStore()

        def store() -> Store:
            return SqliteStore(directory / "s" / "hutch.db") if kind == "sqlite" else _Kept(shared)

        history = History(directory, store, weaken)
        asyncio.run(asyncio.wait_for(history.play(steps), 60))
        SUCCEEDED.update(history.succeeded)
        return history.violations


class _Kept:
    """One memory store for all keepers of a history: closing one keeper's view does not empty it."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def close(self) -> None:
        return None


@given(STEPS)
@BRIEF
def test_histories_in_memory(steps: list[Step]) -> None:
    assert play(steps, "memory") == []


@given(STEPS)
@settings(BRIEF, max_examples=15)
def test_histories_on_sqlite(steps: list[Step]) -> None:
    assert play(steps, "sqlite") == []


def test_the_histories_are_not_empty() -> None:
    """Each kind of step has also succeeded somewhere: what never happens proves nothing."""
    assert set(OPERATIONS) <= set(SUCCEEDED), SUCCEEDED


# --- every defence is needed: without it, some history violates ----------------------------------------------------


def without_compare_and_set(keeper: Keeper) -> None:
    store = keeper.store
    inner = store._inner._inner  # type: ignore[attr-defined]

    async def replace(record: Any, expected: int, event: Any) -> bool:
        current = inner._boxes.get(record.id)
        if current is None:
            return False
        return bool(await inner.replace(record, current.version, event))

    keeper.states._store = _Patched(store, replace)  # type: ignore[assignment]


class _Patched:
    def __init__(self, inner: Store, replace: Any) -> None:
        self._inner = inner
        self.replace = replace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def without_epochs(keeper: Keeper) -> None:
    _on_every_box(keeper, _forgetful)


def without_pins(keeper: Keeper) -> None:
    _on_every_box(keeper, _unpinned)


def without_intent(keeper: Keeper) -> None:
    """The record is written after the box was made, so a crash between leaves a box that nobody knows."""
    states, maker = keeper.states, keeper.creator

    open_now = states.open

    async def not_yet(record: BoxRecord, opened: Callable[[], None]) -> BoxRecord:
        opened()
        return record

    boot = maker._boot

    async def late(live: Live, provider: Any, order: Any) -> None:
        made = await provider.create(order, live.record.instance)
        await open_now(live.record)
        provider_create = provider.create

        async def again(*_: Any) -> Any:
            return made

        provider.create = again
        try:
            await boot(live, provider, order)
        finally:
            provider.create = provider_create

    states.open = not_yet  # type: ignore[method-assign,assignment]
    maker._boot = late  # type: ignore[method-assign]
    keeper.engines.in_use = lambda: ()  # type: ignore[method-assign]


class _Forgetful(Live):
    __slots__ = ()

    def pin(self, epoch: int) -> None:
        super().pin(self.record.epoch)


class _Unpinned(Live):
    __slots__ = ()

    def pin(self, epoch: int) -> None:
        super().pin(epoch)
        self.pins -= 1

    def unpin(self) -> None:
        self.pins += 1
        super().unpin()


def _forgetful(live: Live) -> None:
    live.__class__ = _Forgetful


def _unpinned(live: Live) -> None:
    live.__class__ = _Unpinned


def _on_every_box(keeper: Keeper, change: Callable[[Live], None]) -> None:
    class Boxes(dict[Any, Live]):
        def __setitem__(self, key: Any, live: Live) -> None:
            change(live)
            super().__setitem__(key, live)

    boxes = Boxes()
    for part in (keeper, keeper.creator, keeper.teardown):
        name = "_live" if part is keeper else "_boxes"
        setattr(part, name, boxes)
    keeper._clocks._boxes = boxes.values


@pytest.mark.parametrize("weaken", [without_compare_and_set, without_epochs, without_pins, without_intent])
def test_without_this_defence_histories_violate(weaken: Weaken) -> None:
    class Found(Exception):
        pass

    @given(STEPS)
    @settings(
        max_examples=400, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
    )
    def search(steps: list[Step]) -> None:
        if play(steps, "memory", weaken):
            raise Found

    found = False
    with suppress(Found):
        search()
        found = True
    assert not found, "no history noticed that the defence is gone"


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_500_histories(kind: str) -> None:
    played: list[int] = []

    @given(STEPS)
    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def prove(steps: list[Step]) -> None:
        assert play(steps, kind) == []
        played.append(len(steps))

    prove()
    assert len(played) >= 500
    write(f"keeper-histories-{kind}", histories=len(played), steps=sum(played), violations=0)
