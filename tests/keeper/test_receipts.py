"""Receipts of real boxes: what each operation records, what is never recorded, and what a restart records."""

import asyncio
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import BoxBusy, HutchError, Invalid, LeaseLost, NotFound, Refused
from hutch.keeper.access.callers import called_by
from hutch.keeper.embedded import Hutch
from hutch.keeper.receipts import losses
from hutch.keeper.receipts.ledger_sqlite import SqliteLedger
from hutch.keeper.takeover.prune import prune
from hutch.model.receipts import Receipt, Who
from hutch.policy.rights import UNBOUND
from tests.keeper.killed_keepers import House, house

pytestmark = pytest.mark.slow

HOLDER = Path(__file__).with_name("crash_holder.py")
SMALL: dict[str, Any] = {"memory_mb": 64, "disk_mb": 16}
SECRET = "correct-horse-battery"


async def ops(hutch: Hutch, box_id: str) -> list[str]:
    return [receipt.op for receipt in await hutch.receipts.list(box_id)]


async def the_last(hutch: Hutch, box_id: str) -> Receipt:
    return (await hutch.receipts.list(box_id))[-1]


async def test_the_life_of_a_box_is_on_record() -> None:
    """Each operation leaves one receipt with caller, policy digest, verdict, usage and changed files, in order.

    The receipts outlive the box.
    """
    with house() as place:
        async with place.opened() as hutch:
            box = await hutch.create(**SMALL)
            result = await box.exec("exit 3", cwd="/tmp", timeout=20)
            failed = await the_last(hutch, box.id)
            assert (failed.op, failed.cause, failed.exit_code, failed.error) == ("exec", "exit", 3, "")
            assert failed.details == {"command": "exit 3", "cwd": "/tmp", "timeout_sec": 20}
            assert failed.usage == result.usage
            assert failed.who == Who(session=hutch.session, role="local")
            assert failed.policy == hashlib.sha256(box.spec.shown().to_json()).hexdigest()
            assert failed.changed is None and failed.hosts is None, "what is not known is not told"
            assert failed.duration_ms >= result.usage.wall_sec * 1000 * 0.9

            stream = box.stream(["echo", "two words"])
            assert [piece async for piece in stream] == [("stdout", b"two words\n")]
            assert (await the_last(hutch, box.id)).details["command"] == "echo 'two words'"
            await box.files.write("a", "12345")
            await box.files.edit("a", "12345", "678")
            await box.files.move("a", "b")
            moved = await the_last(hutch, box.id)
            assert (moved.op, moved.changed) == ("files.move", ("a", "b"))
            with pytest.raises(FileNotFoundError):
                await box.files.read("a")
            missing = await the_last(hutch, box.id)
            assert (missing.error, missing.changed) == ("file_not_found", None)
            job = await box.start("cat")
            await job.write("one\n")
            await job.write("two\n")
            await job.signal(9)
            await job.wait()
            await box.forget(job.id)
            await box.pause()
            await box.exec("true")
            await box.change(memory_mb=96)
            assert (await the_last(hutch, box.id)).policy != failed.policy, "another policy, another digest"
            await hutch.receipts.note(box.id, "tool.denied", {"tool": "exec", "why": "policy"})
            await box.destroy()
            assert await ops(hutch, box.id) == [
                "box.created", "box.running", "exec", "exec", "files.write", "files.edit", "files.move", "files.read",
                "job.start", "job.write", "job.signal", "job.ended", "job.forget", "box.paused", "box.resumed", "exec",
                "box.changed", "tool.denied", "box.stopping", "box.gone",
            ]  # fmt: skip
            [check] = await hutch.receipts.verify(box.id)
            assert check.ok and check.count == 20
            [chain] = await hutch.receipts.chains()
            assert chain.ended_at > 0


async def test_no_content_no_environment_and_no_secret_is_on_record() -> None:
    """No receipt holds file contents, values of env, input, or secrets, also not those that a command spells out."""
    with house() as place:
        async with place.opened() as hutch:
            box = await hutch.create(**SMALL, secrets={"KEY": SECRET}, env={"PLAIN": "value-of-env"})
            await box.exec(f"true {SECRET}", env={"MORE": "value-of-more"}, stdin="value-of-stdin")
            await box.exec("true API_TOKEN=spelled-out; true --password 'spelled-out'")
            await box.exec(["true", "-H", "Authorization: Bearer spelled-out"])
            await box.exec("true " + "x" * 1990 + SECRET)
            await box.files.write(f"{SECRET}.txt", "value-of-content")
            await box.files.edit(f"{SECRET}.txt", "value-of-content", "value-of-new")
            with pytest.raises(HutchError):
                await box.files.read(f"no-{SECRET}")
            await hutch.receipts.note(box.id, "note.said", {"text": f"it is {SECRET}"})
            await box.destroy()
            text = b"".join([piece async for piece in hutch.receipts.export(box.id)]).decode()
            stored = (place.state / "receipts.db").read_bytes() + (place.state / "receipts.db-wal").read_bytes()
    for hidden in (SECRET, SECRET[:12], "value-of-", "spelled-out"):
        assert hidden not in text
        assert hidden.encode() not in stored
    assert '"env":["MORE"]' in text and '"stdin_bytes":14' in text, "names and sizes are"
    assert all(len(line) < 6000 for line in text.splitlines())


