"""PostgreSQL: keepers on several machines share records, and know of each other by heartbeats."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hutch.config import Config
from hutch.errors import ConfigError, Conflict, HeldElsewhere, LeaseLost, Unavailable
from hutch.keeper import heartbeat
from hutch.keeper.embedded import Hutch
from hutch.keeper.engines import Engines
from hutch.keeper.heartbeat import Heartbeat
from hutch.keeper.keeper import Keeper
from hutch.keeper.opening import open_store
from hutch.keeper.postgres import PostgresStore
from hutch.keeper.records import BoxRecord, Event, Tombstone
from hutch.model.spec import Spec
from tests.keeper.faulty import Engine, FaultyProvider
from tests.keeper.histories import ON_SEVERAL_MACHINES, OPERATIONS, History, Step
from tests.keeper.house import die
from tests.keeper.making import record
from tests.keeper.postgres_server import Server

PROVING = bool(os.environ.get("HUTCH_PROVE"))
PROOF = Path(__file__).parents[2] / "proof" / "keeper-histories-postgres.json"
SUCCEEDED: Counter[str] = Counter()


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    with postgres.database() as url:
        yield url


def event(box: BoxRecord) -> Event:
    return Event(seq=0, at=1.0, box_id=box.id, owner=box.owner, kind="state")


# --- the store ------------------------------------------------------------------------------------------------------


async def test_stores_that_start_together_make_one_schema(database: str) -> None:
    stores = [PostgresStore(database) for _ in range(6)]
    assert await asyncio.gather(*(store.all() for store in stores)) == [()] * 6
    for store in stores:
        await store.close()


async def test_two_stores_on_one_database_see_each_other(database: str) -> None:
    """Lesson 3: compare-and-set is the database's, whoever writes from wherever."""
    one, two = PostgresStore(database), PostgresStore(database)
    box = record()
    await one.insert(box, event(box))
    tries = [store.replace(box.but(version=2, reason=str(n)), 1, event(box)) for n in range(20) for store in (one, two)]
    assert (await asyncio.gather(*tries)).count(True) == 1
    assert len(await two.events(0, 100)) == 2
    await one.close()
    await two.close()


async def test_a_newer_schema_is_refused(database: str) -> None:
    store = PostgresStore(database)
    await store.all()
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("UPDATE hutch.schema_version SET version = 99")
    await store.close()
    later = PostgresStore(database)
    with pytest.raises(Unavailable, match="schema 99") as caught:
        await later.all()
    assert caught.value.remedy
    assert not caught.value.retryable
    await later.close()


async def test_whoever_follows_events_misses_none(database: str) -> None:
    """Numbers are drawn in one order and appear in another: a reader must not step over one that is on its way."""
    store, reader = PostgresStore(database), PostgresStore(database)
    boxes = [record() for _ in range(8)]
    for box in boxes:
        await store.insert(box, event(box))
    seen: list[int] = []
    done = asyncio.Event()

    async def write(box: BoxRecord) -> None:
        for version in range(1, 40):
            assert await store.replace(box.but(version=version + 1), version, event(box))

    async def read() -> None:
        while True:
            last = done.is_set()
            seen.extend(happened.seq for happened in await reader.events(seen[-1] if seen else 0, 1000))
            if last:
                return

    reading = asyncio.create_task(read())
    await asyncio.gather(*(write(box) for box in boxes))
    done.set()
    await reading
    assert seen == [happened.seq for happened in await store.events(0, 10_000)]
    assert len(seen) == len(boxes) * 40
    await store.close()
    await reader.close()


async def test_an_event_on_its_way_holds_back_later_ones(database: str) -> None:
    store = PostgresStore(database)
    box = record()
    await store.insert(box, event(box))
    with psycopg.connect(database) as slow:
        slow.execute("SELECT pg_advisory_xact_lock_shared(%s)", (0x48757464,))
        slow.execute("INSERT INTO hutch.events (box_id, at, body) VALUES (%s, 1, %s)", (box.id, event(box).to_json()))
        assert await store.replace(box.but(version=2), 1, event(box)), "writers do not wait for each other"
        reading = asyncio.create_task(store.events(0, 10))
        await asyncio.wait({reading}, timeout=0.2)
        assert not reading.done()
        slow.commit()
    assert [happened.seq for happened in await reading] == [1, 2, 3]
    await store.close()


async def test_a_write_whose_answer_was_lost_is_recognised(database: str) -> None:
    """The second try finds what the first one did, and what another one did instead."""
    store = PostgresStore(database)
    box = record(key="k")
    moved, grave = box.but(version=2), Tombstone(id=box.id, owner=box.owner, reason="done", at=2e9)
    run = store.connections._once
    store.connections._once = lambda work, again: (run(work, again), run(work, True))[1]  # type: ignore[method-assign]
    await store.insert(box, event(box))
    assert await store.replace(moved, 1, event(box))
    assert not await store.replace(moved.but(reason="another"), 1, event(box))
    twin = record(key="k")
    with pytest.raises(Conflict):
        await store.insert(twin, event(twin))
    assert await store.put_note("volume", "a", b"1", new=True)
    assert not await store.put_note("volume", "a", b"2", new=True)
    assert await store.remove(grave, 2, event(box))
    assert not await store.remove(grave.but(reason="another"), 2, event(box))
    assert len(await store.events(0, 10)) == 3
    await store.close()


