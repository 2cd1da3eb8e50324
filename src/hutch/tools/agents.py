"""An agent's side of things: its session, the boxes it holds, what it has read, and what it may do without asking."""

import asyncio
import hashlib
import posixpath
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from hutch.api import Box, Hutch
from hutch.errors import BoxBroken, Conflict, Gone, HutchError, LeaseLost
from hutch.logs import log
from hutch.model.spec import EffectiveSpec
from hutch.tools.builtin.paging import Place
from hutch.tools.scope import maker_of, mark_of, marked

T = TypeVar("T")

MAX_REMEMBERED = 10_000
"""Files whose digest an agent's reads have left; the oldest is forgotten first and has to be read again."""
MAX_SESSION = 128

_log = log("tools")


class Agent:
    """One agent of the application: a session of its own, so no other agent's calls reach its box."""

    def __init__(self, name: str, hutch: Hutch, spec: Mapping[str, Any], given: Iterable[str] = ()) -> None:
        self.name = name
        self.hutch = hutch
        self.spec = marked(spec, hutch.session)
        self.given = frozenset(given)
        """Ids and names of boxes that the application lets it use besides its own."""
        self.held: dict[str, Box] = {}
        """Handles by box id, the one that was current last at the end: while one is open its lease is kept alive."""
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
            if (earlier := await self._first_usable(reversed(tuple(self.held)))) is not None:
                return earlier, (f"box {earlier.id}, in which you worked before, is current again",)
            box = await self.hutch.working(**self.spec)
            await self.hold(box)
            return box, (*box.notes, *self._strange(box))

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
            if not any(box.id in note for note in notes):
                reason = f"box {box.id} cannot be used any more: {error.message}"
                instead = f"box {next_box.id} is used instead; its files are not those of the other one"
                notes = (reason, *notes) if notes else (reason, instead)
            return await work(next_box), notes

    def made(self, spec: EffectiveSpec) -> bool:
        """Whether a box of this spec was made by this agent's session."""
        return maker_of(spec) == mark_of(self.hutch.session)

    def _strange(self, box: Box) -> tuple[str, ...]:
        """What to say of a box that this session was given, and did not make."""
        if self.made(box.spec):
            return ()
        return (f"box {box.id} was given to you, not made for you: what is in it may be somebody else's",)

    async def step_back(self, others: Iterable[str]) -> Box | None:
        """Make the box current that was so before; without one in hand, the newest of `others` (oldest first)."""
        async with self._finding:
            if self.current is not None:
                return self.current
            return await self._first_usable(dict.fromkeys((*reversed(self.held), *reversed(tuple(others)))))

    async def _first_usable(self, box_ids: Iterable[str]) -> Box | None:
        for box_id in box_ids:
            try:
                box = await self.hutch.switch(box_id)
            except HutchError as error:  # that one is gone too, or another's by now
                _log.debug("an earlier box cannot be used", box=box_id, error=error)
                await self.let_go(box_id)
                continue
            await self.hold(box)
            return box
        return None

    async def hold(self, box: Box) -> None:
        """Keep this handle, current from now on, and put away an older one on the same box."""
        earlier = self.held.pop(box.id, None)
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
