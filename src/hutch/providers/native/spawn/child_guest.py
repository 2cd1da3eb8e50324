"""The guest that a child makes before its order comes: nobody has to wait for that then. Standard library only."""

from hutch.guest.main import Guest, GuestContext

_made: list[Guest] = []


def prepare(listener: int, spill: int | None, oom: int, is_init: bool) -> None:
    """In the child; a step of its first programs."""
    _made.append(Guest(listener, GuestContext(spill, oom, is_init)))


def prepared() -> Guest:
    return _made.pop()
