"""An agent's side of things: its session, the boxes it holds, what it has read, and what it may do without asking."""

import asyncio
import hashlib
import posixpath
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from hutch.api import Box, Hutch
from hutch.errors import BoxBroken, Conflict, Gone, HutchError, LeaseLost
from hutch.logs import log
from hutch.tools.paging import Place

T = TypeVar("T")

MAX_REMEMBERED = 10_000
"""Files whose digest an agent's reads have left; the oldest is forgotten first and has to be read again."""
MAX_SESSION = 128

_log = log("tools")


class Agent:
    """One agent of the application: a session of its own, so no other agent's calls reach its box."""

    def __init__(self, name: str, hutch: Hutch, spec: Mapping[str, Any]) -> None:
        self.name = name
        self.hutch = hutch
        self.spec = dict(spec)
        self.held: dict[str, Box] = {}
        """Handles by box id: while one is open its lease is kept alive."""
        self.current: Box | None = None
        self.read: OrderedDict[tuple[str, str], str] = OrderedDict()
        """From (box, path) to the digest the agent last saw: the guard of `edit` and `write`."""
        self.cursors: dict[tuple[str, str, str], int] = {}
        """From (box, job, stream) to where its next read goes on."""
        self.places: dict[tuple[str, str], Place] = {}
        """From (box, output handle) to where its next page begins: what was written there does not change."""
        self.always: set[tuple[str, str]] = set()
        """What somebody has allowed once and for all."""
        self.skills: dict[str, str] = {}
        """Active skills, with the digest that was activated."""
        self.used = 0.0
        self.busy = 0
        self._finding = asyncio.Lock()
        """Held while the current box is looked for or changed: two calls at once must not make two boxes."""

    async def box(self) -> tuple[Box, tuple[str, ...]]:
        """The box this agent works in, and what it should know about that (P7)."""
        if self.current is not None:
            return self.current, ()
        async with self._finding:
            if self.current is not None:
                return self.current, ()
            box = await self.hutch.working(**self.spec)
            await self.hold(box)
            return box, box.notes

    async def working(self, work: Callable[[Box], Awaitable[T]]) -> tuple[T, tuple[str, ...]]:
        """Do it in the current box. If that one is gone or somebody else's by now, in the next one, and say so.

        Only what has certainly not begun is done again: a box that breaks during the work is an error.
        """
        box, notes = await self.box()
        try:
            return await work(box), notes
        except HutchError as error:
            if not lost(error):
                if isinstance(error, BoxBroken):
                    await self.let_go(box.id)
                raise
            await self.let_go(box.id)
            next_box, notes = await self.box()
            reason = f"box {box.id} cannot be used any more: {error.message}"
            notes = notes or (reason, f"box {next_box.id} is used instead; its files are not those of the other one")
            return await work(next_box), notes

    async def hold(self, box: Box) -> None:
        """Keep this handle, current from now on, and put away an older one on the same box."""
        earlier = self.held.get(box.id)
        self.held[box.id] = box
        self.current = box
        if earlier is not None and earlier is not box:
            await put_away(earlier)

    async def switch(self, box_id: str, *, takeover: bool = False) -> Box:
        async with self._finding:
            box = await self.hutch.switch(box_id, takeover=takeover)
            await self.hold(box)
            return box

    async def create(self, **spec: Any) -> Box:
        """A new box, current from now on."""
        async with self._finding:
            made = await self.hutch.create(**{**self.spec, **spec})
            try:
                await self.hold(await self.hutch.switch(made.id))
            finally:
                await put_away(made)
            assert self.current is not None
            return self.current

    async def let_go(self, box_id: str) -> None:
        """Give up the handle and with it the lease."""
        box = self.held.pop(box_id, None)
        if self.current is not None and self.current.id == box_id:
            self.current = None
        if box is not None:
            await put_away(box)

    async def rest(self) -> None:
        """Hold nothing any more; the current box stays current and is leased again at the next call."""
        for box_id in tuple(self.held):
            await self.let_go(box_id)

    # --- what it has seen -----------------------------------------------------------------------------------

    def saw(self, box: Box, path: str, digest: str) -> None:
        key = (box.id, located(box, path))
        self.read[key] = digest
        self.read.move_to_end(key)
        if len(self.read) > MAX_REMEMBERED:
            self.read.popitem(last=False)

    def seen(self, box: Box, path: str) -> str | None:
        return self.read.get((box.id, located(box, path)))


def session_of(base: str, agent: str) -> str:
    """The session of an agent beside the default one; names that a session cannot have are told apart by a digest."""
    name = f"{base}/{agent}"
    if len(name) <= MAX_SESSION and name.isascii() and name.isprintable():
        return name
    return f"{base[: MAX_SESSION // 2]}/#{hashlib.sha256(agent.encode('utf-8', 'replace')).hexdigest()[:32]}"


def located(box: Box, path: str) -> str:
    """The path as the box's root sees it, by spelling alone."""
    return posixpath.normpath(posixpath.join("/", box.spec.workdir, path))


def lost(error: HutchError) -> bool:
    """Whether the box was not this agent's to use when the operation was about to begin, so that nothing was done."""
    if isinstance(error, LeaseLost | Gone):
        return True
    return isinstance(error, Conflict | BoxBroken) and "state" in error.details


async def put_away(box: Box) -> None:
    """Release a handle. That a box is gone, or another's, is no news to whoever lets go of it."""
    try:
        await box.release()
    except HutchError as error:
        _log.debug("box not released", box=box.id, error=error)
