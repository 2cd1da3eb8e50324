"""`hutch prune`: removes what dead keepers have left, without starting a keeper.

Temporary boxes of dead keepers are destroyed at their engine first and forgotten after that, so that no container
outlives its record. Persistent boxes and those left on purpose (`hutch box create`) stay for those who ask for them.
Nothing of a living keeper is touched.
"""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from hutch.config import Config
from hutch.errors import HutchError
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.boxes.states import States
from hutch.keeper.engines import Engines
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.store.open_store import is_shared, open_key, open_ledger, open_store
from hutch.keeper.store.store import Store
from hutch.keeper.takeover.liveness import Liveness, lock_directories
from hutch.keeper.takeover.reconcile import has_running_job
from hutch.model.boxes import EventCause, State
from hutch.model.spec import Retention
from hutch.providers.base import InstanceRecord, Leftover


async def prune(config: Config, *, dry_run: bool = False) -> AsyncIterator[Leftover]:
    """Remove everything of dead keepers, and yield each thing after it was handled."""
    me = "k" + secrets.token_hex(6)
    # The claim shows keepers that start meanwhile that the records we take over have a living keeper.
    directories = lock_directories(config.state_dir, config.run_dir)
    store, liveness = _open_existing(config)
    engines = Engines(config)
    receipts = Receipts(open_ledger(config, store), mode=config.receipts, key=open_key(config))
    pruner = _Pruner(config, directories, me, engines, liveness, receipts, dry_run=dry_run)
    try:
        if not dry_run:
            await liveness.claim(_PruneClaimant(me))
        async for leftover in pruner.records(store):
            yield leftover
        async for leftover in pruner.instances():
            yield leftover
        for leftover in (*await pruner.others(), *await pruner.keepers()):
            yield leftover
    finally:
        await engines.close()
        await receipts.close()
        await liveness.release()
        await store.close()


def _open_existing(config: Config) -> tuple[Store, Liveness]:
    """Open the shared store, or the one on disk if it exists: pruning must not create a database."""
    if is_shared(config):
        return open_store(config.but(enabled=True))
    exists = (config.state_dir / "hutch.db").exists()
    return open_store(config.but(enabled=True, store="" if exists else "memory"))


class _PruneClaimant:
    """A keeper that lives only as long as the pruning and keeps no box."""

    def __init__(self, keeper: str) -> None:
        self.id = keeper

    async def confirm(self) -> None:
        return None

    async def adopt(self) -> None:
        return None


class _Pruner:
    def __init__(
        self,
        config: Config,
        directories: tuple[Path, ...],
        me: str,
        engines: Engines,
        liveness: Liveness,
        receipts: Receipts,
        *,
        dry_run: bool,
    ) -> None:
        self._config = config
        self._directories = directories
        self._me = me
        self._engines = engines
        self._liveness = liveness
        self._receipts = receipts
        self._dry_run = dry_run
        self._checked: set[str] = set()
        """Boxes whose record was handled, so that the engines' listing can skip them."""

    async def records(self, store: Store) -> AsyncIterator[Leftover]:
        for record in await store.all():
            self._checked.add(record.id)
            if record.spec.retention is Retention.PERSISTENT or record.place not in ("", self._liveness.place):
                continue
            if record.is_waiting(time.time()) or await self._liveness.alive(record.keeper):
                continue
            if await has_running_job(self._engines, record):
                continue
            states = States(store)
            states.witnesses.append(self._receipts.witness)
            yield await self._remove(record.id, partial(self._destroy, record, states))

    async def instances(self) -> AsyncIterator[Leftover]:
        """Remove boxes that an engine lists and no record knows, such as those of a killed `hutch run`."""
        provider = self._engines.provider(self._config.provider)
        if provider.portable:
            return  # keepers of other stores, whose liveness we cannot check, may have boxes there
        for instance in await provider.list():
            if instance.data.get("store"):
                continue  # files of a stopped persistent box stay, even if its record is lost
            if instance.box_id not in self._checked and await self._abandoned(instance):
                yield await self._remove(instance.box_id, partial(provider.destroy, instance))

    async def others(self) -> tuple[Leftover, ...]:
        """Remove what belongs to no box: empty control groups, networks and the like."""
        return await self._engines.provider(self._config.provider).sweep(dry_run=self._dry_run)

    async def keepers(self) -> list[Leftover]:
        """Remove the lock files of dead keepers."""
        dead = [
            Leftover(kind="keeper", name=name) for name in self._keeper_names() if not await self._liveness.alive(name)
        ]
        if not self._dry_run:
            await self._liveness.sweep()
        return dead

    async def _destroy(self, record: BoxRecord, states: States) -> None:
        reason = "pruned: its keeper died"
        record = await states.update(record, keeper=self._me, kind="adopted", reason=reason)
        if record.state is not State.STOPPING:
            record = await states.change(record, State.STOPPING, reason=reason)
        await self._engines.provider(record.instance.provider).destroy(record.instance)
        await states.forget(record, reason, EventCause.LOST)

    async def _remove(self, box_id: str, destroy: Callable[[], Awaitable[None]]) -> Leftover:
        if self._dry_run:
            return Leftover(kind="box", name=box_id)
        try:
            await destroy()
        except HutchError as error:
            return Leftover(kind="box", name=box_id, problem=str(error))
        return Leftover(kind="box", name=box_id)

    async def _abandoned(self, instance: InstanceRecord) -> bool:
        """Whether its keeper is dead. A box that names none may be starting, so it stays while any keeper lives."""
        if instance.keeper:
            return not await self._liveness.alive(instance.keeper)
        return not any([await self._liveness.alive(keeper) for keeper in self._keeper_names()])

    def _keeper_names(self) -> list[str]:
        """Return the names of keepers that have a lock file, except our own."""
        locks = [directory / "keepers" for directory in self._directories]
        names = {path.name for folder in locks if folder.is_dir() for path in folder.iterdir()}
        return sorted(names - {self._me})
