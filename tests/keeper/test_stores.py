"""All stores behave alike: compare-and-set, one transaction, nothing half done."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hutch.errors import Conflict, Gone, NotFound, Unavailable
from hutch.keeper.access.lookup import find
from hutch.keeper.boxes.records import BoxRecord, Tombstone
from hutch.keeper.store.postgres import PostgresStore
from hutch.keeper.store.schema import STEPS, migrate
from hutch.keeper.store.sqlite import SqliteStore
from hutch.keeper.store.store import TOMBSTONE_SECONDS, MemoryStore, Store
from hutch.model.boxes import Event, State
from hutch.model.ids import BoxId, new_box_id
from tests.keeper.postgres_server import Server
from tests.keeper.sample_records import record

Open = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    if request.param == "memory":
        yield MemoryStore
    elif request.param == "sqlite":
        yield lambda: SqliteStore(tmp_path / "hutch.db")
    else:
        server: Server = request.getfixturevalue("postgres")
        with server.database() as url:
            yield lambda: PostgresStore(url)


def event(box: BoxRecord, kind: str = "state") -> Event:
    return Event(seq=0, at=1.0, box_id=box.id, owner=box.owner, kind=kind)


async def test_a_record_comes_back_as_it_went_in(opened: Open) -> None:
    store = opened()
    box = record(labels={"a": "ü"})
    await store.insert(box, event(box, "created"))
    assert await store.get(box.id) == box
    assert await store.all() == (box,)
    assert await store.get(new_box_id()) is None
    await store.close()


async def test_what_the_caller_knows_in_the_stored_version_is_not_decoded_again(opened: Open) -> None:
    """A keeper with thousands of boxes lists them, and counts them for a quota, from its own memory."""
    store = opened()
    ours, changed, foreign = record(), record(), record()
    for box in (ours, changed, foreign):
        await store.insert(box, event(box, "created"))
    newer = changed.but(version=2, reason="changed elsewhere")
    assert await store.replace(newer, 1, event(changed))
    known = {ours.id: ours, changed.id: changed}
    found = {box.id: box for box in await store.all(known.get)}
    assert found == {ours.id: ours, changed.id: newer, foreign.id: foreign}
    if not isinstance(store, MemoryStore):
        assert found[ours.id] is ours
    await store.close()


async def test_a_page_of_the_list_is_all_that_is_read(opened: Open) -> None:
    """B13: a list is given in pages, oldest first, and one costs no more where there are more boxes."""
    store = opened()
    boxes = [record().but(created_at=1000.0 - number, owner=("me", "you")[number % 2]) for number in range(40)]
    for box in boxes:
        await store.insert(box, event(box, "created"))
    oldest = boxes[::-1]
    mine = [box for box in oldest if box.owner == "me"]
    looked_up: list[BoxId] = []
    assert await store.page("me", looked_up.append, limit=5) == tuple(mine[:5])
    assert looked_up == ([] if isinstance(store, MemoryStore) else [box.id for box in mine[:5]])
    known = {box.id: box for box in boxes}
    assert await store.page("me", known.get, after=mine[4].id, limit=5) == tuple(mine[5:10])
    assert await store.page(None, known.get) == tuple(oldest)
    assert await store.page(None, known.get, after=oldest[-1].id) == ()
    assert await store.page(None, known.get, after=new_box_id()) == ()
    claimed = mine[0].but(version=2, created_at=2000.0)  # a box of a pool begins its life when it is claimed
    assert await store.replace(claimed, 1, None)
    assert (await store.page("me", known.get))[-1] == claimed
    await store.close()


async def test_of_many_writers_of_one_version_one_wins(opened: Open) -> None:
    """Of concurrent writers of one version, one succeeds, whatever the timing (lesson 3)."""
    store = opened()
    box = record()
    await store.insert(box, event(box, "created"))
    tries = [store.replace(box.but(version=2, reason=str(n)), 1, event(box)) for n in range(50)]
    won = await asyncio.gather(*tries)
    assert won.count(True) == 1
    kept = await store.get(box.id)
    assert kept is not None
    assert kept.reason == str(won.index(True))
    assert len(await store.events(0, 100)) == 2, "a write that lost leaves no event"
    await store.close()


async def test_removal_compares_too_and_leaves_a_tombstone(opened: Open) -> None:
    store = opened()
    box = record()
    await store.insert(box, event(box, "created"))
    grave = Tombstone(id=box.id, owner=box.owner, reason="done", at=2e9)
    assert not await store.remove(grave, 7, event(box, "gone"))
    assert await store.remove(grave, 1, event(box, "gone"))
    assert await store.get(box.id) is None
    assert await store.tombstone(box.id) == grave
    assert await store.tombstone(BoxId("z" * 20)) is None
    await store.close()


async def test_a_box_that_is_gone_is_found_by_its_name_or_the_beginning_of_its_id(opened: Open) -> None:
    """A name finds the owner's latest box of that name, and never another owner's (P4)."""
    store = opened()
    graves = []
    for at, (owner, name) in enumerate((("ada", "dev"), ("ada", "dev"), ("bob", "dev"), ("ada", ""))):
        box = record()
        await store.insert(box, event(box, "created"))
        graves.append(Tombstone(id=box.id, owner=owner, name=name, reason="done", at=2e9 + at))
        assert await store.remove(graves[-1], 1, event(box, "gone"))
    assert await store.find_tombstone("ada", "dev") == graves[1]
    assert await store.find_tombstone("bob", "dev") == graves[2]
    assert await store.find_tombstone("eve", "dev") is None
    assert await store.find_tombstone("ada", graves[3].id[:12]) == graves[3]
    assert await store.find_tombstone("bob", graves[3].id[:12]) is None
    await store.close()


async def test_a_tombstone_is_kept_for_a_week(opened: Open) -> None:
    """A tombstone stays for a week; after that neither its name nor its id finds anything (P4)."""
    store = opened()
    now = time.time()
    graves = []
    for at, name in ((now - TOMBSTONE_SECONDS - 60, "old"), (now - TOMBSTONE_SECONDS + 3600, "new"), (now, "last")):
        box = record()
        await store.insert(box, event(box, "created"))
        graves.append(Tombstone(id=box.id, owner="ada", name=name, reason="done", at=at))
        assert await store.remove(graves[-1], 1, event(box, "gone"))
    old, *others = graves
    assert (await store.tombstone(old.id), await store.find_tombstone("ada", "old")) == (None, None)
    assert await store.find_tombstone("ada", old.id[:12]) is None
    for grave in others:
        assert await store.tombstone(grave.id) == await store.find_tombstone("ada", grave.name) == grave
    await store.close()


async def test_an_ended_box_is_known_to_the_next_process(tmp_path: Path) -> None:
    """The database, not a process, remembers what happened to a box (P4, lesson 2)."""
    path = tmp_path / "hutch.db"
    first = SqliteStore(path)
    box = record()
    await first.insert(box, event(box, "created"))
    grave = Tombstone(id=box.id, owner="ada", name="dev", reason="nobody used it for 2s", at=time.time())
    assert await first.remove(grave, 1, event(box, "gone"))
    await first.close()
    second = SqliteStore(path)
    for text in (box.id, box.id[:8], "dev"):
        with pytest.raises(Gone, match=rf"box {box.id} \(dev\) has been destroyed: nobody used it for 2s"):
            await find(second, text, "ada")
        with pytest.raises(NotFound, match=f"no box {text}"):
            await find(second, text, "bob")
    await second.close()


async def test_an_id_or_a_key_is_taken_once(opened: Open) -> None:
    store = opened()
    box = record(key="k")
    await store.insert(box, event(box, "created"))
    with pytest.raises(Conflict):
        await store.insert(box, event(box, "created"))
    twin = record(key="k")
    with pytest.raises(Conflict):
        await store.insert(twin, event(twin, "created"))
    found = await store.by_key(box.owner, "k")
    assert found == box
    assert await store.by_key("somebody else", "k") is None
    await store.insert(record(), event(box))
    await store.insert(record(), event(box))
    assert len(await store.all()) == 3, "boxes without a key do not exclude each other"
    await store.close()


async def test_boxes_are_found_by_name_and_by_the_beginning_of_an_id(opened: Open) -> None:
    """Both are exact: nothing in them is a pattern, and other owners' boxes are not found."""
    store = opened()
    boxes = sorted((record() for _ in range(3)), key=lambda box: box.id)
    boxes[0] = boxes[0].but(spec=boxes[0].spec.but(name="web_1"))
    for box in boxes:
        await store.insert(box, event(box, "created"))
    owner = boxes[0].owner
    assert await store.by_name(owner, "web_1") == boxes[0]
    for text in ("", "web", "web%1", "web.1", boxes[0].id):
        assert await store.by_name(owner, text) is None
    assert await store.by_name("somebody else", "web_1") is None
    assert await store.by_prefix(owner, "") == tuple(boxes)
    assert await store.by_prefix(owner, boxes[1].id[:12]) == (boxes[1],)
    for text in ("%", "_" * len(boxes[0].id), "*", boxes[1].id + "0"):
        assert await store.by_prefix(owner, text) == ()
    assert await store.by_prefix("somebody else", "") == ()
    await store.close()


