"""The protocol of Hutch itself: one session's view of the boxes."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from hutch.api.apps import Apps
from hutch.api.boxes import Box
from hutch.api.resources import Questions, Receipts, Volumes
from hutch.api.skills import Skills
from hutch.model.boxes import BoxInfo, Event
from hutch.model.capabilities import Capabilities
from hutch.model.spec import EffectiveSpec
from hutch.model.status import Metrics, Status

CreatedHook = Callable[[Box], Awaitable[None]]
DestroyedHook = Callable[[Event], Awaitable[None]]


class Hutch(Protocol):
    """One session's view of the boxes. `hutch.Hutch` also has `mcp_servers` (`hutch.api.McpServers`).

    Raises, from every method but `boxes` and `status`: Disabled if Hutch is switched off by its configuration.
    """

    @property
    def session(self) -> str:
        """The session that holds the leases which this object acquires."""

    def for_session(self, name: str) -> "Hutch":
        """Return a view for another session, such as another agent of this application.

        Closing it closes nothing; it lives as long as this object.
        """

    # --- boxes ----------------------------------------------------------------------------------------------

    def box(self, /, **spec: Any) -> AbstractAsyncContextManager[Box]:
        """Create a box that is destroyed at exit. Raises: as `create`."""

    async def create(self, /, *, key: str = "", wait: bool = True, **spec: Any) -> Box:
        """Create a box that stays until it is destroyed or its clocks end it.

        `key` makes a retry safe: the same key gives the same box while it lives. Without `wait` the call returns as
        soon as the box is on record, in state `creating`; `Box.ready` waits for the rest.

        Raises: Invalid for a wrong spec; Refused by policy; QuotaExceeded; Unsupported or EngineError of the engine.
        """

    async def plan(self, /, **spec: Any) -> EffectiveSpec:
        """Return the spec that a box would have: limits, network, mounts, and what policy would change.

        Nothing is created and no image is fetched, so what an image says itself is not in it. Raises: as `create`.
        """

    def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> AbstractAsyncContextManager[Box]:
        """Find the box of this conversation, or create it from `spec`. Leaving releases it and does not destroy it.

        Raises: as `create`; BoxBusy while another session holds the box.
        """

    async def import_box(
        self, file: str | Path, *, provider: str = "", profile: str | None = None, image: str | None = None,
        name: str | None = None,
    ) -> Box:  # fmt: skip
        """Create a box from a file of `Box.export`, on the same or another provider; arguments win over the file.

        `Box.notes` says what could not be taken over. Raises: as `create`; Invalid if the file is no exported box.
        """

    async def attach(self, box_id: str, *, takeover: bool = False) -> Box:
        """Lease a box and return a handle on it.

        Raises: NotFound or Gone; BoxBusy while another session holds it, unless it is taken over; HeldElsewhere if
        another process keeps it that cannot be reached.
        """

    async def observe(self, box_id: str) -> Box:
        """Return a handle that only looks and needs no lease. Raises: NotFound or Gone; its changes raise Refused."""

    async def administer(self, box_id: str) -> Box:
        """Return a handle on any box that works beside the holder of its lease. Every operation is logged.

        Raises: NotFound or Gone; Refused without an admin's key.
        """

    async def find(self, text: str) -> BoxInfo:
        """Find a box by its id, the beginning of it, or its name. Raises: NotFound or Gone; Invalid if several fit."""

    async def boxes(self, *, after: str = "", limit: int | None = None) -> tuple[BoxInfo, ...]:
        """List the boxes that this caller may see, oldest first. Looking does not count as use.

        Of many boxes, ask for a part: at most `limit`, those that come after the box with the id `after`.
        Raises: NotFound if that box is gone.
        """

    async def destroy(self, box_id: str, *, force: bool = False) -> None:
        """Destroy a box, if it is still there. Raises: BoxBusy while another session holds it, unless forced."""

    # --- the session's current box ------------------------------------------------------------------------------

    async def current(self) -> str | None:
        """Return the id of this session's current box, which may be gone by now."""

    async def switch(self, box_id: str, *, takeover: bool = False) -> Box:
        """Make a box current and hold its lease. Raises: as `attach`."""

    async def working(self, /, **spec: Any) -> Box:
        """Return the box that this session works in: its current one, else the owner's default, else a new one.

        A box that is busy, broken or gone is skipped, and `Box.notes` says so. Raises: as `create`.
        """

    async def leave(self) -> None:
        """Release the current box."""

    async def default(self, provider: str = "") -> str | None:
        """Return the id of the owner's default box on that provider, else of its default on any."""

    async def set_default(self, box_id: str, provider: str = "") -> None: ...

    # --- volumes, receipts, skills, questions, events --------------------------------------------------------------

    @property
    def volumes(self) -> Volumes: ...

    @property
    def receipts(self) -> Receipts: ...

    @property
    def skills(self) -> Skills: ...

    @property
    def apps(self) -> Apps: ...

    @property
    def questions(self) -> Questions: ...

    async def on_created(self, hook: CreatedHook) -> None:
        """Run `hook` with each box that this program creates or is given, until it has succeeded once for that box.

        It runs after the box is leased and before its caller gets it; its error is the caller's, and a box that was
        being created is destroyed. A crash in between repeats it.
        """

    async def on_destroyed(self, hook: DestroyedHook) -> None:
        """Run `hook` with the event of each box that is gone from now on, however it ended (`Event.cause`).

        A client hears of every box of its owner; an embedded Hutch of those that its process keeps.
        """

    async def metrics(self) -> Metrics:
        """Return what happened to this owner's boxes, per kind and in total, since the keeper started."""

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Return the events after number `after`, oldest first."""

    async def providers(self, name: str = "") -> tuple[Capabilities, ...]:
        """Return what each engine, or one, can do here. Each is probed, and a broken one may take long to answer."""

    async def status(self) -> Status:
        """Return whether boxes can be made, with reason and remedy if not. It never raises for a missing server."""

    async def shutdown(self) -> None:
        """End the server as SIGTERM does: it finishes what runs and leaves its boxes to the next one.

        An embedded Hutch closes. Raises: Refused without an admin's key.
        """

    async def close(self) -> None: ...
