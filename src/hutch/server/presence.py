"""Who is still there: a client's heartbeats stand for its open handles, so that clocks treat a remote session as one of
this process. A client that falls silent is forgotten, and its leases run out."""

import asyncio

from hutch.keeper.live import Live
from hutch.model.boxes import Event

SILENCE_SECONDS = 60.0
"""Three heartbeats."""


class Presence:
    """Sessions that were heard of lately, each with the boxes it holds."""

    def __init__(self) -> None:
        self._heard: dict[str, dict[str, tuple[Live, asyncio.TimerHandle]]] = {}
        """By box, then by session."""

    def beat(self, session: str, live: Live, seconds: float = SILENCE_SECONDS) -> None:
        """The session still has the box open."""
        box_id = live.record.id
        before = self._heard.get(box_id, {}).get(session)
        if before is not None and before[0] is live:
            before[1].cancel()
        else:
            if before is not None:
                self.end(session, box_id)
            live.opened_by(session)
        timer = asyncio.get_running_loop().call_later(seconds, self.end, session, box_id)
        self._heard.setdefault(box_id, {})[session] = (live, timer)

    def end(self, session: str, box_id: str) -> None:
        """It has let the box go, or was not heard of for too long."""
        sessions = self._heard.get(box_id, {})
        found = sessions.pop(session, None)
        if found is None:
            return
        if not sessions:
            del self._heard[box_id]
        live, timer = found
        timer.cancel()
        live.closed_by(session)

    def heard(self, event: Event) -> None:
        """A listener of the keeper's states: a box that is gone is held by nobody, and its memory is free."""
        if event.kind == "gone":
            for session in list(self._heard.get(event.box_id, ())):
                self.end(session, event.box_id)
