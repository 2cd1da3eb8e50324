"""Sealed environments and the state directory's key: what can be opened, and what a store's bytes reveal."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.errors import Invalid, Unavailable
from hutch.keeper.store.postgres import PostgresStore
from hutch.keeper.store.seal import Seal
from hutch.keeper.store.sqlite import SqliteStore
from hutch.keeper.store.state_key import StateKey
from hutch.keeper.store.store import Store
from hutch.model.boxes import Event
from tests.keeper.postgres_server import Server
from tests.keeper.sample_records import record, spec

VALUE = "orchard-west-71"


@given(st.dictionaries(st.text(), st.text()))
def test_what_was_sealed_opens(env: dict[str, str]) -> None:
    seal = Seal(StateKey())
    assert seal.open("box", seal.seal("box", env)) == env


def test_bytes_that_are_no_text_are_kept() -> None:
    """The value of an environment variable need not be UTF-8."""
    seal = Seal(StateKey())
    assert seal.open("box", seal.seal("box", {"A": "\udcff"})) == {"A": "\udcff"}


def test_no_changed_byte_other_box_or_other_key_opens() -> None:
    seal = Seal(StateKey())
    sealed = seal.seal("box", {"A": VALUE})
    raw = base64.b64decode(sealed[2:])
    changed = [bytes([*raw[:at], raw[at] ^ 1, *raw[at + 1 :]]) for at in range(len(raw))]
    forms = ["1." + base64.b64encode(each).decode() for each in (*changed, raw[:-1], raw[:20], b"")]
    for form in (*forms, sealed[:-1], "2." + sealed[2:], "1.ä", "", VALUE):
        with pytest.raises(Invalid, match="cannot be opened"):
            seal.open("box", form)
    for other, box in ((seal, "another"), (Seal(StateKey()), "box")):
        with pytest.raises(Invalid, match="another key, or changed"):
            other.open(box, sealed)


def test_the_same_has_one_form_and_shows_nothing() -> None:
    """A store compares sealed bytes to recognise its last write, and equal values of two boxes look different."""
    seal = Seal(StateKey())
    assert seal.seal("box", {"A": VALUE}) == seal.seal("box", {"A": VALUE})
    assert seal.seal("box", {"A": VALUE}) != seal.seal("another", {"A": VALUE})
    assert VALUE.encode() not in base64.b64decode(seal.seal("box", {"A": VALUE})[2:])


def test_a_key_is_made_once_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "state.key"
    first, second = StateKey(path), StateKey(path)
    assert first.id == second.id != StateKey(tmp_path / "other.key").id
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other.key", "state.key"]
    path.chmod(0o644)
    assert StateKey(path).id == first.id and path.stat().st_mode & 0o777 == 0o600
    path.write_text("no key\n")
    with pytest.raises(Unavailable, match="no key of a state directory"):
        _ = StateKey(path).id
    with pytest.raises(Unavailable, match="cannot be read or made"):
        _ = StateKey(tmp_path / "no" / "state.key").id


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    seal = Seal(StateKey())
    if request.param == "sqlite":
        yield SqliteStore(tmp_path / "hutch.db", seal)
    else:
        server: Server = request.getfixturevalue("postgres")
        with server.database() as url:
            yield PostgresStore(url, seal)


async def test_a_store_seals_what_it_writes_and_opens_what_it_reads(store: Store) -> None:
    box = record(key="k").but(spec=spec(env={"REGION": VALUE}))
    await store.insert(box, Event(seq=0, at=1.0, box_id=box.id, owner=box.owner, kind="created"))
    assert await store.get(box.id) == await store.by_key(box.owner, "k") == box
    assert await store.replace(box.but(version=2), 1, None)
    assert await store.all() == (box.but(version=2),)
    if isinstance(store, PostgresStore):
        rows = await store.connections.run(lambda db, _: db.execute("SELECT body FROM hutch.boxes").fetchall())
        bodies = [bytes(body) for (body,) in rows]  # type: ignore[call-overload]
    else:
        assert isinstance(store, SqliteStore)
        bodies = [body for (body,) in await store._do(lambda db: db.execute("SELECT body FROM boxes").fetchall())]
    assert len(bodies) == 1 and VALUE.encode() not in bodies[0] and b"sealed_env" in bodies[0]
    await store.close()
