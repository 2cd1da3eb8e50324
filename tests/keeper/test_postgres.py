"""PostgreSQL as a store: concurrency, lost answers, restarts of the server, and the configuration."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hutch.config import Config
from hutch.errors import ConfigError, Conflict, HeldElsewhere, Unavailable
from hutch.keeper.boxes.records import BoxRecord, Tombstone
from hutch.keeper.embedded import Hutch
from hutch.keeper.store.open_store import open_store
from hutch.keeper.store.postgres import PostgresStore
from hutch.keeper.takeover.prune import prune
from hutch.model.boxes import Event
from tests.keeper.faulty_keeper import crash
from tests.keeper.postgres_server import Server
from tests.keeper.sample_records import record

pytestmark = pytest.mark.slow


def event(box: BoxRecord) -> Event:
    return Event(seq=0, at=1.0, box_id=box.id, owner=box.owner, kind="state")


# --- the store ------------------------------------------------------------------------------------------------------


async def test_stores_that_start_together_make_one_schema(database: str) -> None:
    stores = [PostgresStore(database) for _ in range(6)]
    assert await asyncio.gather(*(store.all() for store in stores)) == [()] * 6
    for store in stores:
        await store.close()


async def test_two_stores_on_one_database_see_each_other(database: str) -> None:
    """The database itself does the compare-and-set, so it holds for writers on any machine (lesson 3)."""
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


async def test_boxes_of_one_name_from_an_older_release_stay_usable(database: str) -> None:
    """As on SQLite, one of the boxes keeps the name, and the others can be changed like any box."""
    boxes = [(box := record()).but(spec=box.spec.but(name=name)) for name in ("web", "web", "")]
    older = PostgresStore(database)
    for box in boxes:
        plain = box.but(spec=box.spec.but(name=""))
        await older.insert(plain, event(plain))
    await older.close()
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("ALTER TABLE hutch.boxes DROP COLUMN name, DROP COLUMN created_at")
        db.execute("ALTER TABLE hutch.chains DROP COLUMN pruned_why, DROP COLUMN pruned_limit")
        db.execute("DROP INDEX hutch.chains_by_owner")
        db.execute("ALTER TABLE hutch.tombstones DROP COLUMN name, DROP COLUMN owner")
        db.execute("ALTER TABLE hutch.keepers DROP COLUMN url")
        db.execute("UPDATE hutch.schema_version SET version = 3")
        for box in boxes:
            db.execute("UPDATE hutch.boxes SET body = %s WHERE id = %s", (box.to_json(), box.id))
    store = PostgresStore(database)
    kept = await store.all()
    assert await store.page(None, {box.id: box for box in kept}.get) == kept
    assert sorted(box.spec.name for box in kept) == ["", "", "web"]
    assert {box.id for box in kept} == {box.id for box in boxes}
    for box in kept:
        assert await store.replace(box.but(version=2), 1, None)
    twin = record().but(spec=boxes[0].spec)
    with pytest.raises(Conflict, match="called web"):
        await store.insert(twin, event(twin))
    await store.close()


async def test_a_reader_that_follows_events_misses_none(database: str) -> None:
    """Events are numbered in one order and become visible in another; a reader must not skip one."""
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
    """A second attempt recognises what the first one wrote, and what another writer wrote instead."""
    store = PostgresStore(database)
    box = record(key="k")
    moved, grave = box.but(version=2), Tombstone(id=box.id, owner=box.owner, reason="done", at=2e9)
    run = store.connections._attempt
    store.connections._attempt = lambda work, retried: (run(work, retried), run(work, True))[1]  # type: ignore[method-assign]
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
        patient, hasty = PostgresStore(url, timeout=60.0), PostgresStore(url, timeout=0.0)
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
    """The shared server, restarted afterwards for the next test."""
    yield postgres
    postgres.stop()
    postgres.start()


# --- opening --------------------------------------------------------------------------------------------------------


async def test_a_wrong_address_is_reported_at_once_and_without_the_password(tmp_path: Path) -> None:
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
    """A persistent box comes back with its files, and a keeper of its state directory takes it over at once (P16)."""
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


async def test_prune_asks_the_same_database(database: str, tmp_path: Path, short: Path) -> None:
    """Prune removes temporary boxes of dead keepers here; persistent ones and those of other places stay."""
    settings: dict[str, Any] = {"store": database, "provider": "native", "run_dir": str(short)}
    here = Hutch(**settings, state_dir=str(tmp_path / "here"))
    passing = await here.create(memory_mb=64)
    kept = await here.create(memory_mb=64, retention="persistent")
    await crash(here._keeper)
    elsewhere = Config.load(**settings, state_dir=str(tmp_path / "elsewhere"))
    assert [leftover async for leftover in prune(elsewhere) if leftover.kind == "box"] == []
    config = Config.load(**settings, state_dir=str(tmp_path / "here"))
    for dry_run in (True, False):
        found = [leftover async for leftover in prune(config, dry_run=dry_run) if leftover.kind == "box"]
        assert [(leftover.name, leftover.problem) for leftover in found] == [(passing.id, "")]
    async with Hutch(**settings, state_dir=str(tmp_path / "here")) as later:
        assert [record.id for record in later._keeper.boxes()] == [kept.id]
        await later.destroy(kept.id)


@pytest.fixture
def short() -> Iterator[Path]:
    """A run directory with a short path: the path of a socket has at most 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="h-", dir="/tmp") as name:
        yield Path(name) / "r"
