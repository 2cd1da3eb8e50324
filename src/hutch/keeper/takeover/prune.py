"""`hutch prune`: what dead keepers left behind goes, without any keeper having to start.

Temporary boxes of dead keepers are destroyed at their engine and then forgotten (lessons 1, 2). Persistent boxes and
those left on purpose (`hutch box create`) stay: whoever asks for one takes it over. Nothing of a live keeper is touched
(lesson 10).
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
from hutch.keeper.takeover import keeper_locks
from hutch.keeper.takeover.liveness import Liveness
from hutch.keeper.takeover.reconcile import at_work
from hutch.model.boxes import EventCause
from hutch.model.spec import Retention
from hutch.model.state import State
from hutch.providers.base import InstanceRecord, Leftover


async def prune(config: Config, *, dry_run: bool = False) -> AsyncIterator[Leftover]:
    """Everything of dead keepers, each told when it is done with."""
    me = "k" + secrets.token_hex(6)
    # The lock tells keepers that start meanwhile that the records we have taken are in living hands.
    homes = keeper_locks.homes(config.state_dir, config.run_dir)
    store, liveness = _opened(config)
    engines = Engines(config)
    receipts = Receipts(open_ledger(config, store), mode=config.receipts, key=open_key(config))
    pruner = _Pruner(config, homes, me, engines, liveness, receipts, dry_run=dry_run)
    try:
        if not dry_run:
            await liveness.claim(_Passing(me))
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


def _opened(config: Config) -> tuple[Store, Liveness]:
    """Records that others can see, else those on disk, if there are any: looking must not make a database."""
    if is_shared(config):
        return open_store(config.but(enabled=True))
    there = (config.state_dir / "hutch.db").exists()
    return open_store(config.but(enabled=True, store="" if there else "memory"))


class _Passing:
    """Lives only as long as the pruning, and keeps nothing."""

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
        homes: tuple[Path, ...],
        me: str,
        engines: Engines,
        liveness: Liveness,
        receipts: Receipts,
        *,
        dry_run: bool,
    ) -> None:
        self._config = config
        self._homes = homes
        self._me = me
        self._engines = engines
        self._liveness = liveness
        self._receipts = receipts
        self._dry_run = dry_run
        self._settled: set[str] = set()
        """Boxes whose record has been looked at: the engines' listing has nothing to add."""

    async def records(self, store: Store) -> AsyncIterator[Leftover]:
        for record in await store.all():
            self._settled.add(record.id)
            if record.spec.retention is Retention.PERSISTENT or record.place not in ("", self._liveness.place):
                continue
            if record.is_waiting(time.time()) or await self._liveness.alive(record.keeper):
                continue
            if await at_work(self._engines, record):
                continue
            states = States(store)
            states.witnesses.append(self._receipts.witness)
            yield await self._box(record.id, partial(self._end, record, states))

    async def instances(self) -> AsyncIterator[Leftover]:
        """Boxes that an engine shows and no record knows: those of `hutch run` and the like that were killed."""
        provider = self._engines.provider(self._config.provider)
        if provider.portable:
            return  # keepers of other stores, which we cannot ask about, may have boxes there
        for instance in await provider.list():
            if instance.data.get("store"):
                continue  # kept files are nobody's litter, even if their record is lost
            if instance.box_id not in self._settled and await self._abandoned(instance):
                yield await self._box(instance.box_id, partial(provider.destroy, instance))

    async def others(self) -> tuple[Leftover, ...]:
        """What boxes do not account for: empty control groups, networks and the like."""
        return await self._engines.provider(self._config.provider).sweep(dry_run=self._dry_run)

    async def keepers(self) -> list[Leftover]:
        """The lock files of the dead."""
        dead = [Leftover(kind="keeper", name=name) for name in self._names() if not await self._liveness.alive(name)]
        if not self._dry_run:
            await self._liveness.sweep()
        return dead

    async def _end(self, record: BoxRecord, states: States) -> None:
        reason = "pruned: its keeper died"
        record = await states.update(record, keeper=self._me, kind="adopted", reason=reason)
        if record.state is not State.STOPPING:
            record = await states.change(record, State.STOPPING, reason=reason)
        await self._engines.provider(record.instance.provider).destroy(record.instance)
        await states.forget(record, reason, EventCause.LOST)

    async def _box(self, box_id: str, end: Callable[[], Awaitable[None]]) -> Leftover:
        if self._dry_run:
            return Leftover(kind="box", name=box_id)
        try:
            await end()
        except HutchError as error:
            return Leftover(kind="box", name=box_id, problem=str(error))
        return Leftover(kind="box", name=box_id)

    async def _abandoned(self, instance: InstanceRecord) -> bool:
        """A box that names no keeper was perhaps begun this moment: it is left alone while anybody lives."""
        if instance.keeper:
            return not await self._liveness.alive(instance.keeper)
        return not any([await self._liveness.alive(keeper) for keeper in self._names()])

    def _names(self) -> list[str]:
        """Of the keepers there are lock files of, but for our own."""
        locks = [home / "keepers" for home in self._homes]
        names = {path.name for directory in locks if directory.is_dir() for path in directory.iterdir()}
        return sorted(names - {self._me})
