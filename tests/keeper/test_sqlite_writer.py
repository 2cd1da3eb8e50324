"""The SQLite writer: which tasks run on the event loop and which in the thread, with equal results."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hutch.errors import Conflict, HutchError, Unavailable
from hutch.keeper.store import sqlite_writer
from hutch.keeper.store.sqlite_writer import SqliteWriter


def put(key: str, threads: list[int] | None = None) -> Callable[[sqlite3.Connection], str]:
    """Work that writes a note and records the thread it ran in."""

    def work(db: sqlite3.Connection) -> str:
        if threads is not None:
            threads.append(threading.get_ident())
        db.execute("INSERT INTO notes (kind, key, body) VALUES ('test', ?, '')", (key,))
        return key

    return work


def keys(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as db:
        return {key for (key,) in db.execute("SELECT key FROM notes WHERE kind = 'test'")}


async def usable(writer: SqliteWriter) -> None:
    while not writer._usable:
        await asyncio.sleep(0.001)


@contextmanager
def another_writes(path: Path) -> Iterator[None]:
    """Hold the file's write lock, as another process would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            db.execute("ROLLBACK")


async def test_a_quiet_file_is_written_by_the_loop(tmp_path: Path) -> None:
    writer, threads = SqliteWriter(tmp_path / "a.db"), list[int]()
    await usable(writer)
    assert [await writer.do(put(str(number), threads)) for number in range(5)] == list("01234")
    assert set(threads) == {threading.get_ident()}
    assert keys(tmp_path / "a.db") == set("01234")
    await writer.close()


async def test_before_the_file_is_open_the_thread_does_it(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "a.db")
    assert await asyncio.gather(*(writer.do(put(str(number))) for number in range(5))) == list("01234")
    await writer.close()


async def test_a_piece_alone_is_done_when_the_call_returns(tmp_path: Path) -> None:
    """A change of a box's record needs no further turn of the event loop."""
    writer = SqliteWriter(tmp_path / "a.db")
    await usable(writer)
    answer = writer.do(put("a"))
    assert answer.done() and keys(tmp_path / "a.db") == {"a"}
    assert await answer == "a"
    await writer.close()


async def test_a_caller_with_thousands_of_tasks_does_not_starve_others(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "a.db")
    await usable(writer)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for number in range(10 * sqlite_writer.INLINE_TASKS):
        await writer.do(put(str(number)))
    counting.cancel()
    assert turns >= 9
    await writer.close()


async def test_what_waits_in_one_turn_is_one_transaction(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "a.db")
    await usable(writer)
    before = writer._transactions
    answers = [writer.do(put(str(number))) for number in range(100)]
    assert [answer.done() for answer in answers].count(True) == sqlite_writer.INLINE_TASKS
    assert await asyncio.gather(*answers) == [str(number) for number in range(100)]
    assert writer._transactions == before + sqlite_writer.INLINE_TASKS + 1
    await writer.close()


async def test_a_refused_piece_leaves_no_trace_and_spares_its_neighbours(tmp_path: Path) -> None:
    def half_done(db: sqlite3.Connection) -> None:
        put("half")(db)
        raise Conflict("no")

    writer = SqliteWriter(tmp_path / "a.db")
    await usable(writer)
    with another_writes(tmp_path / "a.db"):  # so that all four are one transaction
        asked = [writer.do(put("a")), writer.do(half_done), writer.do(put("a")), writer.do(put("b"))]
        await asyncio.sleep(0.02)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[0] == "a" and answers[3] == "b"
    assert isinstance(answers[1], Conflict) and isinstance(answers[2], HutchError)
    assert keys(tmp_path / "a.db") == {"a", "b"}
    for alone in (half_done, put("a")):
        with pytest.raises(HutchError):
            await writer.do(alone)
    assert keys(tmp_path / "a.db") == {"a", "b"}
    await writer.close()


async def test_an_unexpected_error_is_raised_and_the_next_task_runs(tmp_path: Path) -> None:
    def defect(db: sqlite3.Connection) -> None:
        put("half")(db)
        raise ZeroDivisionError

    writer = SqliteWriter(tmp_path / "a.db")
    await usable(writer)
    for long in (False, True):
        with pytest.raises(ZeroDivisionError):
            await writer.do(defect, long=long)
    assert await writer.do(put("a")) == "a"
    assert keys(tmp_path / "a.db") == {"a"}
    await writer.close()


