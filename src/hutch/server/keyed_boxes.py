"""Boxes that a foreign protocol names itself: the protocol's name is the box's idempotency key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hutch.config import Config
from hutch.errors import Gone
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.live import Live
from hutch.keeper.keeper import Keeper
from hutch.model.boxes import EventCause, State
from hutch.model.ids import BoxId
from hutch.model.spec import Spec
from hutch.policy import rights
from hutch.server.access import hold
from hutch.server.auth import Caller

WIDEST_PROFILE = "network_extended"
"""The profile of bots by default: their own settings ask for less where they want less."""
MAX_KNOWN = 4096
"""Ids that are remembered; any other is looked up in the store."""


class KeyedBoxes:
    """Finds and creates the boxes of one door. The store knows which box a key belongs to, also after a restart."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._ids: dict[tuple[str, str], BoxId] = {}

    async def find(self, owner: str, key: str) -> Live | None:
        """Return the box of this key, if there is one that nobody is destroying."""
        box_id = self._ids.get((owner, key))
        live = self._keeper.held(box_id) if box_id is not None else None
        if live is None:
            record = await self._keeper.store.by_key(owner, key)
            self._ids.pop((owner, key), None)
            if record is None:
                return None
            try:
                live = await self._keeper.live(record.id)
            except Gone:
                return None
            self._remember(owner, key, live)
        return None if live.record.doomed else live

    async def id_of(self, owner: str, key: str) -> BoxId | None:
        """Return the id of the box of this key, whichever keeper has it."""
        box_id = self._ids.get((owner, key))
        if box_id is not None and self._keeper.held(box_id) is not None:
            return box_id
        record = await self._keeper.store.by_key(owner, key)
        return None if record is None else record.id

    async def find_usable(self, owner: str, key: str) -> Live | None:
        """Return the box of this key, unless it is broken: then it is destroyed. A box in creation is not there yet.

        A box that cannot be reached now is returned too: its next operation tries again, and nothing is lost.
        """
        live = await self.find(owner, key)
        if live is None or live.record.state in (State.CREATING, State.RESTORING):
            return None
        if await self._keeper.health.is_usable(live) or live.record.state is not State.ERROR:
            return live
        await self._keeper.destroy(live.record.id, f"replaced: {live.record.reason}", EventCause.REPLACED)
        return None

    async def create(self, caller: Caller, key: str, spec: Spec) -> Live:
        """Create the box of this key; callers that ask at once get the same one."""
        live = await self._keeper.create(spec, session=caller.session, owner=caller.owner, key=key)
        self._remember(caller.owner, key, live)
        return live

    @asynccontextmanager
    async def use(self, caller: Caller, live: Live) -> AsyncIterator[BoxHandle]:
        """Hold the box's lease for the caller's session while it is used."""
        await hold(self._keeper, live, caller.session)
        handle = BoxHandle(self._keeper, live, caller.session)
        try:
            yield handle
        finally:
            handle.close()

    def _remember(self, owner: str, key: str, live: Live) -> None:
        if len(self._ids) >= MAX_KNOWN:
            del self._ids[next(iter(self._ids))]
        self._ids[owner, key] = live.record.id


def bots_profile(config: Config) -> str | None:
    """Return the profile of the boxes of LangBot and AstrBot, which bounds what they ask for.

    A caller who may not use the widest built-in one gets the caller's own default.
    """
    if config.server.bots_profile:
        return config.server.bots_profile
    allowed = rights.current().profiles
    return WIDEST_PROFILE if allowed is None or WIDEST_PROFILE in allowed else None
