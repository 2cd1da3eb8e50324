"""All ledgers behave alike, and the queue before them loses nothing, whatever the ledger does."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from hutch.errors import NotFound, Unavailable
from hutch.keeper.receipts import queue as receipt_queue
from hutch.keeper.receipts.chain import owner_log
from hutch.keeper.receipts.ledger import PRUNE_BATCH, Ledger, MemoryLedger
from hutch.keeper.receipts.ledger_postgres import PostgresLedger
from hutch.keeper.receipts.ledger_sqlite import SqliteLedger
from hutch.keeper.receipts.operations import Operations
from hutch.keeper.receipts.queue import ReceiptQueue
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.store.postgres_connections import Connection, Connections
from hutch.model.receipts import GONE, Receipt
from tests.keeper.postgres_server import Server

pytestmark = pytest.mark.slow

T = TypeVar("T")
Open = Callable[[], Ledger]
FULL_DISK = Path(__file__).with_name("full_disk.py")


class Held(PostgresLedger):
    """Closes the connections that it was given."""

    async def close(self) -> None:
        await self._connections.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    if request.param == "memory":
        yield MemoryLedger
    elif request.param == "sqlite":
        yield lambda: SqliteLedger(tmp_path / "receipts.db")
    else:
        server: Server = request.getfixturevalue("postgres")
        with server.database() as url:
            yield lambda: Held(Connections(url))


def box(number: int) -> str:
    return f"{number:020d}"


def draft(number: int = 1, op: str = "exec", *, at: float = 5.0, owner: str = "o") -> Receipt:
    return Receipt(box=box(number), owner=owner, at=at, op=op, details={"command": "true"})


async def test_receipts_come_back_in_order_and_in_pages(opened: Open) -> None:
    ledger = opened()
    await ledger.append([draft(n % 3, at=float(n)) for n in range(30)])
    await ledger.append([draft(1, at=99.0, owner="somebody else")])
    chain = await ledger.chain(box(1))
    assert chain is not None
    assert (chain.count, chain.owner, chain.last_at, chain.last_op, chain.ended_at) == (11, "o", 99.0, "exec", 0)
    first = await ledger.rows(box(1), 0, 4)
    rest = await ledger.rows(box(1), first[-1].seq, 100)
    assert [row.seq for row in (*first, *rest)] == list(range(1, 12))
    assert rest[-1].hash == chain.head
    assert await ledger.chain(box(7)) is None and await ledger.rows(box(7), 0, 9) == []
    await ledger.close()


async def test_chains_are_listed_by_box_and_owner(opened: Open) -> None:
    ledger = opened()
    await ledger.append([draft(n, owner="even" if n % 2 == 0 else "odd") for n in range(7)])
    assert [chain.box for chain in await ledger.chains(None, "", 3)] == [box(0), box(1), box(2)]
    assert [chain.box for chain in await ledger.chains(None, box(4), 99)] == [box(5), box(6)]
    assert [chain.box for chain in await ledger.chains("odd", "", 99)] == [box(1), box(3), box(5)]
    await ledger.close()


async def test_whole_chains_of_destroyed_boxes_are_pruned_and_verify_accepts_it(opened: Open) -> None:
    """Retention does not count as tampering, and a live box keeps all its receipts."""
    ledger = opened()
    now = time.time()
    old, older, fresh = now - 40 * 86400, now - 50 * 86400, now - 86400
    for number, at, last in ((1, old, GONE), (2, older, GONE), (3, fresh, GONE), (4, older, "exec")):
        await ledger.append([draft(number, at=at), draft(number, last, at=at)])
    receipts = Receipts(ledger, mode="off", days=30)
    assert await receipts.prune() == 2
    checks = {check.box: check for check in await receipts.verify()}
    assert all(check.ok for check in checks.values())
    assert [bool(checks[box(n)].pruned_at) for n in (1, 2, 3, 4)] == [True, True, False, False]
    assert await ledger.rows(box(1), 0, 9) == [] and len(await ledger.rows(box(4), 0, 9)) == 2
    assert await receipts.prune() == 0
    crowded = Receipts(ledger, mode="off", days=30, most=3)
    assert await crowded.prune() == 1, "too many: the one that went first goes first, but never a live one"
    assert len(await ledger.rows(box(4), 0, 9)) == 2
    await receipts.close()


@pytest.mark.parametrize("opened", ["sqlite", "postgres"], indirect=True)  # the third has everything in memory anyway
async def test_retention_remembers_no_more_than_it_removes_at_once(opened: Open) -> None:
    """The memory of a prune is bounded by a page, however many chains there are.

    Reading all chains to find old ones once raised a server's memory with every box that it had ever created.
    """
    ledger = opened()
    now, rows = time.time(), 4 * PRUNE_BATCH
    await ledger.append([draft(number, op, at=now) for number in range(rows) for op in ("exec", GONE)])
    receipts = Receipts(ledger, mode="off")
    assert await receipts.prune() == 0  # the first prune pays for imports and preparation
    tracemalloc.start()
    try:
        assert await receipts.prune() == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 400 * PRUNE_BATCH, peak
    crowded = Receipts(ledger, mode="off", most=rows)
    assert await crowded.prune() == rows // 2, "page by page, until it is done"
    assert sum(not chain.pruned_at for chain in await ledger.chains(None, "", 2 * rows)) == rows // 2
    await receipts.close()


async def test_receipts_of_one_owner_never_displace_those_of_another(opened: Open) -> None:
    """One owner's notes never prune another's chain: the number of receipts kept applies to each owner."""
    ledger, now = opened(), time.time()
    await ledger.append([draft(1, op, at=now - 60, owner="quiet") for op in ("exec", GONE)])
    await ledger.append([draft(2, op, at=now - 50, owner="loud") for op in ("exec", GONE)])
    await ledger.append([draft(3, "note.x", at=now - 40, owner="loud") for _ in range(40)])
    await ledger.append([draft(4, op, at=now - 30, owner="loud") for op in ("exec", GONE)])
    receipts = Receipts(ledger, mode="off", most=10)
    assert await receipts.prune() == 2, "both ended chains of the loud one; what is live stays"
    checks = {check.box: check for check in await receipts.verify()}
    assert all(check.ok for check in checks.values())
    assert [checks[box(n)].pruned_why for n in (1, 2, 3, 4)] == [None, "rows", None, "rows"]
    assert len(await ledger.rows(box(1), 0, 9)) == 2
    await receipts.close()


async def test_memory_is_shared_out_fairly(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory too, an owner who uses less than an equal share loses nothing."""
    monkeypatch.setattr("hutch.keeper.receipts.ledger.MEMORY_ROWS", 100)
    ledger, now = MemoryLedger(), time.time()
    await ledger.append([draft(1, op, at=now - 60, owner="quiet") for op in ("exec", GONE)])
    for number in range(2, 80):
        await ledger.append([draft(number, op, at=now - 50, owner="loud") for op in ("exec", GONE)])
    assert len(await ledger.rows(box(1), 0, 9)) == 2
    assert sum(not chain.pruned_at for chain in await ledger.chains("loud", "", 100)) <= 50


