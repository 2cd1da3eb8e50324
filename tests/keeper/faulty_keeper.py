"""A keeper on the faulty engine, for tests that are about the keeper."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hutch.config import Config
from hutch.keeper.embedded import Hutch
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.sqlite import SqliteStore
from hutch.keeper.store.store import Store
from hutch.keeper.takeover.heartbeat import Heartbeat
from hutch.keeper.takeover.liveness import Liveness, LockLiveness
from tests.keeper.faulty import Engine, FaultyProvider


def keeper_on(engine: Engine, state: Path, *, store: Store | None = None, **settings: Any) -> Keeper:
    """One more keeper on the same machine and state directory, as another process would be."""
    config = Config.load(
        environ={}, cwd=state, state_dir=str(state / "s"), run_dir=str(state / "r"), provider="faulty", **settings
    )
    store = store or SqliteStore(state / "s" / "hutch.db")
    return Keeper(config, store, Engines(config, {"faulty": FaultyProvider(engine)}))


@asynccontextmanager
async def opened(engine: Engine, state: Path, **settings: Any) -> AsyncIterator[Hutch]:
    hutch = Hutch(keeper=keeper_on(engine, state, **settings))
    async with hutch:
        yield hutch


async def crash(keeper: Keeper) -> None:
    """What a kill -9 leaves: the lock and the store are let go, nothing is cleaned up."""
    await keeper._clocks.stop()
    await keeper.store.close()
    die(keeper.liveness)


def die(liveness: Liveness) -> None:
    """The kernel lets go of the locks; a row in a database stays as it is, and is renewed no more."""
    if isinstance(liveness, Heartbeat):
        if liveness._task is not None:
            liveness._task.cancel()
        liveness = liveness.locks
    assert isinstance(liveness, LockLiveness)
    for lock in liveness._locks:
        os.close(lock._fd)
    liveness._locks = []