async def test_observers_and_refused_callers_are_on_record() -> None:
    """Reads of observers and attempts of a session that had lost the box are recorded (P8)."""
    with house() as place:
        async with place.opened() as hutch:
            box = await hutch.create(**SMALL)
            await box.files.write("a", "1")
            observed = await hutch.observe(box.id)
            with called_by(Who(session="watcher", role="observer", key="k1", request="r1"), UNBOUND):
                assert await observed.files.read("a") == b"1"
            seen = await the_last(hutch, box.id)
            assert (seen.op, seen.who.role, seen.who.key, seen.who.session) == (
                "files.read",
                "observer",
                "k1",
                "watcher",
            )
            with pytest.raises(Refused):
                await observed.exec("true")
            other = hutch.for_session("other")
            with pytest.raises(BoxBusy):
                await other.attach(box.id)
            await other.attach(box.id, takeover=True)
            taken = await the_last(hutch, box.id)
            assert (taken.op, taken.details) == ("box.lease", {"reason": "taken over by other"})
            with pytest.raises(LeaseLost):
                await box.exec("true")
            refused = await the_last(hutch, box.id)
            assert (refused.op, refused.error, refused.who.session) == ("exec", "lease_lost", hutch.session)
            await hutch.destroy(box.id, force=True)


async def test_a_caller_who_leaves_has_a_receipt() -> None:
    with house() as place:
        async with place.opened() as hutch, hutch.box(**SMALL) as box:
            running = asyncio.create_task(box.exec("echo; sleep 1000"))
            await asyncio.sleep(0)
            while not any(job.command for job in await box.jobs()):
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await the_last(hutch, box.id)).error == "cancelled"


async def test_a_killed_keeper_leaves_a_gap_that_the_next_one_records() -> None:
    """A restart records a gap with the times between which operations may be missing."""
    with house() as place:
        holder = place.resident(HOLDER, "120")
        box_id = holder.ask("make " + json.dumps(SMALL))
        assert holder.ask(f"exec {box_id} echo told") == "told"
        await _written(place, box_id, 3)
        holder.kill()
        async with place.opened() as hutch:
            last = await the_last(hutch, box_id)
            before = (await hutch.receipts.list(box_id))[-2]
            assert (last.op, last.who.role) == ("gap", "keeper")
            assert before.at <= last.details["from"] < last.details["to"]  # type: ignore[operator]
            assert last.details["before"] == place.keepers[0]
            assert (await hutch.receipts.verify(box_id))[0].ok
            await hutch.destroy(box_id)


async def test_a_keeper_that_went_on_purpose_leaves_no_gap() -> None:
    """A box that was left, or stopped at close, is handed over without a gap."""
    with house() as place:
        async with place.opened() as hutch:
            box = await hutch.create(**SMALL, retention="persistent")
        async with place.opened() as hutch:
            again = await hutch.attach(box.id)
            await again.exec("true")
            answer = await ops(hutch, box.id)
            assert "gap" not in answer
            assert answer[answer.index("box.left") + 1] == "box.handed_over"
            await again.destroy()
        assert (await _verified(place)) == [True]


async def test_pruning_dead_keepers_boxes_is_on_record() -> None:
    with house() as place:
        holder = place.resident(HOLDER, "120")
        box_id = holder.ask("make " + json.dumps(SMALL))
        await _written(place, box_id, 2)
        holder.kill()
        assert box_id in [leftover.name async for leftover in prune(place.config())]
        ledger = SqliteLedger(place.state / "receipts.db")
        answer = [json.loads(row.body)["op"] for row in await ledger.rows(box_id, 0, 100)]
        await ledger.close()
        assert answer == ["box.created", "box.running", "gap", "box.stopping", "box.gone"]


async def test_a_pooled_box_has_its_chain_from_its_first_owner_on() -> None:
    with house() as place:
        async with Hutch(**place.settings(), pool={"default": 1}) as hutch:
            while not hutch._keeper.pool.waiting()["default"]:
                await asyncio.sleep(0.01)
            box = await hutch.create()
            assert await ops(hutch, box.id) == ["box.claimed"]
            await box.destroy()
            place.keepers.append(hutch._keeper.id)