async def test_a_new_file_can_be_opened_by_several_at_once(tmp_path: Path) -> None:
    """Two programs start together on a new machine, where SQLite refuses one of them in one of ten attempts."""
    for number in range(40):
        writers = [SqliteWriter(tmp_path / f"{number}.db") for _ in range(3)]
        assert await asyncio.gather(*(writer.do(put(str(at))) for at, writer in enumerate(writers))) == list("012")
        for writer in writers:
            await writer.close()


async def test_the_loop_never_waits_for_another_writer(tmp_path: Path) -> None:
    """A process that was stopped within a transaction must not block this one for ever."""
    writer, threads = SqliteWriter(tmp_path / "a.db"), list[int]()
    await writer.do(put("before"))
    with another_writes(tmp_path / "a.db"):
        waiting = writer.do(put("after", threads))
        turns = 0
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            await asyncio.sleep(0.001)
            turns += 1
        assert turns > 20 and not waiting.done()
    assert await waiting == "after"
    assert threading.get_ident() not in threads
    await writer.close()


async def test_a_writer_that_waits_too_long_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "_LOCK_TIMEOUT", 0.05)
    writer = SqliteWriter(tmp_path / "a.db")
    await writer.do(put("before"))
    with another_writes(tmp_path / "a.db"):
        with pytest.raises(Unavailable) as caught:
            await writer.do(put("never"))
        assert caught.value.remedy.startswith("try again")
    assert await writer.do(put("after")) == "after"
    assert keys(tmp_path / "a.db") == {"before", "after"}
    await writer.close()


async def test_the_log_is_copied_by_the_thread_and_stays_small(tmp_path: Path) -> None:
    writer, threads = SqliteWriter(tmp_path / "a.db"), list[int]()
    await usable(writer)
    largest = 0
    for number in range(4 * sqlite_writer.CHECKPOINT_TRANSACTIONS):
        await writer.do(put(f"{number:06}", threads))
        largest = max(largest, (tmp_path / "a.db-wal").stat().st_size)
    others = [each for each in threads if each != threading.get_ident()]
    assert 3 <= len(others) <= 8, "once for each time that the log was full"
    assert largest < 2 * sqlite_writer.CHECKPOINT_TRANSACTIONS * 4 * 4200, "it is begun anew, not longer each time"
    assert len(keys(tmp_path / "a.db")) == len(threads)
    await writer.close()


async def test_long_answers_are_the_threads(tmp_path: Path) -> None:
    def read(db: sqlite3.Connection) -> int:
        return threading.get_ident()

    writer = SqliteWriter(tmp_path / "a.db")
    await usable(writer)
    assert await writer.do(read, long=True) != threading.get_ident()
    assert await writer.do(read) == threading.get_ident()
    await writer.close()


def test_a_second_loop_leaves_its_work_to_the_thread(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "a.db")

    async def write(key: str) -> str:
        return await writer.do(put(key))

    asyncio.run(write("first"))
    assert asyncio.run(write("second")) == "second"
    asyncio.run(writer.close())
    assert keys(tmp_path / "a.db") == {"first", "second"}


async def test_a_cancelled_caller_is_not_answered_and_the_task_runs(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "a.db")
    await usable(writer)
    with another_writes(tmp_path / "a.db"):
        waiting = writer.do(put("a"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await writer.do(put("b")) == "b"
    assert keys(tmp_path / "a.db") == {"a", "b"}
    await writer.close()


async def test_closing_writes_what_waits_and_leaves_one_file(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "a.db")
    await usable(writer)
    wanted = [str(number) for number in range(2 * sqlite_writer.INLINE_TASKS)]
    answers = [writer.do(put(key)) for key in wanted]
    assert not answers[-1].done()
    await writer.close()
    assert await asyncio.gather(*answers) == wanted
    assert keys(tmp_path / "a.db") == set(wanted)
    assert os.listdir(tmp_path) == ["a.db"]
    with pytest.raises(Unavailable, match="closed"):
        await writer.do(put("late"))
