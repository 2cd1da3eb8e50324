"""What a client may have missed: the latest messages of one session, so that a broken stream can be taken up again."""

from collections import deque

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.types import JSONRPCMessage

MOST_EVENTS = 512
MOST_BYTES = 8 << 20


class RecentEvents(EventStore):
    """Of one session, in memory: when the server ends, its sessions end too."""

    def __init__(self) -> None:
        self._last = 0
        self._events: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        """Number, stream, message, size; a message of None only marks where a stream begins."""
        self._bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._last += 1
        size = len(message.model_dump_json()) if message is not None else 0
        self._events.append((self._last, stream_id, message, size))
        self._bytes += size
        while len(self._events) > MOST_EVENTS or self._bytes > MOST_BYTES:
            self._bytes -= self._events.popleft()[3]
        return str(self._last)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Only of the stream that the event belongs to: each answer goes to where it was asked for."""
        seen = int(last_event_id) if last_event_id.isdecimal() else 0
        stream = next((each[1] for each in self._events if each[0] == seen), None)
        if stream is None:
            return None
        for number, of, message, _ in list(self._events):
            if number > seen and of == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