async def test_a_name_is_given_once_to_the_boxes_of_an_owner(opened: Open) -> None:
    """The store decides, when it writes the record, who gets a name that several ask for (lesson 3)."""
    store = opened()

    def named(name: str) -> BoxRecord:
        return (box := record()).but(spec=box.spec.but(name=name))

    twins = [named("web") for _ in range(10)]
    tries = await asyncio.gather(*(store.insert(box, event(box)) for box in twins), return_exceptions=True)
    refused = [error for error in tries if error is not None]
    assert len(refused) == 9
    assert all(isinstance(error, Conflict) and "called web" in error.message for error in refused)
    first = twins[tries.index(None)]
    other = named("")
    await store.insert(other, event(other))
    renamed = other.but(version=2, spec=first.spec)
    for answer in (None, event(other)):
        with pytest.raises(Conflict, match="called web"):
            await store.replace(renamed, 1, answer)
    assert await store.get(other.id) == other
    assert await store.replace(first.but(version=2, reason="changed"), 1, None), "it may keep its own"
    stranger = named("web").but(owner="somebody else")
    await store.insert(stranger, event(stranger))
    await store.remove(Tombstone(id=first.id, owner=first.owner, reason="", at=1.0), 2, event(first))
    assert await store.replace(renamed, 1, None), "the name is free again"
    await store.close()


