"""Writes to a SQLite file: on the event loop where that is quick, in a thread where it may wait.

A task is answered only after its commit: an answered write is in the WAL, and a refused one leaves no trace. Usually a
task is a transaction of its own on the event loop: it writes to the page cache only, and takes a third of the time that
handing it to a thread and back would need. A task goes to the thread where the loop would have to wait: for another
process that holds the file's write lock, for the disk (when the WAL is copied into the file), for a long read, or for
tasks that are in the thread already. All waiting tasks share one transaction, each in a savepoint of its own.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hutch.errors import HutchError, Unavailable
from hutch.keeper.store.schema import migrate
from hutch.keeper.store.sqlite_files import open_database, store_error
from hutch.logs import log

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]
Task = tuple[Work, "asyncio.Future[Any]"]
Answers = list[tuple["asyncio.Future[Any]", Any, BaseException | None]]

BATCH = 256
CHECKPOINT_TRANSACTIONS = 256
"""Transactions after which the WAL is copied into the file."""
INLINE_TASKS = 32
"""Tasks that the loop runs in a row; then other callbacks get their turn, even if somebody writes thousands."""
_LOCK_TIMEOUT = 30.0
"""Seconds that the thread waits for other writers."""


class Batch(NamedTuple):
    """Tasks for the thread, and what the loop calls when they are answered."""

    tasks: list[Task]
    done: Callable[[], None]


class SqliteWriter:
    """One file with its connections and its thread."""

    def __init__(self, path: Path, prepare: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """The thread calls `prepare` once the file has this release's schema, before any task."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._prepare = prepare
        self._failure: BaseException | None = None
        self._usable = False
        """True once the thread has opened and migrated the file."""
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The first loop that used the store; it runs tasks itself, and tasks of other loops go to the thread."""
        self._db: sqlite3.Connection | None = None
        """The connection of that loop."""
        self._pending: list[Task] = []
        self._inline = 0
        self._closed = False
        self._in_thread = 0
        """Batches of the loop that the thread has not answered yet."""
        self._transactions = 0
        self._thread = threading.Thread(target=self._serve, name="hutch-store", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[sqlite3.Connection], T], *, long: bool = False) -> "asyncio.Future[T]":
        """Run `work` in a transaction and return a future of its result, which is often done already.

        `long` says that the work may read much, so the thread runs it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        task = (work, future)
        self._loop = self._loop or loop
        if self._failure is not None:
            future.set_exception(store_error(self._path, self._failure))
        elif self._closed:
            future.set_exception(Unavailable(f"the store {self._path} is closed"))
        elif long or loop is not self._loop:
            self._queue.put(Batch([task], _ignore))
        elif not self._run_inline(task):
            if not self._pending:
                loop.call_soon(self._flush)
            self._pending.append(task)
        return future

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._flush()
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._join)

    # --- on the loop ----------------------------------------------------------------------------------------

    def _run_inline(self, task: Task) -> bool:
        """Run the task now; False if it has to wait."""
        if self._pending or self._inline == INLINE_TASKS:
            return False
        db = self._begin()
        if db is None:
            return False
        self._inline += 1
        _answer(self._commit(db, [task]))
        return True

    def _flush(self) -> None:
        self._inline = 0
        tasks, self._pending = self._pending, []
        if not tasks:
            return
        db = self._begin()
        if db is not None:
            _answer(self._commit(db, tasks))
            return
        self._in_thread += 1
        self._queue.put(Batch(tasks, self._batch_done))

    def _batch_done(self) -> None:
        self._in_thread -= 1

    def _begin(self) -> sqlite3.Connection | None:
        """Begin a transaction on the loop's connection; None if the thread should do the work instead."""
        if not self._usable or self._in_thread or self._transactions >= CHECKPOINT_TRANSACTIONS:
            return None
        try:
            if self._db is None:
                self._db = _connect(self._path, timeout=0.0)
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return None  # the thread waits for the other writer, or reports what is wrong
        return self._db

    # --- in the thread --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            db = _connect(self._path, timeout=_LOCK_TIMEOUT)
            migrate(db)
            if self._prepare is not None:
                self._prepare(db)
        except (sqlite3.Error, HutchError) as error:
            self._failure = error
            self._refuse_all(error)
            return
        self._usable = True
        try:
            while (batches := self._next()) is not None:
                self._checkpoint(db)
                tasks = [task for batch in batches for task in batch.tasks]
                self._answer_from_thread(self._commit(db, tasks), batches)
        finally:
            self._closed = True
            db.close()

    def _next(self) -> list[Batch] | None:
        """Wait for a batch and add those that have come meanwhile; None when the store closes."""
        first = self._queue.get()
        if first is None:
            return None
        batches = [first]
        while sum(len(batch.tasks) for batch in batches) < BATCH:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._queue.put(None)
                break
            batches.append(more)
        return batches

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """Copy the WAL into the file now and then, in the thread: the next transaction then starts the WAL again."""
        if self._transactions < CHECKPOINT_TRANSACTIONS:
            return
        self._transactions = 0
        try:
            db.execute("PRAGMA wal_checkpoint")
        except sqlite3.Error as error:  # nothing is lost: everything is in the WAL, which grows
            log("store").warning("the write-ahead log could not be copied into its file", path=self._path, error=error)

    def _refuse_all(self, error: BaseException) -> None:
        """Refuse every task, also later ones, because the file cannot be opened."""
        while (batch := self._queue.get()) is not None:
            self._answer_from_thread(_refusals(batch.tasks, store_error(self._path, error)), [batch])

    def _answer_from_thread(self, answers: Answers, batches: list[Batch]) -> None:
        for loop in {future.get_loop() for future, _, _ in answers}:
            of_loop = [answer for answer in answers if answer[0].get_loop() is loop]
            done = [batch.done for batch in batches if batch.tasks[0][1].get_loop() is loop]
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(_finish, of_loop, done)  # one call for all, because each wakes the loop

    def _join(self) -> None:
        self._thread.join()
        if self._db is not None:
            self._db.close()

    # --- in both --------------------------------------------------------------------------------------------

    def _commit(self, db: sqlite3.Connection, tasks: list[Task]) -> Answers:
        answers: Answers = []
        self._transactions += 1
        try:
            if not db.in_transaction:
                db.execute("BEGIN IMMEDIATE")
            if len(tasks) == 1:
                return [(tasks[0][1], *self._commit_single(db, tasks[0][0]))]
            for work, future in tasks:
                answers.append((future, *self._run_in_savepoint(db, work)))
            db.execute("COMMIT")
        except Exception as error:  # also a defect of ours: those who wait get it, later tasks do not
            if db.in_transaction:
                db.execute("ROLLBACK")
            return _refusals(tasks, store_error(self._path, error) if isinstance(error, sqlite3.Error) else error)
        return answers

    def _commit_single(self, db: sqlite3.Connection, work: Work) -> tuple[Any, BaseException | None]:
        """Run and commit the only task of a transaction, the usual case."""
        try:
            result = work(db)
        except HutchError as error:
            db.execute("ROLLBACK")
            return None, error
        db.execute("COMMIT")
        return result, None

    def _run_in_savepoint(self, db: sqlite3.Connection, work: Work) -> tuple[Any, BaseException | None]:
        """Run one of several tasks so that its failure does not undo the others."""
        db.execute("SAVEPOINT one")
        try:
            result = work(db)
        except (HutchError, sqlite3.Error) as error:
            if not db.in_transaction:  # a full disk ends the whole transaction (sqlite.org/lang_transaction.html)
                raise
            db.execute("ROLLBACK TO one")
            db.execute("RELEASE one")
            return None, store_error(self._path, error)
        db.execute("RELEASE one")
        return result, None


def _connect(path: Path, *, timeout: float) -> sqlite3.Connection:
    db = open_database(path, timeout=timeout)
    try:
        db.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        db.close()
        raise
    return db


def _refusals(tasks: list[Task], refusal: Exception) -> Answers:
    return [(future, None, refusal) for _, future in tasks]


def _finish(answers: Answers, done: list[Callable[[], None]]) -> None:
    for each in done:
        each()
    _answer(answers)


def _answer(answers: Answers) -> None:
    for future, result, failure in answers:
        if future.done():
            continue  # nobody waits any more
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(result)


def _ignore() -> None:
    """Does nothing: the loop does not count tasks that it gives to the thread directly."""
