"""Sessions: the current box of each session, the default boxes of an owner, and how a call finds its box."""

from typing import TYPE_CHECKING

from hutch.errors import BoxBusy, Conflict, Gone, HeldElsewhere, NotFound
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.locks import KeyedLocks
from hutch.keeper.store.store import Store
from hutch.model.spec import Spec

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper

CURRENT = "current"
DEFAULT = "default"


class Sessions:
    """A session's current box and an owner's default boxes, in the store: a restarted client finds them again."""

    def __init__(self, keeper: "Keeper", store: Store) -> None:
        self._keeper = keeper
        self._store = store
        self._finding = KeyedLocks()
        """Locks by owner and session: of two calls at once, the second finds the box that the first created."""

    async def current(self, session: str, owner: str = LOCAL_OWNER) -> str | None:
        """Return the id of the current box, which may be gone by now."""
        return await self._read_note(CURRENT, f"{owner}/{session}")

    async def switch(self, session: str, box_id: str, owner: str = LOCAL_OWNER, *, takeover: bool = False) -> Live:
        """Make a box current; the session holds its lease from now on."""
        live = await self._keeper.live(box_id)
        with live.pending_handle(session):
            await self._keeper.acquire(box_id, session, takeover=takeover)
            await self._store.put_note(CURRENT, f"{owner}/{session}", box_id.encode())
        return live

    async def leave(self, session: str, owner: str = LOCAL_OWNER) -> None:
        """Release the current box."""
        box_id = await self.current(session, owner)
        await self._store.drop_note(CURRENT, f"{owner}/{session}")
        if box_id is not None:
            try:
                await self._keeper.release(await self._keeper.live(box_id), session)
            except (NotFound, HeldElsewhere):
                return

    async def default(self, owner: str = LOCAL_OWNER, provider: str = "") -> str | None:
        """Return the owner's default box on that provider, else its default on any."""
        return await self._read_note(DEFAULT, f"{owner}/{provider}") or await self._read_note(DEFAULT, f"{owner}/")

    async def set_default(self, box_id: str, owner: str = LOCAL_OWNER, provider: str = "") -> None:
        await self._keeper.live(box_id)
        await self._store.put_note(DEFAULT, f"{owner}/{provider}", box_id.encode())

    async def find_or_create(self, session: str, spec: Spec, owner: str = LOCAL_OWNER) -> tuple[Live, tuple[str, ...]]:
        """Return the box that a call of this session uses: its current one, else the default, else a new one.

        If a box is busy, broken or gone, the next one is tried, and the notes say so.
        """
        async with self._finding.lock(owner, session):
            return await self._find_or_create(session, spec, owner)

    async def _find_or_create(self, session: str, spec: Spec, owner: str) -> tuple[Live, tuple[str, ...]]:
        notes: list[str] = []
        candidates = (("current", await self.current(session, owner)), ("default", await self.default(owner)))
        for kind, box_id in candidates:
            if box_id is None:
                continue
            live, note = await self._usable(kind, box_id, session, owner)
            if live is not None:
                return live, tuple(notes)
            notes.append(note)
        live = await self._keeper.create(spec, session=session, owner=owner)
        await self._store.put_note(CURRENT, f"{owner}/{session}", live.record.id.encode())
        if notes:
            notes.append(f"box {live.record.id} was created and is current now")
        return live, tuple(notes)

    async def _usable(self, kind: str, box_id: str, session: str, owner: str) -> tuple[Live | None, str]:
        try:
            live = await self._keeper.live(box_id)
            if live.record.owner != owner:
                return None, f"the {kind} box {box_id} is not there"
            if not await self._keeper.health.is_usable(live):
                return None, f"the {kind} box {box_id} cannot be used: {live.record.reason}"
            return await self.switch(session, box_id, owner), ""
        except BoxBusy:
            return None, f"the {kind} box {box_id} is held by another session"
        except Gone as gone:
            return None, f"the {kind} {gone.message}; its files are lost"
        except (NotFound, HeldElsewhere, Conflict) as error:
            return None, f"the {kind} box cannot be used: {error.message}"

    async def _read_note(self, kind: str, key: str) -> str | None:
        body = (await self._store.notes(kind)).get(key)
        return body.decode() if body is not None else None