async def test_an_owner_log_is_pruned_when_its_day_is_long_over(opened: Open) -> None:
    """An owner log holds one owner's day; it is pruned like the chain of a destroyed box, never while it is open."""
    ledger, now = opened(), time.time()
    old, today = owner_log("o", now - 40 * 86400), owner_log("o", now)
    assert len({old, today, owner_log("p", now)}) == 3
    said = Receipt(box=old, owner="o", at=now - 40 * 86400, op="tool.exec")
    await ledger.append([said, said.but(box=today, at=now)])
    assert await ledger.prune(now - 30 * 86400, 0) == 1
    receipts = Receipts(ledger)
    checks = {check.box: check for check in await receipts.verify(owner="o")}
    assert checks[old].pruned_at and checks[today].ok and checks[today].count == 1
    await receipts.note("", "tool.read", {"decision": "deny"}, owner="o")
    await receipts.note("", "tool.read", {"decision": "deny"}, owner="p")
    assert [each.op for each in await receipts.list(today, owner="o")] == ["tool.exec", "tool.read"]
    with pytest.raises(NotFound):
        await receipts.list(today, owner="p")
    for closed in (old, today):
        with pytest.raises(NotFound):
            await receipts.note(closed, "note.x", owner="o")
    assert all(check.ok for check in await receipts.verify())
    await receipts.close()


async def test_many_writers_at_once(opened: Open) -> None:
    ledger = opened()
    await asyncio.gather(*(ledger.append([draft(1), draft(2)]) for _ in range(20)))
    receipts = Receipts(ledger, mode="off")
    assert [(check.ok, check.count) for check in await receipts.verify()] == [(True, 20), (True, 20)]
    await receipts.close()


class Forgetful(Connections):
    """Loses the first answer to everything, so that all work is tried again."""

    def _attempt(self, work: Callable[[Connection, bool], T], retried: bool) -> T:
        super()._attempt(work, retried)
        return super()._attempt(work, True)


async def test_a_lost_answer_of_postgres_doubles_nothing(database: str) -> None:
    ledger = Held(Forgetful(database))
    for _ in range(3):
        await ledger.append([draft(1), draft(2), draft(1)])
    receipts = Receipts(ledger, mode="off")
    assert [(check.ok, check.count) for check in await receipts.verify()] == [(True, 6), (True, 3)]
    await receipts.close()


# --- the queue -------------------------------------------------------------------------------------------------------


