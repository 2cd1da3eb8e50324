"""Histories: keepers that create, use, lease, take over, expire, destroy, crash and restart, all at once.

A history is a list of steps. Each step starts a task and lets the others run for a moment, so that operations overlap
in many ways; faults and crashes strike between any two awaits of a keeper. At the end everybody stops, one last keeper
takes over, and the machine (`Engine`) must hold exactly what the records say. On the way:

- no operation that begins after a completed takeover may succeed with an older handle (stale epoch);
- no clock may end a box while an operation is in flight (pin);
- no box may be in the hands of two live keepers (double owner);
- nothing lives in the engine that no record knows (leak).

On several machines that share a PostgreSQL, each with a state directory of its own, and an engine that all can reach,
keepers also stall: others take them for dead while they live. Then no operation may begin in a keeper that has lost
the box to another.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psycopg

from hutch.config import Config
from hutch.errors import EngineError, HutchError, Unavailable
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.clocks import Clocks
from hutch.keeper.boxes.destroy import Unless
from hutch.keeper.boxes.live import Live
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.postgres import PostgresStore
from hutch.keeper.store.store import Store
from hutch.keeper.takeover.heartbeat import Heartbeat
from hutch.model.boxes import EventCause, State
from hutch.model.ids import BoxId
from hutch.model.spec import Spec
from tests.keeper.faulty import Engine, FaultyProvider
from tests.keeper.faulty_keeper import die

Step = tuple[str, int, int]
"""What, which keeper or session, which box: numbers are taken modulo what there is."""

OPERATIONS = (
    "create", "create", "create", "exec", "exec", "slow", "attach", "takeover", "release", "destroy", "idle", "age",
    "expire", "pause", "fail", "break", "crash", "restart", "again",
)  # fmt: skip
ON_SEVERAL_MACHINES = (*OPERATIONS, "stall", "stall", "beat", "again", "again")


class Crashed(BaseException):
    """What an operation of a dead keeper meets instead of the store or the engine."""


class MortalStore:
    """A store behind a keeper that may die: a dead keeper's writes do not happen, or happen and are not answered.
    `owners` learns whose each box is, as soon as it is written."""

    def __init__(self, inner: Store, life: "Life", owners: dict[str, str]) -> None:
        self._inner = inner
        self._life = life
        self._owners = owners

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._life.beat()
            result = await method(*args, **kwargs)
            if name == "replace" and result is True:
                self._owners[args[0].id] = args[0].keeper
            await self._life.beat()
            return result

        return call


class MortalProvider(FaultyProvider):
    """The engine as a keeper that may die sees it."""

    def __init__(self, engine: Engine, life: "Life") -> None:
        super().__init__(engine)
        self._life = life

    async def create(self, order: Any, planned: Any) -> Any:
        await self._life.beat()
        instance = await super().create(order, planned)
        await self._life.beat()
        return instance

    async def destroy(self, record: Any) -> None:
        await self._life.beat()
        await super().destroy(record)
        await self._life.beat()


class Life:
    """Whether a keeper lives; when it dies, every step of its work ends where it is."""

    def __init__(self) -> None:
        self.alive = True

    async def beat(self) -> None:
        if not self.alive:
            raise Crashed
        await asyncio.sleep(0)
        if not self.alive:
            raise Crashed


class History:
    """Plays one list of steps."""

    def __init__(
        self,
        directory: Path,
        store: Callable[[], Store],
        weaken: Callable[[Keeper], None] | None = None,
        *,
        database: str = "",
        machines: int = 1,
    ):
        self.engine = Engine()
        self._database = database
        """The address of the keepers' PostgreSQL; empty: another store."""
        self._machines = machines
        self._stores: list[Store] = []
        self._owners: dict[str, str] = {}
        self._hours: Counter[str] = Counter()
        """That each keeper has lost, by its own clock."""
        self._directory = directory
        self._store = store
        self._weaken = weaken
        self._lives: list[tuple[Keeper, Life]] = []
        self._handles: list[tuple[int, BoxHandle]] = []
        """(the epoch it was given, the handle), oldest first."""
        self._taken: dict[str, int] = {}
        """The epoch of the last takeover of each box that has completed."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.violations: list[str] = []
        self.succeeded: Counter[str] = Counter()

    async def play(self, steps: list[Step]) -> None:
        await self._restart(0, 0)
        await self._restart(1, 1)
        for name, who, which in steps:
            self._launch(name, getattr(self, "_" + name)(who, which))
            await self._a_moment(who % 4)
            self._check_owners()
        await self._settle()
        await self._last_keeper()
        for store in self._stores:
            await store.close()

    async def _a_moment(self, length: int) -> None:
        """From not at all to, on a real server, until everything begun has ended."""
        if not self._database:
            for _ in range(length):
                await asyncio.sleep(0)
        elif length == 3:
            await self._settle()
        elif length and self._tasks:
            await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    # --- steps ----------------------------------------------------------------------------------------------

    async def _create(self, who: int, which: int) -> None:
        keeper = self._keeper(who)
        key = f"key-{which % 3}" if which % 2 else ""
        live = await keeper.create(Spec(idle_timeout_sec=60, ttl_sec=1000), session=f"s{who % 3}", key=key)
        if live.record.lease is not None and live.record.lease.holder == f"s{who % 3}":
            self._keep(BoxHandle(keeper, live, f"s{who % 3}"))

    async def _exec(self, who: int, which: int) -> None:
        epoch, box = self._usable(which)
        stale = self._taken.get(box.id, 0) > epoch
        lost = self._owners.get(box.id, box._keeper.id) != box._keeper.id
        await box.exec("true")
        if lost:
            self.violations.append(f"an operation began in box {box.id} after another keeper had taken it")
        if stale:
            self.violations.append(f"an operation of epoch {epoch} ran after box {box.id} was taken over")

    async def _slow(self, who: int, which: int) -> None:
        """An operation that is in flight while others act."""
        _, box = self._usable(which)
        instance = await box.begin()
        self.engine.flying[id(box._live)] = self.engine.flying.get(id(box._live), 0) + 1
        try:
            for _ in range(20):
                await asyncio.sleep(0)
            await instance.check()
        finally:
            self.engine.flying[id(box._live)] -= 1
            box.end()

    async def _attach(self, who: int, which: int) -> None:
        keeper = self._keeper(who)
        live = await keeper.acquire(self._box_id(which), f"s{who % 3}")
        self._keep(BoxHandle(keeper, live, f"s{who % 3}"))

    async def _takeover(self, who: int, which: int) -> None:
        keeper = self._keeper(who)
        live = await keeper.acquire(self._box_id(which), f"s{who % 3}", takeover=True)
        self._taken[live.record.id] = max(self._taken.get(live.record.id, 0), live.record.epoch)
        self._keep(BoxHandle(keeper, live, f"s{who % 3}"))

    async def _release(self, who: int, which: int) -> None:
        await self._handle(which)[1].release()

    async def _destroy(self, who: int, which: int) -> None:
        await self._keeper(who).destroy(self._box_id(which))

    async def _idle(self, who: int, which: int) -> None:
        """The idle clock strikes at a box that nobody has touched for long."""
        keeper = self._keeper(who)
        live = await keeper.live(self._box_id(which))
        live.last_used = -1e9
        await self._strike(keeper, live, live.record.created_at + 999)

    async def _age(self, who: int, which: int) -> None:
        """A box has lived its time; what runs then has a grace."""
        keeper = self._keeper(who)
        live = await keeper.live(self._box_id(which))
        await self._strike(keeper, live, live.record.created_at + 1010)

    async def _strike(self, keeper: Keeper, live: Live, now: float) -> None:
        box_id = live.record.id
        flying = self.engine.flying.get(id(live), 0)
        destroying = keeper.teardown.destroy
        if not flying or live.record.state is not State.RUNNING:
            await keeper._clocks.check(live, now)
            return
        ended: list[str] = []

        async def watched(which: Live, reason: str, cause: EventCause, unless: Unless) -> None:
            if self.engine.flying.get(id(which), 0):  # it may have landed while the clock was waiting its turn
                ended.append(reason)
            await destroying(which, reason, cause, unless)

        clocks = Clocks(lambda: (), watched, keeper._warn, keeper.renew, 600.0)
        await clocks.check(live, now)
        if ended:
            self.violations.append(f"a clock ended box {box_id} under a running operation: {ended}")

    async def _expire(self, who: int, which: int) -> None:
        """A lease runs out."""
        keeper = self._keeper(who)
        live = await keeper.live(self._box_id(which))
        async with live.state_lock:
            lease = live.record.lease
            if lease is not None and live.record.state is State.RUNNING:
                await keeper.states.update(live.record, into=live, lease=lease.but(expires_at=1.0))

    async def _pause(self, who: int, which: int) -> None:
        keeper = self._keeper(who)
        await keeper.pauser.pause(await keeper.live(self._box_id(which)))

    async def _fail(self, who: int, which: int) -> None:
        """The engine fails once, somewhere."""
        op = ("create", "boot", "destroy", "attach", "run", "pause")[which % 6]
        left = [EngineError("injected") if which % 2 else Unavailable("injected")]

        def fault(step: str, box_id: BoxId) -> HutchError | None:
            return left.pop() if step == op and left else None

        self.engine.fault = fault

    async def _break(self, who: int, which: int) -> None:
        self.engine.broken.add(BoxId(self._box_id(which)))

    async def _crash(self, who: int, which: int) -> None:
        if len(self._lives) > 1:
            keeper, life = self._lives.pop(which % len(self._lives))
            self._die(keeper, life)
            if which % 2:
                self._grow_old(keeper)

    async def _stall(self, who: int, which: int) -> None:
        """A keeper has been out of touch for so long that it knows it, and so do the others."""
        liveness = self._keeper(who).liveness
        if isinstance(liveness, Heartbeat):
            self._hours[self._keeper(who).id] += 1
            self._grow_old(self._keeper(who))

    async def _beat(self, who: int, which: int) -> None:
        liveness = self._keeper(who).liveness
        if isinstance(liveness, Heartbeat):
            await liveness.beat()

    async def _restart(self, who: int, which: int = 0) -> None:
        if len(self._lives) >= 3:
            return
        life = Life()
        top = self._directory / str(which % self._machines)
        config = Config.load(
            environ={}, cwd=self._directory, state_dir=str(top / "s"), run_dir=str(top / "r"), provider="faulty",
            log_level="off",
        )  # fmt: skip
        provider = MortalProvider(self.engine, life)
        provider.portable = self._machines > 1  # type: ignore[misc]
        engines = Engines(config, {"faulty": provider})
        store = self._store()
        self._stores.append(store)
        homes = (config.state_dir, config.run_dir)
        liveness = None
        if isinstance(store, PostgresStore):
            liveness = Heartbeat(store.connections, homes, clock=lambda: self._now(keeper.id))
        keeper = Keeper(config, MortalStore(store, life, self._owners), engines, liveness)
        if self._weaken is not None:
            self._weaken(keeper)
        self._lives.append((keeper, life))
        await keeper.start()

    async def _again(self, who: int, which: int) -> None:
        """A keeper takes over what dead keepers left, as it does at its start."""
        await self._keeper(who).adopt()

    # --- the machine ----------------------------------------------------------------------------------------

    def _die(self, keeper: Keeper, life: Life) -> None:
        life.alive = False
        if keeper._clocks._task is not None:
            keeper._clocks._task.cancel()
        die(keeper.liveness)

    def _now(self, keeper: str) -> float:
        return time.monotonic() + 3600 * self._hours[keeper]

    def _grow_old(self, keeper: Keeper) -> None:
        if self._database:
            with psycopg.connect(self._database, autocommit=True) as db:
                db.execute("UPDATE hutch.keepers SET beat_at = beat_at - interval '1 hour' WHERE id = %s", (keeper.id,))

    def _keeper(self, who: int) -> Keeper:
        return self._lives[who % len(self._lives)][0]

    def _keep(self, box: BoxHandle) -> None:
        self._handles.append((box._epoch, box))

    def _handle(self, which: int) -> tuple[int, BoxHandle]:
        if not self._handles:
            raise Unavailable("nobody has a box yet")
        return self._handles[which % len(self._handles)]

    def _usable(self, which: int) -> tuple[int, BoxHandle]:
        """One in a process that lives."""
        epoch, box = self._handle(which)
        if all(box._keeper is not keeper for keeper, _ in self._lives):
            raise Crashed
        return epoch, box

    def _box_id(self, which: int) -> str:
        return self._handle(which)[1].id

    def _launch(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(name, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self.succeeded[name] += 1
        except (HutchError, Crashed):
            return
        except Exception as error:  # the boundary of a step: anything but a typed error is a finding
            self.violations.append(f"{name} raised {error!r}")

    async def _settle(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _check_owners(self) -> None:
        """A box is in the hands of one live keeper at most."""
        held: dict[str, str] = {}
        for keeper, _ in self._lives:
            for record in () if keeper.liveness.lapsed() else keeper.boxes():
                if record.keeper != keeper.id:
                    continue
                if record.id in held:
                    self.violations.append(f"box {record.id} is held by {held[record.id]} and {keeper.id}")
                held[record.id] = keeper.id

    async def _last_keeper(self) -> None:
        """All keepers die; the next one must be able to bring records and machine to agree."""
        for keeper, life in self._lives:
            self._die(keeper, life)
        self._lives.clear()
        if self._database:
            with psycopg.connect(self._database, autocommit=True) as db:
                db.execute("UPDATE hutch.keepers SET beat_at = beat_at - interval '1 hour'")
        self.engine.fault = lambda op, box_id: None
        await self._restart(0)
        (keeper, _) = self._lives[0]
        records = {record.id: record for record in await keeper.store.all()}
        known = {box_id for box_id, record in records.items() if record.state is not State.STOPPED}
        leaked = set(self.engine.boxes) - known
        if leaked:
            self.violations.append(f"boxes that no record knows: {sorted(leaked)}")
        lost = {box_id for box_id in known if box_id not in self.engine.boxes}
        if lost:
            self.violations.append(f"records of boxes that are not there: {sorted(lost)}")
        foreign = [record.id for record in records.values() if record.keeper != keeper.id]
        if foreign:
            self.violations.append(f"boxes that the last keeper did not take: {foreign}")
        keys = [record.idempotency_key for record in records.values() if record.idempotency_key]
        if len(keys) != len(set(keys)):
            self.violations.append("two boxes of one key")
        await keeper.close()
        if self.engine.boxes or self.engine.stopped:
            self.violations.append(f"left after close: {sorted(self.engine.boxes)}")
