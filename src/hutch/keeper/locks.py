"""Turns: one lock for each thing that has a name, kept no longer than somebody holds it or waits for it."""

import asyncio
from weakref import WeakValueDictionary


class Turns:
    """Whoever works on the same thing takes turns; nobody else waits (lesson 9)."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    def of(self, *name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())