class Moody(MemoryLedger):
    """Fails or stands still when the test says so, which a real disk does not do on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = 0
        self.may = asyncio.Event()
        self.may.set()
        self.batches: list[int] = []

    async def append(self, drafts: Sequence[Receipt]) -> None:
        await self.may.wait()
        if self.fails:
            self.fails -= 1
            raise Unavailable("the disk is full")
        self.batches.append(len(drafts))
        await super().append(drafts)


async def test_receipts_are_committed_in_groups() -> None:
    """Receipts that arrive together cost one commit, off the reply path."""
    ledger = Moody()
    queue = ReceiptQueue(ledger)
    for _ in range(100):
        queue.put(draft())
    assert ledger.batches == [] and len(queue) == 100, "putting writes nothing"
    await queue.flush()
    assert ledger.batches == [100] and len(queue) == 0
    await queue.close()


async def test_a_failing_ledger_is_tried_again_and_nothing_is_lost_or_doubled() -> None:
    ledger = Moody()
    ledger.fails = 3
    queue = ReceiptQueue(ledger)
    for number in range(10):
        queue.put(draft(at=float(number)))
    await queue.flush()
    assert queue.failures == 3
    receipts = Receipts(ledger, mode="off")
    assert [receipt.at for receipt in await receipts.list(box(1))] == [float(number) for number in range(10)]


async def test_a_receipt_that_cannot_be_written_down_takes_no_other_with_it() -> None:
    ledger = MemoryLedger()
    queue = ReceiptQueue(ledger)
    queue.put(draft(1))
    queue.put(draft(2).but(details={"what": object()}))
    await queue.flush()
    receipts = Receipts(ledger, mode="off")
    assert [(check.ok, check.count) for check in await receipts.verify()] == [(True, 1), (True, 1)]
    assert (await receipts.list(box(2)))[0].details == {"unwritable": True}


async def test_a_receipt_without_any_words_leaves_a_gap() -> None:
    """Such a receipt is not tried again, and its neighbours keep their details."""
    ledger = MemoryLedger()
    queue = ReceiptQueue(ledger)
    queue.put(draft(1))
    queue.put(draft(1).but(cause=object()))
    assert await queue.close() == ()
    receipts = await Receipts(ledger, mode="off").list(box(1))
    assert [(receipt.op, receipt.details) for receipt in receipts] == [
        ("exec", {"command": "true"}), ("gap", {"unwritable": "exec"})
    ]  # fmt: skip


async def test_the_end_does_not_wait_for_a_ledger_that_never_comes_back() -> None:
    """Closing tries a few more times, even out of a long pause, and then returns what is left."""
    ledger = Moody()
    ledger.fails = 1_000_000
    queue = ReceiptQueue(ledger)
    queue.put(draft(1))
    while queue.failures < 6:  # the pause is 1.6 s by now
        await asyncio.sleep(0.01)
    before = queue.failures
    lost = await queue.close()
    assert [each.box for each in lost] == [box(1)]
    assert queue.failures == before + receipt_queue.CLOSING_ATTEMPTS
    ledger.fails = 0
    await asyncio.sleep(0.05)
    assert ledger.batches == [], "what was called lost is not written behind our back"


async def test_the_end_does_not_wait_for_a_ledger_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_queue, "TIMEOUT_SECONDS", 0.05)
    ledger = Moody()
    ledger.may.clear()
    queue = ReceiptQueue(ledger)
    queue.put(draft(1))
    assert len(await queue.close()) == 1


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare (util-linux)")
async def test_a_full_disk_loses_receipts_and_the_next_keeper_reports_it(tmp_path: Path) -> None:
    """The next keeper adds a gap and an end, once, to the chain of a box that was destroyed meanwhile."""
    script = f"mount -t tmpfs -o size=256k none {tmp_path} && exec {sys.executable} {FULL_DISK} {tmp_path}"
    done = await asyncio.to_thread(
        subprocess.run, ["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer == {"lost": 51, "ended": [1, 0], "ok": True, "ops": ["exec", "gap", "box.gone"], "over": True}


async def test_a_full_queue_refuses_what_could_not_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue first waits for space and then refuses; it never drops a receipt."""
    monkeypatch.setattr(receipt_queue, "MAX_WAITING", 5)
    monkeypatch.setattr(receipt_queue, "TIMEOUT_SECONDS", 0.05)
    ledger = Moody()
    ledger.may.clear()
    queue = ReceiptQueue(ledger)
    for _ in range(5):
        queue.put(draft())
    assert queue.full
    with pytest.raises(Unavailable, match="5 receipts wait") as refused:
        await queue.wait_for_space()
    assert refused.value.remedy
    monkeypatch.setattr(receipt_queue, "TIMEOUT_SECONDS", 60.0)
    waiting = asyncio.create_task(queue.wait_for_space())
    await asyncio.sleep(0)
    ledger.may.set()
    await waiting
    assert not queue.full
    await queue.close()
    chain = await ledger.chain(box(1))
    assert chain is not None and chain.count == 5


async def test_strict_says_that_it_was_done_and_is_not_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_queue, "TIMEOUT_SECONDS", 0.05)
    ledger = Moody()
    ledger.may.clear()
    operations = Operations(ReceiptQueue(ledger), strict=True)
    assert operations.queue is not None
    with pytest.raises(Unavailable, match="was done") as raised:
        await operations.queue.committed(operations.finish(draft()))
    assert raised.value.details == {"done": True} and not raised.value.retryable
    ledger.may.set()
    await operations.queue.close()
    assert await ledger.chain(box(1)) is not None, "it was not dropped"
