"""Heartbeats of remote clients, which stand for their open handles.

The keeper's clocks thereby treat a remote session like one of this process. A client that sends no heartbeat for a
while is forgotten, and its leases expire.
"""

import asyncio
import time

from hutch.keeper.boxes.live import Live
from hutch.model.boxes import Event

TIMEOUT_SECONDS = 60.0
"""The time of three heartbeats."""

Client = tuple[str, str]
"""A session and one of its clients: processes of one program may share a session, and each holds its own handles."""


class Presence:
    """The clients that sent a heartbeat recently, and the boxes that they have open."""

    def __init__(self) -> None:
        self._clients: dict[str, dict[Client, tuple[Live, asyncio.TimerHandle]]] = {}
        """Entries by box, then by session and client."""
        self._grants: dict[tuple[str, Client], int] = {}
        """The latest grant of a box to a client, by box, session and client."""
        self._last_grant = 0

    def beat(self, session: str, live: Live, client: str = "", seconds: float = TIMEOUT_SECONDS) -> None:
        """Note that this client of the session still has the box open."""
        box_id, name = live.record.id, (session, client)
        known = self._clients.get(box_id, {}).get(name)
        if known is not None and known[0] is live:
            known[1].cancel()
        else:
            if known is not None:
                self.end(session, box_id, client)
            live.add_handle(session)
        timer = asyncio.get_running_loop().call_later(seconds, self.end, session, box_id, client)
        self._clients.setdefault(box_id, {})[name] = (live, timer)

    def grant(self, session: str, live: Live, client: str) -> int:
        """Note that the client was given the box once more, and return the number of this grant.

        A client names its latest grant when it releases a box. If the server has given it the box again meanwhile, that
        release is out of date: the answer to the later request was still on its way.
        """
        self.beat(session, live, client)
        self._last_grant = max(self._last_grant + 1, time.time_ns())
        self._grants[live.record.id, (session, client)] = self._last_grant
        return self._last_grant

    def was_granted_since(self, session: str, box_id: str, client: str, grant: int) -> bool:
        """Return whether the client was given the box again after this grant; 0 stands for a client without grants."""
        return 0 < grant < self._grants.get((box_id, (session, client)), 0)

    def end(self, session: str, box_id: str, client: str = "") -> None:
        """Forget that the client has the box open, because it closed the box or sent no heartbeat in time."""
        clients = self._clients.get(box_id, {})
        self._grants.pop((box_id, (session, client)), None)
        entry = clients.pop((session, client), None)
        if entry is None:
            return
        if not clients:
            del self._clients[box_id]
        live, timer = entry
        timer.cancel()
        live.remove_handle(session)

    def end_session(self, session: str, box_id: str) -> None:
        """Forget all clients of the session that have the box open."""
        for name, client in list(self._clients.get(box_id, ())):
            if name == session:
                self.end(session, box_id, client)

    def on_event(self, event: Event) -> None:
        """Listen to the keeper's events: nobody holds a box that is gone."""
        if event.kind == "gone":
            for session, client in list(self._clients.get(event.box_id, ())):
                self.end(session, event.box_id, client)
