"""Tampering with receipts: `verify` finds every change of what is stored or exported, byte by byte."""

import asyncio
import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hutch.errors import Invalid
from hutch.keeper.receipts.chain import Row, genesis
from hutch.keeper.receipts.export import check_export
from hutch.keeper.receipts.ledger_sqlite import SqliteLedger
from hutch.keeper.receipts.receipts import Receipts
from hutch.model.receipts import LEFT, ChainCheck, Receipt, Who
from hutch.model.results import Usage
from tests import proofs

pytestmark = pytest.mark.slow

A, B = "a" * 20, "b" * 20
COUNT = 6


def draft(box: str, number: int, op: str = "exec") -> Receipt:
    return Receipt(
        box=box, owner="o", at=1000.5 + number, op=op, who=Who(session="s", role="user", key="k1"),
        details={"command": f"echo {number} ü", "timeout_sec": 30, "env": ("A", "B")}, policy="p" * 64, cause="ok",
        exit_code=0, usage=Usage(wall_sec=0.25), duration_ms=1.5,
    )  # fmt: skip


async def filled(path: Path) -> None:
    """Two chains of six receipts."""
    ledger = SqliteLedger(path)
    for box in (A, B):
        await ledger.append([draft(box, number) for number in range(4)])
        await ledger.append([draft(box, number) for number in range(4, COUNT)])
    await ledger.close()


async def verified(path: Path, box: str = "") -> tuple[ChainCheck, ...]:
    receipts = Receipts(SqliteLedger(path), mode="off")
    try:
        return await receipts.verify(box)
    finally:
        await receipts.close()


async def exported(path: Path) -> bytes:
    receipts = Receipts(SqliteLedger(path), mode="off")
    try:
        return b"".join([piece async for piece in receipts.export()])
    finally:
        await receipts.close()


