"""Histories with real boxes: the same steps as `histories`, the native engine in the place of the fake one.

A keeper dies here as a process would: its connections to spawners and guests break, its locks are free, and nothing
that it had begun is cleaned up by itself. What fails are real parts: a spawner or a guest is killed.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from hutch.config import Config
from hutch.errors import Unavailable
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.sqlite import SqliteStore
from hutch.linux import processes
from hutch.model.capabilities import Capabilities
from hutch.model.ids import BoxId
from hutch.model.spec import EffectiveSpec, Order
from hutch.providers.base import InstanceRecord
from hutch.providers.native import cleanup
from hutch.providers.native.instance import NativeInstance
from hutch.providers.native.provider import NativeProvider
from hutch.providers.native.spawn.client import SpawnerPool
from tests.keeper.faulty import Engine
from tests.keeper.histories import Crashed, History, Life, MortalStore, Step
from tests.leaks import descendants
from tests.providers.native.boxes import until


class Machine(Engine):
    """The directories of the boxes, as the fake engine's table."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self.fault = lambda op, box_id: None
        self.flying = {}

    @property
    def boxes(self) -> dict[BoxId, InstanceRecord]:  # type: ignore[override]
        return {record.box_id: record for record in cleanup.records(f"{self._top}/r", f"{self._top}/s/boxes")}

    @property
    def stopped(self) -> dict[BoxId, InstanceRecord]:  # type: ignore[override]
        return {}


class MortalNative(NativeProvider):
    """The native engine in the hands of a keeper that may die."""

    def __init__(self, top: Path, life: Life) -> None:
        super().__init__(state_dir=top / "s", run_dir=top / "r")
        self._life = life
        self._made: list[NativeInstance] = []

    async def create(self, order: Order, planned: InstanceRecord) -> NativeInstance:
        await self._life.beat()
        instance = await super().create(order, planned)
        await self._life.beat()
        return instance

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> NativeInstance:
        await self._life.beat()
        instance = await super().attach(record, spec)
        await self._life.beat()
        return instance

    async def _discard(self, record: InstanceRecord, *, keep_store: bool) -> None:
        await self._life.beat()
        await super()._discard(record, keep_store=keep_store)
        await self._life.beat()

    def _spawners_of(self, keeper: str, network: tuple[str, ...] | None = None) -> SpawnerPool:
        if not self._life.alive:
            raise Crashed  # the dead start no process
        return super()._spawners_of(keeper, network)

    def _instance(self, record: InstanceRecord, spec: EffectiveSpec, *, fresh: bool = False) -> NativeInstance:
        instance = super()._instance(record, spec, fresh=fresh)
        self._made.append(instance)
        return instance

    def spawners(self) -> list[int]:
        each = (spawner._process for spawners in self._spawners.values() for spawner in spawners._spawners)
        return [process.pid for process in each if process is not None]

    def die(self) -> None:
        """What the kernel does for a process that is killed: every descriptor is closed."""
        for spawners in self._spawners.values():
            for spawner in spawners._spawners:
                spawner._handle_end()
        for instance in self._made:
            for link in instance._links.values():
                link.close()
        for tree in self._trees.values():
            while tree._held:
                os.close(tree._held.pop())

    async def bury(self) -> None:
        await self._watchdogs.close()


class NativeHistory(History):
    """Plays one list of steps with real boxes in `directory`, which has room for the two directories of Hutch."""

    def __init__(self, directory: Path, capabilities: Capabilities) -> None:
        super().__init__(directory, lambda: SqliteStore(directory / "s" / "hutch.db"))
        self.engine = Machine(directory)
        self.keepers: list[str] = []
        self._capabilities = capabilities
        self._providers: dict[str, MortalNative] = {}

    async def play(self, steps: list[Step]) -> None:
        await super().play(steps)
        for provider in self._providers.values():
            await provider.bury()

    async def _a_moment(self, length: int) -> None:
        """Boxes take their time: from not at all until everything begun has ended."""
        if length == 3:
            await self._settle()
        elif length and self._tasks:
            await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def _restart(self, who: int, which: int = 0) -> None:
        if len(self._lives) >= 3:
            return
        life = Life()
        config = Config.load(
            environ={}, cwd=self._directory, state_dir=str(self._directory / "s"), run_dir=str(self._directory / "r"),
            provider="native", log_level="off", orphan_grace_sec=120,
        )  # fmt: skip
        provider = MortalNative(self._directory, life)
        engines = Engines(config, {"native": provider})
        engines._capabilities["native"] = self._capabilities  # probed once: a canary for each keeper takes long
        store = self._store()
        self._stores.append(store)
        keeper = Keeper(config, MortalStore(store, life, self._owners), engines)
        self.keepers.append(keeper.id)
        self._providers[keeper.id] = provider
        self._lives.append((keeper, life))
        await keeper.start()

    def _die(self, keeper: Keeper, life: Life) -> None:
        super()._die(keeper, life)
        self._providers[keeper.id].die()

    async def _last_keeper(self) -> None:
        for keeper, life in self._lives:
            self._die(keeper, life)
        self._lives.clear()
        # What a spawner leaves is swept when it is dead, and a killed one takes a moment to die.
        await until(lambda: not any(map(_spawns, descendants(os.getpid()))), "the spawners of the dead have gone")
        await super()._last_keeper()

    async def _fail(self, who: int, which: int) -> None:
        """A spawner is killed."""
        pids = self._providers[self._keeper(who).id].spawners()
        if not pids:
            raise Unavailable("no spawner yet")
        with suppress(ProcessLookupError):  # it has died already
            os.kill(pids[which % len(pids)], signal.SIGKILL)

    async def _break(self, who: int, which: int) -> None:
        """A guest is killed."""
        record: Any = self.engine.boxes.get(BoxId(self._box_id(which)))
        process = cleanup.process_of(record) if record is not None else None
        pidfd = process.open() if process is not None else None
        if pidfd is None:
            raise Unavailable("it is gone already")
        processes.kill(pidfd)
        os.close(pidfd)


def _spawns(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"hutch-spawner")
    except (FileNotFoundError, ProcessLookupError):
        return False
