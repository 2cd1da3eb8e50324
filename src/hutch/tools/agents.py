"""The state of one agent: its session, the boxes it holds, the files it has read, and what it may do without asking."""

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
from hutch.tools.builtin.paging import LinePosition
from hutch.tools.scope import creator_label, labelled_spec, session_label

T = TypeVar("T")

MAX_REMEMBERED = 10_000
"""File digests that an agent keeps. The oldest is dropped first, and its file must be read again before an edit."""
MAX_SESSION = 128

_log = log("tools")


class Agent:
    """One agent of the application. It has a session of its own, so other agents' calls cannot reach its box."""

    def __init__(self, name: str, hutch: Hutch, spec: Mapping[str, Any], given_boxes: Iterable[str] = ()) -> None:
        self.name = name
        self.hutch = hutch
        self.spec = labelled_spec(spec, hutch.session)
        self.given_boxes = frozenset(given_boxes)
        """Ids and names of boxes that the application lets the agent use besides its own."""
        self.held: dict[str, Box] = {}
        """Open handles by box id, the most recent one last. An open handle keeps its lease alive."""
        self.current: Box | None = None
        self.read_digests: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Maps (box, path) to the digest that the agent last saw. `edit` and `write` compare against it."""
        self.job_cursors: dict[tuple[str, str, str], int] = {}
        """Maps (box, job, stream) to the offset of the next read."""
        self.output_positions: dict[tuple[str, str], LinePosition] = {}
        """Maps (box, output handle) to the start of the next page. Output that was written never changes."""
        self.always_allowed: set[tuple[str, str]] = set()
        """Actions that a person has allowed permanently, as (tool.action, subject)."""
        self.skills: dict[str, str] = {}
        """Active skills by name, with the digest that was activated."""
        self.last_used = 0.0
        self.busy = 0
        self._box_lock = asyncio.Lock()
        """Guards the choice of the current box, so that two concurrent calls cannot create two boxes."""

    async def box(self) -> tuple[Box, tuple[str, ...]]:
        """Return the box that this agent works in, and notes about it for the model."""
        if self.current is not None:
            return self.current, ()
        async with self._box_lock:
            if self.current is not None:
                return self.current, ()
            if (earlier := await self._first_usable(reversed(tuple(self.held)))) is not None:
                return earlier, (f"box {earlier.id}, in which you worked before, is current again",)
            box = await self.hutch.working(**self.spec)
            await self.hold(box)
            return box, (*box.notes, *self._given_box_note(box))

    async def run_in_box(self, work: Callable[[Box], Awaitable[T]]) -> tuple[T, tuple[str, ...]]:
        """Run `work` in the current box. If the box is gone or was taken over, run it in the next one and add a note.

        Work is repeated only if it certainly had not begun: a box that breaks during the work is an error.
        """
        box, notes = await self.box()
        try:
            return await work(box), notes
        except HutchError as error:
            if not box_was_unusable(error):
                if isinstance(error, BoxBroken):
                    await self.release(box.id)
                raise
            await self.release(box.id)
            next_box, notes = await self.box()
            if not any(box.id in note for note in notes):
                reason = f"box {box.id} cannot be used any more: {error.message}"
                instead = f"box {next_box.id} is used instead; its files are not those of the other one"
                notes = (reason, *notes) if notes else (reason, instead)
            return await work(next_box), notes

    def created(self, spec: EffectiveSpec) -> bool:
        """Return whether this agent's session created a box of this spec."""
        return creator_label(spec) == session_label(self.hutch.session)

    def _given_box_note(self, box: Box) -> tuple[str, ...]:
        """Return a note for a box that this session was given and did not create."""
        if self.created(box.spec):
            return ()
        return (f"box {box.id} was given to you, not made for you: what is in it may be somebody else's",)

    async def restore_previous_box(self, others: Iterable[str]) -> Box | None:
        """Make the previous box current again. If none is held, use the newest of `others`, which are oldest first."""
        async with self._box_lock:
            if self.current is not None:
                return self.current
            return await self._first_usable(dict.fromkeys((*reversed(self.held), *reversed(tuple(others)))))

    async def _first_usable(self, box_ids: Iterable[str]) -> Box | None:
        for box_id in box_ids:
            try:
                box = await self.hutch.switch(box_id)
            except HutchError as error:  # This box is gone too, or another session took it over.
                _log.debug("an earlier box cannot be used", box=box_id, error=error)
                await self.release(box_id)
                continue
            await self.hold(box)
            return box
        return None

    async def hold(self, box: Box) -> None:
        """Keep this handle as the current one, and release an older handle on the same box."""
        earlier = self.held.pop(box.id, None)
        self.held[box.id] = box
        self.current = box
        if earlier is not None and earlier is not box:
            await release_quietly(earlier)

    async def switch(self, box_id: str, *, takeover: bool = False) -> Box:
        async with self._box_lock:
            box = await self.hutch.switch(box_id, takeover=takeover)
            await self.hold(box)
            return box

    async def create(self, **spec: Any) -> Box:
        """Create a box and make it current."""
        async with self._box_lock:
            made = await self.hutch.create(**{**self.spec, **spec})
            try:
                await self.hold(await self.hutch.switch(made.id))
            finally:
                await release_quietly(made)
            assert self.current is not None
            return self.current

    async def release(self, box_id: str) -> None:
        """Give up the handle on a box, and with it the lease."""
        box = self.held.pop(box_id, None)
        if self.current is not None and self.current.id == box_id:
            self.current = None
        if box is not None:
            await release_quietly(box)

    async def release_all(self) -> None:
        """Release every handle. The current box stays current and is leased again at the next call."""
        for box_id in tuple(self.held):
            await self.release(box_id)

    # --- files that it has read -----------------------------------------------------------------------------------

    def record_read(self, box: Box, path: str, digest: str) -> None:
        key = (box.id, absolute_path(box, path))
        self.read_digests[key] = digest
        self.read_digests.move_to_end(key)
        if len(self.read_digests) > MAX_REMEMBERED:
            self.read_digests.popitem(last=False)

    def read_digest(self, box: Box, path: str) -> str | None:
        return self.read_digests.get((box.id, absolute_path(box, path)))


def session_for_agent(base: str, agent: str) -> str:
    """Return the session name of an agent. A digest replaces names that no session may have."""
    name = f"{base}/{agent}"
    if len(name) <= MAX_SESSION and name.isascii() and name.isprintable():
        return name
    return f"{base[: MAX_SESSION // 2]}/#{hashlib.sha256(agent.encode('utf-8', 'replace')).hexdigest()[:32]}"


def absolute_path(box: Box, path: str) -> str:
    """Return the absolute, normalised path. No symlink is followed."""
    return posixpath.normpath(posixpath.join("/", box.spec.workdir, path))


def box_was_unusable(error: HutchError) -> bool:
    """Return whether the operation failed before it began because the agent could not use the box."""
    if isinstance(error, LeaseLost | Gone):
        return True
    return isinstance(error, Conflict | BoxBroken) and "state" in error.details


async def release_quietly(box: Box) -> None:
    """Release a handle. It does not matter if the box is already gone or another session took it over."""
    try:
        await box.release()
    except HutchError as error:
        _log.debug("box not released", box=box.id, error=error)