async def test_a_server_that_restarts_is_a_pause_and_one_that_stays_away_an_error(own_server: Server) -> None:
    with own_server.database() as url:
        patient, hasty = PostgresStore(url, patience=60.0), PostgresStore(url, patience=0.0)
        box = record()
        await patient.insert(box, event(box))
        assert await hasty.get(box.id) == box
        own_server.stop()
        with pytest.raises(Unavailable) as caught:
            await hasty.get(box.id)
        assert caught.value.retryable
        assert caught.value.remedy
        writing = asyncio.create_task(patient.replace(box.but(version=2), 1, event(box)))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(own_server.start)
        assert await writing
        found = await hasty.get(box.id)
        assert found is not None
        assert found.version == 2
        await patient.close()
        await hasty.close()


@pytest.fixture
def own_server(postgres: Server) -> Iterator[Server]:
    """The one of all tests, up again for the next."""
    yield postgres
    postgres.stop()
    postgres.start()


# --- opening --------------------------------------------------------------------------------------------------------


async def test_an_address_that_leads_nowhere_is_told_at_once_and_without_the_password(tmp_path: Path) -> None:
    hutch = Hutch(
        store=f"postgresql://me:s3cr3t@/x?host={tmp_path}", state_dir=str(tmp_path / "s"), run_dir=str(tmp_path / "r")
    )
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await hutch.create()
        assert "s3cr3t" not in str(caught.value)
    await hutch.close()


def test_an_unknown_store_is_refused_and_not_shown(tmp_path: Path) -> None:
    for address in ("mysql://me:s3cr3t@there/x", "postgresql://me:s3cr3t@there/x?nonsense=1"):
        with pytest.raises(ConfigError) as caught:
            open_store(Config.load(environ={}, cwd=tmp_path, store=address))
        assert caught.value.remedy
        assert "s3cr3t" not in str(caught.value)
        shown = Config.load(environ={}, cwd=tmp_path, store=address).show()
        assert not [line for line in shown if "s3cr3t" in str(line)]


def test_without_the_driver_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from hutch.keeper.embedded import Hutch\n"
        "try: Hutch(store='postgresql:///x')\n"
        "except Exception as error: print(type(error).__name__, error.remedy)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "ConfigError pip install 'hutch[postgres]'\n"


async def test_native_boxes_with_their_records_in_postgresql(database: str, hutch_directories: Path) -> None:
    """P16: a persistent box comes back with its files; whoever shares the state directory takes it over at once."""
    settings: dict[str, Any] = {"store": database, "provider": "native"}
    async with Hutch(**settings) as hutch:
        box = await hutch.create(retention="persistent", key="k", memory_mb=64)
        await box.files.write("notes.txt", "kept")
        assert (await box.exec("echo hi")).stdout == "hi\n"
        async with Hutch(**settings) as other:
            with pytest.raises(HeldElsewhere):
                await other.attach(box.id)
    async with Hutch(**settings) as later:
        again = await later.attach(box.id)
        assert (await again.exec("cat notes.txt")).stdout == "kept"
        await again.destroy()
        assert [happened.kind for happened in await later.events()][-1] == "gone"
    with psycopg.connect(database) as db:
        for table in ("boxes", "keepers"):
            assert db.execute(f"SELECT * FROM hutch.{table}".encode()).fetchall() == []


# --- who lives ------------------------------------------------------------------------------------------------------


class House:
    """Machines that share a database; each keeper on the engine of its machine, or all on one that all can reach."""

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
        """Minutes pass on the server in which this keeper does not renew its row."""
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
    """Lesson 10: a dead keeper's box that cannot be reached from here is neither taken nor forgotten."""
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
    first.liveness._beaten -= heartbeat.DEAD_AFTER_SECONDS
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
    """The server's clock alone decides; a keeper looks around for the dead from time to time."""
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


# A violation is shown as it was found: to make it smaller against a real server would take minutes.
MANY = settings(
    max_examples=250 if PROVING else 8,
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
    """Also when they stall, and are taken for dead while they live."""

    @given(steps(ON_SEVERAL_MACHINES))
    @MANY
    def histories(history: list[Step]) -> None:
        assert play(postgres, history, machines=2) == []

    histories()
    assert {"stall", "beat", "crash", "again", "exec"} <= set(SUCCEEDED), SUCCEEDED


def never_lapsed(keeper: Keeper) -> None:
    keeper.check_ours = lambda live: None  # type: ignore[method-assign]


def test_without_the_lapse_a_stalled_keeper_acts_on_boxes_it_has_lost(postgres: Server) -> None:
    """The control: this defence is needed."""
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
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    PROOF.parent.mkdir(exist_ok=True)
    facts = {"commit": commit, "histories": {"one machine": 250, "two machines": 250}, "root": os.geteuid() == 0}
    PROOF.write_text(json.dumps(facts, indent=2) + "\n")
