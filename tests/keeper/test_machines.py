"""Keepers on several machines share one PostgreSQL: liveness, takeover, and random histories of both."""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hutch.config import Config
from hutch.errors import HeldElsewhere, LeaseLost, Unavailable
from hutch.keeper.embedded import Hutch
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.open_store import open_store
from hutch.keeper.store.postgres import PostgresStore
from hutch.keeper.takeover import heartbeat
from hutch.keeper.takeover.heartbeat import Heartbeat
from hutch.model.spec import Spec
from tests.keeper.faulty import Engine, FaultyProvider
from tests.keeper.faulty_keeper import die
from tests.keeper.histories import ON_SEVERAL_MACHINES, OPERATIONS, History, Step
from tests.keeper.postgres_server import Server
from tests.proofs import write

pytestmark = pytest.mark.slow

PROVING = bool(os.environ.get("HUTCH_PROVE"))
SUCCEEDED: Counter[str] = Counter()


# --- liveness -------------------------------------------------------------------------------------------------------


class House:
    """Machines that share a database; each has an engine of its own, or all share one that all can reach."""

    def __init__(self, top: Path, database: str, portable: bool) -> None:
        self._top = top
        self._database = database
        self._portable = portable
        self.engines = [Engine(), Engine()]
        self.keepers: list[Keeper] = []

    async def keeper(self, machine: int) -> Keeper:
        top = self._top / str(machine)
        config = Config.load(
            environ={}, cwd=self._top, state_dir=str(top / "s"), run_dir=str(top / "r"), provider="faulty",
            store=self._database,
        )  # fmt: skip
        provider = FaultyProvider(self.engines[0 if self._portable else machine])
        provider.portable = self._portable  # type: ignore[misc]
        store, liveness = open_store(config)
        keeper = Keeper(config, store, Engines(config, {"faulty": provider}), liveness)
        await keeper.start()
        self.keepers.append(keeper)
        return keeper

    async def crash(self, keeper: Keeper) -> None:
        self.keepers.remove(keeper)
        await keeper._clocks.stop()
        await keeper.store.close()
        die(keeper.liveness)

    def grow_old(self, keeper: Keeper) -> None:
        """Age the row of this keeper, as if it had not renewed it for minutes."""
        with psycopg.connect(self._database, autocommit=True) as db:
            db.execute("UPDATE hutch.keepers SET beat_at = beat_at - interval '5 min' WHERE id = %s", (keeper.id,))

    async def close(self) -> None:
        for keeper in self.keepers:
            await keeper.close()


@pytest.fixture
def house(tmp_path: Path, database: str, request: pytest.FixtureRequest) -> House:
    return House(tmp_path, database, portable=getattr(request, "param", "local") == "portable")


portable = pytest.mark.parametrize("house", ["portable"], indirect=True)


async def test_on_one_machine_a_killed_keeper_is_dead_at_once(house: House) -> None:
    first = await house.keeper(0)
    box = (await first.create(Spec(), session="s")).record
    await house.crash(first)
    second = await house.keeper(0)
    assert [record.id for record in second.boxes()] == [box.id]
    await house.close()


async def test_boxes_of_another_machine_are_left_to_its_keepers(house: House) -> None:
    """A dead keeper's box on another machine is neither taken over nor forgotten (lesson 10)."""
    first = await house.keeper(0)
    box = (await first.create(Spec(), session="s", key="k")).record
    await house.crash(first)
    house.grow_old(first)
    elsewhere = await house.keeper(1)
    assert elsewhere.boxes() == ()
    with pytest.raises(HeldElsewhere):
        await elsewhere.live(box.id)
    back = await house.keeper(0)
    assert [record.id for record in back.boxes()] == [box.id]
    await house.close()
    assert not any(engine.boxes for engine in house.engines)


@portable
async def test_a_dead_keepers_boxes_move_to_another_machine_when_its_heartbeat_ends(house: House) -> None:
    first, second = await house.keeper(0), await house.keeper(1)
    box = (await first.create(Spec(), session="s")).record
    await house.crash(first)
    await second.adopt()
    assert second.boxes() == (), "not while the heartbeat may still come"
    house.grow_old(first)
    await second.adopt()
    assert [record.id for record in second.boxes()] == [box.id]
    await house.close()
    assert not house.engines[0].boxes


