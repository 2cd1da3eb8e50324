"""Two releases beside each other: a newer one may say more, an older one reads what it understands, and neither does
less than it was asked for (DESIGN §3, §5)."""

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.client.transport.requests import decode_answer
from hutch.errors import HutchError, Invalid, Unavailable
from hutch.keeper.boxes.records import SCHEMA
from hutch.keeper.boxes.states import States
from hutch.keeper.receipts.ledger_sqlite import SqliteLedger
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.store.sqlite import SqliteStore
from hutch.model.boxes import State
from hutch.model.compatibility import decode_record
from hutch.model.receipts import Receipt
from hutch.model.results import Cause, JobInfo
from tests.keeper.sample_records import record
from tests.server.serving import Server

pytestmark = pytest.mark.slow

NEWER = Path(__file__).with_name("server") / "newer_release.py"
BOX = "b" * 20


class NewerServer(Server):
    program = (str(NEWER),)


async def test_a_client_reads_the_answers_of_a_newer_server() -> None:
    """One field more in every record of every answer, and states and causes that it does not know: an older client
    does all of its work, and says of those that it does not know them."""
    server = NewerServer()
    try:
        server.start()
        assert "of_a_newer_release" in server.unix().good("GET", "/v1/status")
        async with Hutch(f"unix:{server.run}/server.sock") as hutch:
            async with hutch.box(memory_mb=64, labels={"a": "b"}) as box:
                result = await box.exec("echo 42")
                assert (result.stdout, result.verdict.cause, result.ok) == ("42\n", Cause.UNKNOWN, False)
                assert (await box.info()).state is State.UNKNOWN
                await box.files.write("a", "1")
                assert [Path(entry.path).name for entry in await box.files.list(".")] == ["a"]
                job = await box.start("cat")
                await job.close_stdin()
                assert (await job.wait()).exit_code == 0
                assert [found.id for found in await hutch.boxes()] == [box.id]
                await box.change(memory_mb=96)
                assert (await hutch.receipts.list(box.id))[0].op == "box.created"
            assert (await hutch.events())[-1].kind == "gone"
            assert (await hutch.status()).state == "ready"
            assert await hutch.providers()
    finally:
        server.close()


def test_an_answer_that_is_not_understood_says_what_to_do() -> None:
    """Enums without an unknown, and forms that have changed: an error of ours, with a remedy."""
    for data in (b'{"id": "a", "state": "asleep"}', b"[1]", b"\xff", b"no json"):
        with pytest.raises(HutchError, match="not understood") as caught:
            decode_answer(data, JobInfo, "GET job")
        assert (caught.value.op, "version" in caught.value.remedy) == ("GET job", True)


def test_a_record_of_an_unknown_state_is_refused() -> None:
    """A keeper must not take for lost what a newer one keeps."""
    with pytest.raises(Invalid, match="asleep"):
        decode_record(b'"asleep"', State)


def test_a_server_refuses_what_it_does_not_know() -> None:
    """A slip, or a wish of a newer client: silence would do less than was asked for."""
    server = Server()
    try:
        server.start()
        answer = server.unix().call("POST", "/v1/boxes", {"limits": {"of_a_newer_release": 1}})
        assert answer.status == 400 and "of_a_newer_release" in answer.json()["message"]
    finally:
        server.close()


async def test_a_store_of_a_newer_release_can_be_read_and_keeps_its_boxes(tmp_path: Path) -> None:
    """Events are read; a box's record is refused with its schema, since writing it would lose what is not known."""
    path = tmp_path / "hutch.db"
    store = SqliteStore(path)
    box = await States(store).open(record())
    await store.close()
    with sqlite3.connect(path) as db:
        _grow(db, "events")
        _grow(db, "boxes", schema=SCHEMA + 1)
    store = SqliteStore(path)
    assert [event.kind for event in await store.events(0, 10)] == ["created"]
    with pytest.raises(Unavailable, match=f"schema {SCHEMA + 1}, this release knows {SCHEMA}") as refused:
        await store.get(box.id)
    assert box.id in refused.value.message and refused.value.remedy and not refused.value.retryable
    await store.close()
    with sqlite3.connect(path) as db:
        _grow(db, "boxes", schema=SCHEMA)
    store = SqliteStore(path)
    with pytest.raises(Invalid, match="of_a_newer_release"):
        await store.get(box.id)
    await store.close()


async def test_receipts_of_a_newer_release_are_read_and_verified(tmp_path: Path) -> None:
    """The hash is of the bytes as they were written: what they say beyond this release is covered by it too."""
    path = tmp_path / "receipts.db"
    ledger = SqliteLedger(path)
    await ledger.append([Receipt(box=BOX, owner="o", at=5.0, op="exec")])
    await ledger.close()
    with sqlite3.connect(path) as db:
        _grow(db, "receipts")
        [body] = db.execute("SELECT body FROM receipts").fetchone()
        digest = hashlib.sha256(body).hexdigest()
        db.execute("UPDATE receipts SET hash = ?", (digest,))
        db.execute("UPDATE chains SET head = ?", (digest,))
    receipts = Receipts(SqliteLedger(path), mode="off")
    assert [receipt.op for receipt in await receipts.list(BOX)] == ["exec"]
    assert (await receipts.verify(BOX))[0].ok
    await receipts.close()


def _grow(db: sqlite3.Connection, table: str, **changes: object) -> None:
    """Every body has a field more."""
    for rowid, body in db.execute(f"SELECT {_KEYS[table]}, body FROM {table}").fetchall():
        grown = {**json.loads(body), **changes, "of_a_newer_release": {"deep": [1]}}
        reply = json.dumps(grown, separators=(",", ":")).encode()
        db.execute(f"UPDATE {table} SET body = ? WHERE {_KEYS[table]} = ?", (reply, rowid))


_KEYS = {"events": "seq", "boxes": "id", "receipts": "seq"}
