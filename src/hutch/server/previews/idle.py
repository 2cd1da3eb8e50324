"""Connections into boxes that wait for the next request of the same visitor.

Only requests without a body travel on them, and only those of one grant: a program that reads a request otherwise than
we do can then harm nobody but the visitor who sent it.
"""

import asyncio

from hutch.keeper.access.ports import BoxStream
from hutch.keeper.boxes.live import Live
from hutch.model.boxes import State

IDLE_SECONDS = 2.0
"""How long a connection waits. Servers close idle ones after 5 s or more (Node), and a box must not be kept awake."""
MAX_IDLE = 6
"""Connections that wait for one visitor: as many as a browser opens to one host."""

_Waiting = dict[BoxStream, asyncio.TimerHandle]


class IdleConnections:
    """The waiting connections of one door."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        """By grant and port, the oldest first."""

    def take(self, grant: str, live: Live, port: int) -> BoxStream | None:
        """Return the connection that was used last, if its program has neither closed it nor said anything since."""
        waiting = self._waiting.get((grant, port), {})
        while waiting:
            stream, timer = waiting.popitem()
            timer.cancel()
            if not waiting:
                del self._waiting[grant, port]
            if live.record.state is State.RUNNING and stream.is_quiet(live):
                return stream
            stream.close_now()
        return None

    def give(self, grant: str, port: int, stream: BoxStream) -> None:
        """Keep a connection for the next request."""
        waiting = self._waiting.setdefault((grant, port), {})
        if len(waiting) >= MAX_IDLE:
            stream.close_now()
            return
        loop = asyncio.get_running_loop()
        waiting[stream] = loop.call_later(IDLE_SECONDS, self._expire, grant, port, stream)

    def _expire(self, grant: str, port: int, stream: BoxStream) -> None:
        waiting = self._waiting.get((grant, port), {})
        if waiting.pop(stream, None) is not None:
            stream.close_now()
        if not waiting:
            self._waiting.pop((grant, port), None)

    def close_all(self) -> bool:
        """Close every connection that waits; returns whether there was one."""
        found = list(self._waiting.items())
        for (grant, port), waiting in found:
            for stream in list(waiting):
                waiting[stream].cancel()
                self._expire(grant, port, stream)
        return bool(found)


class Visitor:
    """The waiting connections of one grant to one port of a box."""

    def __init__(self, connections: IdleConnections, grant: str, live: Live, port: int) -> None:
        self._connections = connections
        self._grant = grant
        self._live = live
        self._port = port

    def take(self) -> BoxStream | None:
        return self._connections.take(self._grant, self._live, self._port)

    def give(self, stream: BoxStream) -> None:
        self._connections.give(self._grant, self._port, stream)