@portable
async def test_a_slow_keeper_that_was_taken_for_dead_notices_before_it_acts(house: House) -> None:
    first, second = await house.keeper(0), await house.keeper(1)
    hutch = Hutch(keeper=first)
    mine, kept = await hutch.create(), await hutch.create()
    assert isinstance(first.liveness, Heartbeat)
    first.liveness._renewed_at -= heartbeat.DEAD_AFTER_SECONDS
    for box in (mine, kept):
        with pytest.raises(Unavailable):
            await box.exec("true")
    house.grow_old(first)
    taken = await second.store.get(mine._live.record.id)
    assert taken is not None
    assert not await second.liveness.alive(first.id)
    await second.states.update(taken, keeper=second.id, epoch=taken.epoch + 1)
    await first.liveness.beat()
    with pytest.raises(LeaseLost):
        await mine.exec("true")
    assert (await kept.exec("true")).ok
    assert [record.id for record in first.boxes()] == [kept.id]
    assert await second.liveness.alive(first.id)
    await house.close()


async def test_heartbeats_go_on_by_themselves_and_the_dead_are_found(tmp_path: Path, database: str) -> None:
    """Only the database's clock decides, and a keeper searches for dead ones from time to time."""
    adopted = asyncio.Event()

    class Keeping:
        id = "k1"

        async def confirm(self) -> None:
            raise AssertionError("nothing was lost")

        async def adopt(self) -> None:
            adopted.set()

    store = PostgresStore(database)
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    one = Heartbeat(store.connections, [places[0]], dead_after=1.0)
    other = Heartbeat(store.connections, [places[1]], dead_after=30.0)
    await one.claim(Keeping())
    await asyncio.wait_for(adopted.wait(), 30)
    assert await other.alive("k1")
    assert not await other.alive("never seen")
    die(one)
    eager = Heartbeat(store.connections, [places[1]], dead_after=0.01)
    async with asyncio.timeout(30):
        while await eager.alive("k1"):
            await asyncio.sleep(0.01)
    await eager.sweep()
    with psycopg.connect(database) as db:
        assert db.execute("SELECT * FROM hutch.keepers").fetchall() == []
    await store.close()


# --- histories ------------------------------------------------------------------------------------------------------


def steps(operations: tuple[str, ...]) -> st.SearchStrategy[list[Step]]:
    step = st.tuples(st.sampled_from(operations), st.integers(0, 11), st.integers(0, 23))
    return st.lists(step, min_size=30, max_size=60)


def play(
    server: Server, history: list[Step], machines: int, weaken: Callable[[Keeper], None] | None = None
) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="hh-", dir="/tmp") as name, server.database() as url:
        played = History(Path(name), lambda: PostgresStore(url), weaken, database=url, machines=machines)
        asyncio.run(asyncio.wait_for(played.play(history), 60))
        SUCCEEDED.update(played.succeeded)
        return played.violations


# A violation is shown unshrunk: shrinking it against a real server would take minutes.
MANY = settings(
    max_examples=250 if PROVING else 6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    database=None,
)


def test_keepers_of_one_machine_hold_the_properties(postgres: Server) -> None:
    @given(steps(OPERATIONS))
    @MANY
    def histories(history: list[Step]) -> None:
        assert play(postgres, history, machines=1) == []

    histories()


def test_keepers_of_two_machines_hold_the_properties(postgres: Server) -> None:
    """The properties hold also when living keepers stall and are taken for dead."""

    @given(steps(ON_SEVERAL_MACHINES))
    @MANY
    def histories(history: list[Step]) -> None:
        assert play(postgres, history, machines=2) == []

    histories()
    assert {"stall", "beat", "crash", "again", "exec"} <= set(SUCCEEDED), SUCCEEDED


def never_lapsed(keeper: Keeper) -> None:
    keeper.check_owned = lambda live: None  # type: ignore[method-assign]


def test_without_the_lapse_a_stalled_keeper_acts_on_boxes_it_has_lost(postgres: Server) -> None:
    """This is the control: without the lapse the properties break."""
    found: list[str] = []

    @given(steps(("create", "create", "exec", "exec", "exec", "stall", "again")))
    @settings(MANY, max_examples=40)
    def search(history: list[Step]) -> None:
        if not found:
            found.extend(play(postgres, history, 2, never_lapsed))

    search()
    assert [line for line in found if "after another keeper had taken it" in line], found


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_250_histories_are_proven(postgres: Server) -> None:
    assert PROVING, "run by make prove"
    test_keepers_of_one_machine_hold_the_properties(postgres)
    test_keepers_of_two_machines_hold_the_properties(postgres)
    write("keeper-histories-postgres", histories={"one machine": 250, "two machines": 250}, violations=0)