async def test_events_are_numbered_in_order(opened: Open) -> None:
    store = opened()
    box = record()
    await store.insert(box, event(box, "created"))
    for version in range(1, 6):
        assert await store.replace(box.but(version=version + 1), version, event(box))
    numbers = [happened.seq for happened in await store.events(0, 100)]
    assert numbers == sorted(set(numbers))
    assert [happened.seq for happened in await store.events(numbers[2], 2)] == numbers[3:5]
    await store.close()


async def test_an_event_of_no_box_is_one_of_the_row(opened: Open) -> None:
    store = opened()
    box = record()
    await store.insert(box, event(box, "created"))
    await store.add_event(Event(seq=0, at=1.0, box_id=BoxId(""), owner="me", kind="skill", reason="installed"))
    assert [(each.kind, each.owner) for each in await store.events(0, 10)] == [("created", box.owner), ("skill", "me")]
    await store.close()


async def test_notes(opened: Open) -> None:
    store = opened()
    assert await store.put_note("volume", "b", b"1", new=True)
    assert not await store.put_note("volume", "b", b"2", new=True)
    assert await store.put_note("volume", "a", b"3")
    assert await store.notes("volume") == {"a": b"3", "b": b"1"}
    assert await store.notes("other") == {}
    assert await store.drop_note("volume", "b")
    assert not await store.drop_note("volume", "b")
    await store.close()


async def test_what_was_answered_is_there_after_reopening(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "hutch.db")
    boxes = [record() for _ in range(20)]
    await asyncio.gather(*(store.insert(box, event(box, "created")) for box in boxes))
    await store.close()
    again = SqliteStore(tmp_path / "hutch.db")
    assert {box.id for box in await again.all()} == {box.id for box in boxes}
    await again.close()


async def test_two_stores_on_one_file_see_each_other(tmp_path: Path) -> None:
    """Compare-and-set holds between two keepers that share a state directory."""
    one, two = SqliteStore(tmp_path / "hutch.db"), SqliteStore(tmp_path / "hutch.db")
    box = record()
    await one.insert(box, event(box, "created"))
    won = await asyncio.gather(
        one.replace(box.but(version=2, state=State.RUNNING), 1, None), two.replace(box.but(version=2), 1, None)
    )
    assert sorted(won) == [False, True]
    await one.close()
    await two.close()


async def test_boxes_of_one_name_from_an_older_release_stay_usable(tmp_path: Path) -> None:
    """Of two older boxes with one name, one keeps it, and the other can be changed like any box."""
    path = tmp_path / "hutch.db"
    boxes = [(box := record()).but(spec=box.spec.but(name=name)) for name in ("web", "web", "")]
    with sqlite3.connect(path, isolation_level=None) as db:
        migrate(db, STEPS[:1])
        for box in boxes:
            row = (box.id, box.owner, box.keeper, str(box.state), box.version, box.to_json())
            db.execute("INSERT INTO boxes (id, owner, keeper, state, version, body) VALUES (?, ?, ?, ?, ?, ?)", row)
    store = SqliteStore(path)
    kept = await store.all()
    assert sorted(box.spec.name for box in kept) == ["", "", "web"]
    plain = [box.but(spec=box.spec.but(name="")) for box in boxes]
    assert [box.but(spec=box.spec.but(name="")) for box in kept] == sorted(plain, key=lambda box: box.id)
    for box in kept:
        assert await store.replace(box.but(version=2), 1, None)
    await store.close()


async def test_boxes_from_an_older_release_are_listed_by_age(tmp_path: Path) -> None:
    path = tmp_path / "hutch.db"
    boxes = [record().but(created_at=1000.25 - number) for number in range(3)]
    with sqlite3.connect(path, isolation_level=None) as db:
        migrate(db, STEPS[:3])
        for box in boxes:
            row = (box.id, box.owner, box.keeper, str(box.state), box.version, box.to_json())
            db.execute("INSERT INTO boxes (id, owner, keeper, state, version, body) VALUES (?, ?, ?, ?, ?, ?)", row)
    store = SqliteStore(path)
    known = {box.id: box for box in boxes}
    assert await store.page(None, known.get, limit=2) == (boxes[2], boxes[1])
    assert await store.page(None, known.get, after=boxes[1].id) == (boxes[0],)
    await store.close()


async def test_a_newer_schema_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "hutch.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    store = SqliteStore(path)
    with pytest.raises(Unavailable, match="schema 99") as caught:
        await store.all()
    assert caught.value.remedy
    await store.close()


async def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hutch.db"
    path.write_bytes(b"this is not a database" * 100)
    store = SqliteStore(path)
    with pytest.raises(Unavailable):
        await store.all()
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "hutch.db")
    await store.close()
    with pytest.raises(Unavailable):
        await store.all()
