"""The states of a box and the moves between them, in a file of its own because code, tests and documents read it."""

from enum import StrEnum


class State(StrEnum):
    CREATING = "creating"
    RESTORING = "restoring"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


MOVES: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.ERROR, State.STOPPING}),
    State.RESTORING: frozenset({State.RUNNING, State.ERROR, State.UNKNOWN, State.STOPPED, State.STOPPING}),
    State.RUNNING: frozenset({State.PAUSED, State.UNKNOWN, State.ERROR, State.RESTORING, State.STOPPING}),
    State.PAUSED: frozenset({State.RUNNING, State.UNKNOWN, State.ERROR, State.STOPPING}),
    State.STOPPING: frozenset({State.STOPPED, State.ERROR}),
    State.STOPPED: frozenset({State.RESTORING, State.STOPPING}),
    State.ERROR: frozenset({State.STOPPING}),
    State.UNKNOWN: frozenset({State.RESTORING, State.STOPPING}),
}
"""Maps a state to those that may follow. From `stopping` a box may also be gone."""


def may_move(old: State, new: State) -> bool:
    return new in MOVES[old]