async def test_strict_answers_are_on_record_before_they_are_given() -> None:
    """With `strict`, the end of an operation, of a stream and each change of a box waits for its receipt."""
    with house() as place:
        async with Hutch(**place.settings(), receipts="strict") as hutch:
            place.keepers.append(hutch._keeper.id)
            ledger = SqliteLedger(place.state / "receipts.db")

            async def last() -> str:
                chain = await ledger.chain(box.id)
                return chain.last_op if chain is not None else ""

            box = await hutch.create(**SMALL)
            assert await last() == "box.running"
            await box.exec("true")
            assert await last() == "exec"
            async for _ in box.stream("echo 1"):
                assert await last() == "exec", "that of the command before"
            count = (await hutch.receipts.list(box.id))[-1].seq
            chain = await ledger.chain(box.id)
            assert chain is not None and chain.count == count == 4
            await box.pause()
            assert await last() == "box.paused"
            await box.destroy()
            assert await last() == "box.gone"
            await ledger.close()


async def test_without_receipts_nothing_is_written() -> None:
    with house() as place:
        async with Hutch(**place.settings(), receipts="off") as hutch:
            place.keepers.append(hutch._keeper.id)
            async with hutch.box(**SMALL) as box:
                await box.exec("true")
            assert await hutch.receipts.chains() == ()
            with pytest.raises(NotFound):
                await hutch.receipts.list(box.id)
            await hutch.receipts.note(
                box.id, "note.x"
            )  # switched-off receipts are no error for a caller who adds a note
            await hutch.receipts.note("", "note.x")
            assert await hutch.receipts.chains() == ()


async def test_a_disk_that_cannot_hold_receipts_degrades_and_recovers() -> None:
    """Status shows that receipts cannot be written, and none is lost once the disk is back (lesson 11)."""
    with house() as place:
        async with place.opened() as hutch, hutch.box(**SMALL) as box:
            await hutch.receipts.verify()
            ledger = place.state / "receipts.db"
            with sqlite3.connect(ledger) as db:
                db.execute("ALTER TABLE receipts RENAME TO away")
            await box.exec("true")
            while (await hutch.status()).state != "degraded":
                await asyncio.sleep(0.01)
            assert "receipts" in (await hutch.status()).reason
            with sqlite3.connect(ledger) as db:
                db.execute("ALTER TABLE away RENAME TO receipts")
            assert (await the_last(hutch, box.id)).op == "exec"
            assert (await hutch.status()).state == "ready"


async def test_what_a_keeper_could_not_write_before_its_end_is_reported_as_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing ends in time, an event names each box that lost receipts, and the next keeper records the gaps.

    That holds for a box that lives on and for one that was destroyed meanwhile.
    """
    monkeypatch.setattr(losses, "RECHECK_SECONDS", 0.1)
    with house() as place:
        ledger = place.state / "receipts.db"
        async with place.opened() as hutch:
            kept = await hutch.create(**SMALL, retention="persistent")
            gone = await hutch.create(**SMALL)
            await hutch.receipts.verify()
            with sqlite3.connect(ledger) as db:
                db.execute("ALTER TABLE receipts RENAME TO away")
            await kept.exec("true")
            await gone.destroy()
        with sqlite3.connect(ledger) as db:
            db.execute("ALTER TABLE away RENAME TO receipts")
        async with place.opened() as hutch:
            warned = {event.box_id: event.reason for event in await hutch.events() if event.kind == "warning"}
            assert set(warned) == {kept.id, gone.id} and all("could not be written" in text for text in warned.values())
            again = await hutch.attach(kept.id)
            assert "gap" in await ops(hutch, kept.id)
            while "box.gone" not in (answer := await ops(hutch, gone.id)):
                await asyncio.sleep(0.1)
            assert answer[-2:] == ["gap", "box.gone"]
            assert all(check.ok for check in await hutch.receipts.verify())
            await again.destroy()


async def test_a_note_cannot_look_like_a_word_of_the_keepers() -> None:
    with house() as place:
        async with place.opened() as hutch, hutch.box(**SMALL) as box:
            for op in ("exec", "box.gone", "gap", "tool", "tool.", "tool.A", "tool.x\n", "note." + "x" * 61):
                with pytest.raises(Invalid):
                    await hutch.receipts.note(box.id, op)
            with pytest.raises(Invalid):
                await hutch.receipts.note(box.id, "note.long", {f"n{n}": n for n in range(33)})
            with pytest.raises(Invalid):
                await hutch.receipts.note(box.id, "note.long", {"x" * 20_000: 1})
            with pytest.raises(NotFound):
                await hutch.receipts.note("z" * 20, "note.x")
            await hutch.receipts.note(
                box.id, "note.odd", {"number": 1 << 200, "text": "\udc80\x00\u202e", "none": None}
            )
            await box.exec(["echo", "\udcff"])
            assert (await hutch.receipts.verify(box.id))[0].ok
            assert (await the_last(hutch, box.id)).details["command"] == "echo '\\udcff'"


async def _written(place: House, box_id: str, count: int) -> None:
    """Wait until another process has written that many."""
    ledger = SqliteLedger(place.state / "receipts.db")
    while (chain := await ledger.chain(box_id)) is None or chain.count < count:
        await asyncio.sleep(0.01)
    await ledger.close()


async def _verified(place: House) -> list[bool]:
    async with place.opened() as hutch:
        return [check.ok for check in await hutch.receipts.verify()]
