"""Who is still there: a client's heartbeats stand for its open handles, so that clocks treat a remote session as one of
this process. A client that falls silent is forgotten, and its leases run out."""

import asyncio

from hutch.keeper.live import Live

SILENCE_SECONDS = 60.0
"""Three heartbeats."""


class Presence:
    """Sessions that were heard of lately, each with the boxes it holds."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], tuple[Live, asyncio.TimerHandle]] = {}

    def beat(self, session: str, live: Live, seconds: float = SILENCE_SECONDS) -> None:
        """The session still has the box open."""
        name = (session, live.record.id)
        before = self._heard.get(name)
        if before is not None and before[0] is live:
            before[1].cancel()
        else:
            if before is not None:
                self.end(session, live.record.id)
            live.opened_by(session)
        timer = asyncio.get_running_loop().call_later(seconds, self.end, session, live.record.id)
        self._heard[name] = (live, timer)

    def end(self, session: str, box_id: str) -> None:
        """It has let the box go, or was not heard of for too long."""
        found = self._heard.pop((session, box_id), None)
        if found is not None:
            live, timer = found
            timer.cancel()
            live.closed_by(session)
