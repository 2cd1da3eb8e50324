"""Who is still there: a client's heartbeats stand for its open handles, so that clocks treat a remote session as one of
this process. A client that falls silent is forgotten, and its leases run out."""

import asyncio

from hutch.keeper.boxes.live import Live
from hutch.model.boxes import Event

SILENCE_SECONDS = 60.0
"""Three heartbeats."""

Client = tuple[str, str]
"""A session and one of its clients: processes of one program may share a session, and each holds on by itself."""


class Presence:
    """Sessions that were heard of lately, each with the boxes it holds."""

    def __init__(self) -> None:
        self._heard: dict[str, dict[Client, tuple[Live, asyncio.TimerHandle]]] = {}
        """By box, then by session and client."""

    def beat(self, session: str, live: Live, client: str = "", seconds: float = SILENCE_SECONDS) -> None:
        """That client of the session still has the box open."""
        box_id, name = live.record.id, (session, client)
        before = self._heard.get(box_id, {}).get(name)
        if before is not None and before[0] is live:
            before[1].cancel()
        else:
            if before is not None:
                self.end(session, box_id, client)
            live.add_handle(session)
        timer = asyncio.get_running_loop().call_later(seconds, self.end, session, box_id, client)
        self._heard.setdefault(box_id, {})[name] = (live, timer)

    def end(self, session: str, box_id: str, client: str = "") -> None:
        """The client has let the box go, or was not heard of for too long."""
        clients = self._heard.get(box_id, {})
        found = clients.pop((session, client), None)
        if found is None:
            return
        if not clients:
            del self._heard[box_id]
        live, timer = found
        timer.cancel()
        live.remove_handle(session)

    def end_session(self, session: str, box_id: str) -> None:
        """The session has let the box go, with all of its clients."""
        for name, client in list(self._heard.get(box_id, ())):
            if name == session:
                self.end(session, box_id, client)

    def heard(self, event: Event) -> None:
        """A listener of the keeper's states: a box that is gone is held by nobody, and its memory is free."""
        if event.kind == "gone":
            for session, client in list(self._heard.get(event.box_id, ())):
                self.end(session, event.box_id, client)
