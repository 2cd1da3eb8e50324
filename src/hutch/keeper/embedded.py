"""The embedded `Hutch`: the interface of a process that keeps its own boxes, without a server or daemon."""

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hutch import logs
from hutch.config import Config, directories
from hutch.errors import LeaseLost
from hutch.keeper.access import leases, lookup
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import LOCAL_OWNER, BoxRecord
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.open_store import open_ledger, open_store
from hutch.model.arguments import spec_from_arguments
from hutch.model.boxes import BoxInfo, Event
from hutch.model.capabilities import Capabilities
from hutch.providers import registry

# Loaded at first use: most programs use few of a box's surroundings, and `hutch run` none.
if TYPE_CHECKING:
    from hutch.api import CreatedHook, DestroyedHook
    from hutch.apps.local import LocalApps
    from hutch.keeper.access.beside_lease import AdminHandle, ObservedBox
    from hutch.keeper.owner_view import OwnerQuestions, OwnerReceipts, OwnerView, OwnerVolumes
    from hutch.keeper.skills.skills import LocalSkills
    from hutch.model.spec import EffectiveSpec
    from hutch.model.status import Metrics, Status


class Hutch:
    """`async with Hutch() as hutch: async with hutch.box() as box: ...`

    Keyword arguments are fields of the configuration (`state_dir=`, `provider=`, `max_boxes=`, ...); they win over
    `hutch.toml` and `HUTCH_*`.
    """

    def __init__(self, *, keeper: Keeper | None = None, **configuration: Any) -> None:
        self._keeper = keeper or open_process_keeper(Config.load(**configuration))
        self.session = leases.PROCESS_SESSION_PREFIX + os.urandom(8).hex()
        self._started = False
        self._is_view = False
        """Whether this is a view for another session, which does not close the keeper."""
        self._since = time.time()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def _start(self) -> None:
        if not self._started:
            await self._keeper.start()
            self._started = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def config(self) -> Config:
        return self._keeper.config

    @asynccontextmanager
    async def box(self, **spec: Any) -> AsyncIterator[BoxHandle]:
        """Create a box that is destroyed at exit, unless another session took it over meanwhile."""
        box = await self.create(**spec)
        try:
            yield box
        finally:
            with suppress(LeaseLost):
                await box.destroy()

    async def create(self, *, key: str = "", wait: bool = True, **spec: Any) -> BoxHandle:
        """Create a box. `key` makes a retry safe: the same key gives the same box while it lives."""
        await self._start()
        asked = spec_from_arguments(**spec)
        if wait:
            live = await self._keeper.create(asked, session=self.session, key=key)
        else:
            record = await self._keeper.creations.begin(asked, session=self.session, owner=LOCAL_OWNER, key=key)
            live = await self._keeper.live(record.id)
        return BoxHandle(self._keeper, live, self.session)

    async def plan(self, **spec: Any) -> "EffectiveSpec":
        """Return the spec that a box would have, without creating one."""
        await self._start()
        return await self._keeper.engines.plan(spec_from_arguments(**spec))

    @asynccontextmanager
    async def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> AsyncIterator[BoxHandle]:
        """Find the box of this conversation, or create it from `spec`. Leaving releases it and does not destroy it.

        `template` is `{chat}_{user}` and the like, or the name of a ready-made scope; every variable needs a value.
        """
        from hutch.keeper.access.scopes import scope, scope_labels

        await self._start()
        found_scope = scope(template, values, owner=LOCAL_OWNER, kind=kind)
        asked = dict(spec or {})
        labels = {**asked.pop("labels", {}), **scope_labels(found_scope, kind)}
        live, notes = await self._keeper.box_for_key(
            spec_from_arguments(**asked, labels=labels), found_scope.key, self.session
        )
        box = BoxHandle(self._keeper, live, self.session, notes)
        try:
            yield box
        finally:
            await box.release()

    async def import_box(
        self, file: str | Path, *, provider: str = "", profile: str | None = None, image: str | None = None,
        name: str | None = None,
    ) -> BoxHandle:  # fmt: skip
        """Create a box from a file that `Box.export` wrote."""
        from hutch.keeper.archives import export  # It loads archives, which few callers need.

        await self._start()
        spool = self._keeper.config.state_dir / "spool"
        directories.make(spool)
        box, moved = await export.import_box(
            self.create, file, spool=spool, provider=provider, profile=profile, image=image, name=name
        )  # fmt: skip
        box.notes = moved.notes
        return box

    async def attach(self, box_id: str, *, takeover: bool = False) -> BoxHandle:
        """Return a handle on an existing box. BoxBusy while another session holds it, unless it is taken over."""
        await self._start()
        live = await self._keeper.acquire(box_id, self.session, takeover=takeover)
        return BoxHandle(self._keeper, live, self.session)

    async def administer(self, box_id: str) -> "AdminHandle":
        """Return a handle that works beside the holder of the lease. Every operation is logged."""
        from hutch.keeper.access.beside_lease import AdminHandle

        await self._start()
        return AdminHandle(self._keeper, await self._keeper.live(box_id), self.session)

    def for_session(self, name: str) -> "Hutch":
        """Return a view of the same boxes for another session."""
        import copy

        view = copy.copy(self)
        view.session = name
        view._is_view = True
        view.questions = self.questions  # what waits is the same for all sessions
        return view

    # --- the session's current box ------------------------------------------------------------------------------

    async def current(self) -> str | None:
        await self._start()
        return await self._keeper.sessions.current(self.session)

    async def switch(self, box_id: str, *, takeover: bool = False) -> BoxHandle:
        await self._start()
        live = await self._keeper.sessions.switch(self.session, box_id, takeover=takeover)
        return BoxHandle(self._keeper, live, self.session)

    async def working(self, **spec: Any) -> BoxHandle:
        """Return the session's current box, else the default one, else a new one; `notes` says what happened."""
        await self._start()
        live, notes = await self._keeper.sessions.find_or_create(self.session, spec_from_arguments(**spec))
        return BoxHandle(self._keeper, live, self.session, notes)

    async def leave(self) -> None:
        await self._start()
        await self._keeper.sessions.leave(self.session)

    async def default(self, provider: str = "") -> str | None:
        await self._start()
        return await self._keeper.sessions.default(provider=provider)

    async def set_default(self, box_id: str, provider: str = "") -> None:
        await self._start()
        await self._keeper.sessions.set_default(box_id, provider=provider)

    # --- listings ----------------------------------------------------------------------------------------------

    async def find(self, text: str) -> BoxInfo:
        """Return the box that `text` means: its id, the beginning of its id, or its name. Any process may keep it."""
        await self._start()
        return await self._keeper.views.box(await lookup.find(self._keeper.store, text))

    async def boxes(self, *, after: str = "", limit: int | None = None) -> tuple[BoxInfo, ...]:
        """Return the boxes of the store, whichever keeper has them, oldest first. This extends no clock."""
        await self._start()
        return await self._keeper.views.boxes(LOCAL_OWNER, after=after, limit=limit)

    async def observe(self, box_id: str) -> "ObservedBox":
        """Return the box for observation, without its lease."""
        from hutch.keeper.access.beside_lease import ObservedBox

        await self._start()
        return ObservedBox(self._keeper, await self._keeper.live(box_id))

    async def destroy(self, box_id: str, *, force: bool = False) -> None:
        """Destroy a box. BoxBusy while another session holds it, unless forced; a box that is gone is fine."""
        await self._start()

        def held(live: Live) -> bool:
            leases.fields_to_acquire(live.record, self.session, time.time())  # or BoxBusy
            return False

        await self._keeper.destroy(box_id, unless=None if force else held)

    @property
    def _own(self) -> "OwnerView":
        from hutch.keeper.owner_view import OwnerView

        return OwnerView(self._keeper, LOCAL_OWNER, self.session, show_paths=True)

    @property
    def volumes(self) -> "OwnerVolumes":
        return self._own.volumes

    @property
    def receipts(self) -> "OwnerReceipts":
        return self._own.receipts

    @property
    def skills(self) -> "LocalSkills":
        return self._own.local_skills

    @property
    def apps(self) -> "LocalApps":
        from hutch.apps.local import LocalApps

        return LocalApps(self)

    @cached_property
    def questions(self) -> "OwnerQuestions":
        from hutch.keeper.owner_view import OwnerQuestions
        from hutch.keeper.questions import Questions

        return OwnerQuestions(Questions())

    async def on_created(self, hook: "CreatedHook") -> None:
        """Run `hook` with each new box, until it has succeeded once for that box."""

        async def run(record: BoxRecord) -> None:
            holder = record.lease.holder if record.lease is not None else self.session
            box = BoxHandle(self._keeper, await self._keeper.live(record.id), holder)
            try:
                await hook(box)
            finally:
                box.close()

        self._keeper.hooks.created.append(run)

    async def on_destroyed(self, hook: "DestroyedHook") -> None:
        """Run `hook` with the event of each box that is gone."""
        self._keeper.hooks.destroyed.append(hook)

    async def metrics(self) -> "Metrics":
        """Return what this process has counted."""
        return self._keeper.counters.metrics(LOCAL_OWNER, self._keeper.boxes())

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        await self._start()
        return await self._keeper.events(after, limit)

    async def providers(self, name: str = "") -> tuple[Capabilities, ...]:
        if name:
            self._keeper.engines.provider(name)  # or NotFound
        names = [name] if name else sorted(registry.names())
        return tuple([await self._keeper.engines.current_capabilities(each) for each in names])

    async def status(self) -> "Status":
        """Return the condition of the keeper; this always answers."""
        return await self._keeper.views.status(self._keeper.boxes(), self._since)

    async def shutdown(self) -> None:
        """Close for every session: there is no server to end."""
        self._is_view = False
        await self.close()

    async def close(self) -> None:
        if not self._is_view:
            await self._keeper.close()


def open_process_keeper(config: Config) -> Keeper:
    """Set up the logs of this process, and open its keeper."""
    logs.configure(level=config.log_level, format=config.log_format)
    return open_keeper(config)


def open_keeper(config: Config, *, visiting: bool = False) -> Keeper:
    """Open a keeper with records on disk or in PostgreSQL, so that a crash of this process loses no box."""
    store, liveness = open_store(config)
    return Keeper(config, store, liveness=liveness, ledger=open_ledger(config, store), visiting=visiting)
