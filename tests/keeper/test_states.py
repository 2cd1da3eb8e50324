"""Every change of state is in the table, compared and set, and is an event."""

import pytest

from hutch.errors import Conflict
from hutch.keeper.boxes.states import States, describe_state
from hutch.keeper.store.store import MemoryStore
from hutch.model.boxes import MOVES, Event, EventCause, State, may_move
from tests.keeper.sample_records import record


@pytest.mark.parametrize("old", State)
@pytest.mark.parametrize("new", State)
async def test_only_moves_of_the_table_are_made(old: State, new: State) -> None:
    states = States(MemoryStore())
    box = await states.open(record(state=old))
    if may_move(old, new):
        moved = await states.change(box, new, reason="why")
        assert (moved.state, moved.reason, moved.version) == (new, "why", box.version + 1)
    else:
        with pytest.raises(Conflict):
            await states.change(box, new, reason="why")


async def test_an_old_record_moves_nothing() -> None:
    """A caller whose record was changed meanwhile must read it again (lesson 3)."""
    states = States(MemoryStore())
    box = await states.open(record())
    await states.change(box, State.RUNNING, reason="first")
    with pytest.raises(Conflict) as caught:
        await states.change(box, State.ERROR, reason="second")
    assert caught.value.retryable


async def test_only_a_box_that_is_being_destroyed_is_forgotten() -> None:
    """First the engine, then the record (lesson 2)."""
    store = MemoryStore()
    states = States(store)
    box = await states.open(record())
    with pytest.raises(Conflict):
        await states.forget(box, "because", EventCause.CALL)
    box = await states.change(box, State.STOPPING, reason="because")
    await states.forget(box, "because", EventCause.CALL)
    assert await store.get(box.id) is None
    grave = await store.tombstone(box.id)
    assert grave is not None
    assert grave.reason == "because"


async def test_each_move_is_an_event() -> None:
    states = States(MemoryStore())
    answer: list[Event] = []
    states.listeners.append(answer.append)
    box = await states.open(record())
    box = await states.change(box, State.RUNNING, reason="up")
    box = await states.update(box, labels={"a": "b"})
    box = await states.change(box, State.STOPPING, reason="down")
    await states.forget(box, "down", EventCause.CALL)
    assert [(e.kind, e.new) for e in answer] == [
        ("created", "creating"), ("state", "running"), ("state", "stopping"), ("gone", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("state", State)
def test_every_state_is_said_in_words(state: State) -> None:
    """The words are "still being created", "being destroyed", "encountered an error: …" (P4)."""
    words = describe_state(record(state=state).but(reason="the reason"))
    assert words.startswith("box ")
    assert ("the reason" in words) == (state in (State.ERROR, State.UNKNOWN))


def test_every_state_can_end() -> None:
    for state in State:
        assert state is State.STOPPING or State.STOPPING in MOVES[state]
