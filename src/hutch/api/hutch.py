"""The protocol of Hutch itself: one session's view of the boxes."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from hutch.api.boxes import Box
from hutch.api.resources import Questions, Receipts, Volumes
from hutch.api.skills import Skills
from hutch.model.boxes import BoxInfo, Event
from hutch.model.capabilities import Capabilities
from hutch.model.status import Status


class Hutch(Protocol):
    """One session's view of the boxes.

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

    async def create(self, /, *, key: str = "", **spec: Any) -> Box:
        """Create a box that stays until it is destroyed or its clocks end it.

        `key` makes a retry safe: the same key gives the same box while it lives.

        Raises: Invalid for a wrong spec; Refused by policy; QuotaExceeded; Unsupported or EngineError of the engine.
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

    async def find(self, text: str) -> BoxInfo:
        """Find a box by its id, the beginning of it, or its name. Raises: NotFound or Gone; Invalid if several fit."""

    async def boxes(self) -> tuple[BoxInfo, ...]:
        """List the boxes that this caller may see, oldest first. Looking does not count as use."""

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
    def questions(self) -> Questions: ...

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """Return the events after number `after`, oldest first."""

    async def providers(self, name: str = "") -> tuple[Capabilities, ...]:
        """Return what each engine, or one, can do here. Each is probed, and a broken one may take long to answer."""

    async def status(self) -> Status:
        """Tell whether boxes can be made, with reason and remedy if not. It never raises for a missing server."""

    async def close(self) -> None: ...
