"""`Hutch`, embedded: the front door of a process that keeps its own boxes. No server, no daemon."""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from hutch import logs
from hutch.config import Config
from hutch.keeper import leases, naming
from hutch.keeper.handles import BoxHandle
from hutch.keeper.keeper import Keeper
from hutch.keeper.opening import open_store
from hutch.keeper.records import LOCAL_OWNER, BoxRecord, Event
from hutch.keeper.scopes import scope
from hutch.keeper.volumes import Volumes
from hutch.model.asking import ask
from hutch.model.capabilities import Capabilities
from hutch.providers import registry
from hutch.providers.base import Instance


class Hutch:
    """`async with Hutch() as hutch: async with hutch.box() as box: ...`

    Keyword arguments are fields of the configuration (`state_dir=`, `provider=`, `max_boxes=`, ...); they win over
    `hutch.toml` and `HUTCH_*`.
    """

    def __init__(self, *, keeper: Keeper | None = None, **configuration: Any) -> None:
        self._keeper = keeper or _opened(Config.load(**configuration))
        self.session = leases.OF_A_PROCESS + secrets.token_hex(8)
        self._started = False

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            try:
                await self._keeper.start()
            except BaseException:
                self._started = False
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def config(self) -> Config:
        return self._keeper.config

    @asynccontextmanager
    async def box(self, **spec: Any) -> AsyncIterator[BoxHandle]:
        """A new box, destroyed at exit."""
        box = await self.create(**spec)
        try:
            yield box
        finally:
            await box.destroy()

    async def create(self, *, key: str = "", **spec: Any) -> BoxHandle:
        """A new box. `key` makes a retry safe: the same key gives the same box while it lives."""
        await self._start()
        live = await self._keeper.create(ask(**spec), session=self.session, key=key)
        return BoxHandle(self._keeper, live, self.session)

    @asynccontextmanager
    async def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> AsyncIterator[BoxHandle]:
        """The box of this conversation: found, or made from `spec`. Leaving releases it and does not destroy it.

        `template` is `{chat}_{user}` and the like, or the name of a ready-made scope; every variable needs a value.
        """
        await self._start()
        place = scope(template, values, owner=LOCAL_OWNER, kind=kind)
        asked = dict(spec or {})
        labels = {**asked.pop("labels", {}), "scope": place.shown}
        live, notes = await self._keeper.working(ask(**asked, labels=labels), place.key, self.session)
        box = BoxHandle(self._keeper, live, self.session, notes)
        try:
            yield box
        finally:
            await box.release()

    async def attach(self, box_id: str, *, takeover: bool = False) -> BoxHandle:
        """A handle on a box there is. BoxBusy while another session holds it, unless it is taken over."""
        await self._start()
        live = await self._keeper.acquire(box_id, self.session, takeover=takeover)
        return BoxHandle(self._keeper, live, self.session)

    async def find(self, text: str) -> BoxRecord:
        """The box that `text` means: its id, the beginning of its id, or its name. It need not be this process's."""
        await self._start()
        return await naming.find(self._keeper.store, text)

    async def known(self) -> tuple[BoxRecord, ...]:
        """Every box of the store, whoever keeps it, oldest first. Looking extends nothing."""
        await self._start()
        mine = (record for record in await self._keeper.store.all() if record.owner == LOCAL_OWNER)
        return tuple(sorted(mine, key=lambda record: record.created_at))

    async def kept(self, record: BoxRecord) -> bool:
        """Whether another live process has the box in its hands."""
        return record.keeper != self._keeper.id and await self._keeper.liveness.alive(record.keeper)

    async def observe(self, box_id: str) -> Instance:
        """The box itself, to read from, without its lease."""
        await self._start()
        return (await self._keeper.live(box_id)).running

    async def destroy(self, box_id: str) -> None:
        await self._keeper.destroy(box_id)

    @property
    def volumes(self) -> Volumes:
        return self._keeper.volumes

    async def boxes(self) -> tuple[BoxRecord, ...]:
        return self._keeper.boxes()

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        return await self._keeper.events(after, limit)

    async def providers(self) -> tuple[Capabilities, ...]:
        return tuple([await self._keeper.engines.capabilities(name) for name in sorted(registry.names())])

    async def close(self) -> None:
        await self._keeper.close()


def _opened(config: Config) -> Keeper:
    logs.configure(level=config.log_level, format=config.log_format)
    return durable(config)


def durable(config: Config, *, visiting: bool = False) -> Keeper:
    """Records on disk or in PostgreSQL, so that a crash of this process loses no box."""
    store, liveness = open_store(config)
    return Keeper(config, store, liveness=liveness, visiting=visiting)