def change(path: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    with sqlite3.connect(path) as db:
        for statement, values in statements:
            assert db.execute(statement, values).rowcount, statement


@pytest.fixture(scope="module")
def store() -> bytes:
    """A file with receipts, as bytes to copy."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "receipts.db"
        asyncio.run(filled(path))
        assert all(check.ok and check.count == COUNT for check in asyncio.run(verified(path)))
        return path.read_bytes()


@pytest.fixture
def path(store: bytes, tmp_path: Path) -> Path:
    (tmp_path / "receipts.db").write_bytes(store)
    return tmp_path / "receipts.db"


@settings(max_examples=150)
@given(
    box=st.sampled_from((A, B)), seq=st.integers(1, COUNT), column=st.sampled_from(("body", "hash", "seq", "box")),
    place=st.integers(0, 10_000), bits=st.integers(1, 255),
)  # fmt: skip
def test_one_changed_byte_in_any_stored_receipt_is_found(
    store: bytes, box: str, seq: int, column: str, place: int, bits: int
) -> None:
    """One changed byte in any receipt is found, and the receipt is named."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "receipts.db"
        path.write_bytes(store)
        with sqlite3.connect(path) as db:
            [old] = db.execute(f"SELECT {column} FROM receipts WHERE box = ? AND seq = ?", (box, seq)).fetchone()
            if isinstance(old, int):
                new: object = old + bits * 100
            else:
                data = bytearray(old if isinstance(old, bytes) else old.encode())
                data[place % len(data)] ^= bits if isinstance(old, bytes) else bits % 127 + 1
                new = bytes(data) if isinstance(old, bytes) else data.decode("latin-1")
            db.execute(f"UPDATE receipts SET {column} = ? WHERE box = ? AND seq = ?", (new, box, seq))
        broken = [check for check in asyncio.run(verified(path)) if not check.ok]
        assert [check.box for check in broken] == [box]
        assert broken[0].broken == seq, broken


@settings(max_examples=60)
@given(box=st.sampled_from((A, B)), column=st.sampled_from(("owner", "count", "head")), by=st.integers(1, 9))
def test_a_changed_head_record_is_found(store: bytes, box: str, column: str, by: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "receipts.db"
        path.write_bytes(store)
        with sqlite3.connect(path) as db:
            [old] = db.execute(f"SELECT {column} FROM chains WHERE box = ?", (box,)).fetchone()
            new = old + by if isinstance(old, int) else old[:-1] + chr(ord(old[-1]) ^ by)
            db.execute(f"UPDATE chains SET {column} = ? WHERE box = ?", (new, box))
        assert [check.box for check in asyncio.run(verified(path)) if not check.ok] == [box]


def _swap(path: Path) -> None:
    change(path, *(("UPDATE receipts SET box = ? WHERE box = ?", pair) for pair in (("x", A), (A, B), (B, "x"))))


def _swap_heads_too(path: Path) -> None:
    _swap(path)
    change(path, *(("UPDATE chains SET box = ? WHERE box = ?", pair) for pair in (("x", A), (A, B), (B, "x"))))


def _reorder(path: Path) -> None:
    pairs = ((99, 3), (3, 4), (4, 99))
    change(path, *(("UPDATE receipts SET seq = ? WHERE box = ? AND seq = ?", (new, A, old)) for new, old in pairs))


def _delete(*numbers: int) -> Callable[[Path], None]:
    return lambda path: change(
        path, *(("DELETE FROM receipts WHERE box = ? AND seq = ?", (A, number)) for number in numbers)
    )


def _close_the_hole(path: Path) -> None:
    _delete(3)(path)
    change(path, *(("UPDATE receipts SET seq = ? WHERE box = ? AND seq = ?", (n - 1, A, n)) for n in (4, 5, 6)))
    change(path, ("UPDATE chains SET count = 5 WHERE box = ?", (A,)))


def _cut_the_tail_and_count(path: Path) -> None:
    _delete(6)(path)
    change(path, ("UPDATE chains SET count = 5 WHERE box = ?", (A,)))


def _feign_pruning(path: Path) -> None:
    change(path, ("UPDATE chains SET pruned_at = 5.0 WHERE box = ?", (A,)))


def _removed(path: Path, why: str, limit: float, ended_at: float, pruned_at: float) -> None:
    change(path, ("DELETE FROM receipts WHERE box = ?", (A,)))
    values = (ended_at, pruned_at, why, limit, A)
    change(
        path,
        ("UPDATE chains SET ended_at = ?, pruned_at = ?, pruned_why = ?, pruned_limit = ? WHERE box = ?", values),
    )


@pytest.mark.parametrize(
    ("why", "limit", "ended_at", "problem"),
    [
        ("", 0.0, 100.0, "no rule of retention"),
        ("because", 0.0, 100.0, "no rule of retention"),
        ("age", 30 * 86400.0, 100.0, "days after its end"),
        ("rows", 1_000_000.0, 100.0, "never had more than"),
        ("age", 5.0, 0.0, "its box is not gone"),
    ],
)
async def test_what_retention_did_not_ask_for_is_found(
    path: Path, why: str, limit: float, ended_at: float, problem: str
) -> None:
    """A chain that was removed before its time does not verify."""
    _removed(path, why, limit, ended_at, 200.0)
    [check] = await verified(path, A)
    assert not check.ok and check.broken == 0 and problem in check.problem, check


@pytest.mark.parametrize(("why", "limit"), [("age", 50.0), ("rows", 3.0), ("earlier", 0.0)])
async def test_what_retention_asked_for_is_in_order(path: Path, why: str, limit: float) -> None:
    """This is the control: chains that retention removed verify."""
    _removed(path, why, limit, 100.0, 200.0)
    [check] = await verified(path, A)
    assert check.ok and check.pruned_why == why, check


def _change_types(path: Path) -> None:
    change(path, ("UPDATE receipts SET body = 'text' WHERE box = ? AND seq = 2", (A,)))
    change(path, ("UPDATE chains SET count = 'many', head = x'00ff' WHERE box = ?", (A,)))


def _add(path: Path) -> None:
    """A correctly linked receipt of somebody who did not update the head record."""
    with sqlite3.connect(path) as db:
        [head] = db.execute("SELECT head FROM chains WHERE box = ?", (A,)).fetchone()
        body = draft(A, 7).but(seq=7, prev=head).to_json()
        db.execute("INSERT INTO receipts VALUES (?, ?, ?, ?)", (A, 7, hashlib.sha256(body).hexdigest(), body))


@pytest.mark.parametrize(
    ("tamper", "broken"),
    [
        (_delete(1), 1), (_delete(3), 3), (_delete(6), 6), (_delete(1, 2, 3, 4, 5, 6), 1), (_reorder, 3),
        (_close_the_hole, 3), (_cut_the_tail_and_count, 0), (_swap, 1), (_swap_heads_too, 1), (_add, 7),
        (_feign_pruning, 0), (_change_types, 2),
    ],
)  # fmt: skip
async def test_what_is_missing_moved_or_added_is_found(path: Path, tamper: Callable[[Path], None], broken: int) -> None:
    """Receipts deleted anywhere, reordered, renumbered, taken from another box or made up are found."""
    tamper(path)
    [check] = await verified(path, A)
    assert (check.ok, check.broken) == (False, broken), check
    assert check.problem


async def test_a_chain_is_bound_to_its_box_and_its_owner() -> None:
    assert len({genesis("a", "bc"), genesis("ab", "c"), genesis("a", "b"), genesis("b", "a")}) == 4


async def test_an_export_is_checked_without_its_ledger(path: Path) -> None:
    lines = await exported(path)
    checks = check_export(lines.splitlines(keepends=True))
    assert [(check.box, check.ok, check.count) for check in checks] == [(A, True, COUNT), (B, True, COUNT)]
    plain = json.loads(lines.splitlines()[0])
    assert plain["op"] == "exec" and plain["details"]["command"] == "echo 0 ü", "lines are plain JSON for other tools"


def test_one_changed_byte_anywhere_in_an_export_is_found(store: bytes) -> None:
    """Every byte is changed in two ways, and each change is found."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "receipts.db"
        path.write_bytes(store)
        good = asyncio.run(exported(path))
    for place in range(len(good)):
        for bits in (1, 0x80 if place % 2 else 0x20):
            bad = bytearray(good)
            bad[place] ^= bits
            checks = check_export(bytes(bad).splitlines(keepends=True))
            assert not all(check.ok for check in checks), (place, bits)


@settings(max_examples=100)
@given(data=st.data())
def test_lines_lost_moved_or_doubled_in_an_export_are_found(store: bytes, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "receipts.db"
        path.write_bytes(store)
        good = asyncio.run(exported(path)).splitlines(keepends=True)
    bad = list(good)
    at = data.draw(st.integers(0, len(good) - 1))
    how = data.draw(st.sampled_from(("lose", "move", "double", "cut")))
    if how == "lose":
        del bad[at]
    elif how == "move":
        bad.insert(data.draw(st.integers(0, len(good) - 1)), bad.pop(at))
    elif how == "double":
        bad.insert(at, bad[at])
    else:
        bad = bad[:at]
    checks = check_export(bad)
    assert bad == good or not checks or not all(check.ok for check in checks)
    assert checks, "an empty file is not taken for an export"


async def test_a_broken_receipt_is_named_in_an_export(path: Path) -> None:
    lines = (await exported(path)).splitlines(keepends=True)
    lines[9] = lines[9].replace(b"echo", b"rm -")
    broken = [check for check in check_export(lines) if not check.ok]
    assert (broken[0].box, broken[0].broken) == (B, 3)


def test_a_line_that_is_no_receipt_is_refused() -> None:
    for line in (b"", b"{}", b'{"box":1}', b"x" * 200):
        with pytest.raises(Invalid):
            Row.of_line(line)


async def test_two_writers_of_one_file_make_one_chain(tmp_path: Path) -> None:
    """Receipts of a slow keeper and of the one that took its box over are put in order, and none is lost."""
    path = tmp_path / "receipts.db"
    ledgers = [SqliteLedger(path) for _ in range(3)]
    await asyncio.gather(*(ledger.append([draft(A, n)]) for n in range(10) for ledger in ledgers))
    for ledger in ledgers:
        await ledger.close()
    [check] = await verified(path, A)
    assert check.ok and check.count == 30


async def test_arrivals_are_distinguished_by_the_last_word(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "receipts.db")
    await ledger.append([draft(A, 1), draft(A, 2, "box.arrived"), draft(A, 3, LEFT), draft(A, 4, "box.arrived")])
    rows = [json.loads(row.body) for row in await ledger.rows(A, 0, 10)]
    await ledger.close()
    assert [row["op"] for row in rows] == ["exec", "gap", "box.left", "box.handed_over"]
    assert rows[1]["details"]["from"] == pytest.approx(1001.5015)
    assert rows[1]["details"]["to"] == 1002.5


@pytest.mark.proof
@pytest.mark.timeout(900)
async def test_every_bit_of_every_receipt(path: Path) -> None:
    """Every changed bit of an export and of the stored bytes is found."""
    good = await exported(path)
    for place in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            assert not all(check.ok for check in check_export(bytes(bad).splitlines(keepends=True))), (place, bit)
    receipts = Receipts(SqliteLedger(path), mode="off")
    flips = 0
    with sqlite3.connect(path, isolation_level=None) as db:
        for seq, body in db.execute("SELECT seq, body FROM receipts WHERE box = ? ORDER BY seq", (A,)).fetchall():
            for place in range(len(body)):
                for bit in range(8):
                    bad = bytearray(body)
                    bad[place] ^= 1 << bit
                    db.execute("UPDATE receipts SET body = ? WHERE box = ? AND seq = ?", (bytes(bad), A, seq))
                    [check] = await receipts.verify(A)
                    assert (check.ok, check.broken) == (False, seq), (seq, place, bit)
                    flips += 1
            db.execute("UPDATE receipts SET body = ? WHERE box = ? AND seq = ?", (body, A, seq))
        [check] = await receipts.verify(A)
        assert check.ok
    await receipts.close()
    proofs.write("receipts", exported_bits=len(good) * 8, stored_bits=flips, undetected=0)
