"""How a store's work reaches its SQLite file: on the event loop where that is quick, in a thread where it may wait.

A piece of work is committed, and only then answered: an answered write is in the log, and a refused one left no trace.
Usually it is a transaction of its own, done where it is asked for: that is some writes to the page cache, and takes a
third of the time that a thread would need to take it and to answer. It waits for its turn where the loop would have to
wait: for another process that holds the file's write lock, for the disk (when the log is copied into the file), for a
long answer, or for the thread. All that waits is one transaction, each piece in a savepoint of its own.
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
from hutch.keeper.store.sqlite_errors import problem
from hutch.keeper.store.sqlite_files import opened
from hutch.logs import log

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]
Waiting = tuple[Work, "asyncio.Future[Any]"]
Answers = list[tuple["asyncio.Future[Any]", Any, BaseException | None]]

BATCH = 256
CHECKPOINT = 256
"""Transactions after which the log is copied into the file."""
AT_ONCE = 32
"""Pieces in a row that are done where they are asked for: then the loop turns, whoever asks for thousands."""
_PATIENCE = 30.0
"""Seconds the thread waits for other writers."""


class Handed(NamedTuple):
    """What the thread is to do."""

    batch: list[Waiting]
    done: Callable[[], None]


class SqliteWriter:
    """One file, its connections and its thread."""

    def __init__(self, path: Path, prepare: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """`prepare` is called in the thread, before any work, when the file has this release's schema."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._prepare = prepare
        self._failure: BaseException | None = None
        self._usable = False
        """Whether the thread has found the file in order."""
        self._queue: queue.SimpleQueue[Handed | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that first came, and does its own work; others leave it to the thread."""
        self._db: sqlite3.Connection | None = None
        """The loop's."""
        self._pending: list[Waiting] = []
        self._at_once = 0
        self._closed = False
        self._handed = 0
        """Batches of the loop that the thread has not answered yet."""
        self._transactions = 0
        self._thread = threading.Thread(target=self._serve, name="hutch-store", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[sqlite3.Connection], T], *, long: bool = False) -> "asyncio.Future[T]":
        """What `work` returns, once it is committed; often that is at once. `long`: it may read much, and is left to
        the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        waiting = (work, future)
        self._loop = self._loop or loop
        if self._failure is not None:
            future.set_exception(problem(self._path, self._failure))
        elif self._closed:
            future.set_exception(Unavailable(f"the store {self._path} is closed"))
        elif long or loop is not self._loop:
            self._queue.put(Handed([waiting], _nothing))
        elif not self._do_now(waiting):
            if not self._pending:
                loop.call_soon(self._flush)
            self._pending.append(waiting)
        return future

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._flush()
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._end)

    # --- on the loop ----------------------------------------------------------------------------------------

    def _do_now(self, waiting: Waiting) -> bool:
        """False: it has to wait."""
        if self._pending or self._at_once == AT_ONCE:
            return False
        db = self._begun()
        if db is None:
            return False
        self._at_once += 1
        _answer(self._commit(db, [waiting]))
        return True

    def _flush(self) -> None:
        self._at_once = 0
        batch, self._pending = self._pending, []
        if not batch:
            return
        db = self._begun()
        if db is not None:
            _answer(self._commit(db, batch))
            return
        self._handed += 1
        self._queue.put(Handed(batch, self._took))

    def _took(self) -> None:
        self._handed -= 1

    def _begun(self) -> sqlite3.Connection | None:
        """The loop's connection with a transaction begun; None if that is better left to the thread."""
        if not self._usable or self._handed or self._transactions >= CHECKPOINT:
            return None
        try:
            if self._db is None:
                self._db = _connect(self._path, patience=0.0)
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return None  # the thread waits for whoever is writing, or says what is wrong
        return self._db

    # --- in the thread --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            db = _connect(self._path, patience=_PATIENCE)
            migrate(db)
            if self._prepare is not None:
                self._prepare(db)
        except (sqlite3.Error, HutchError) as error:
            self._failure = error
            self._refuse_all(error)
            return
        self._usable = True
        try:
            while (handed := self._next()) is not None:
                self._checkpoint(db)
                batch = [waiting for each in handed for waiting in each.batch]
                self._answer_from_afar(self._commit(db, batch), handed)
        finally:
            self._closed = True
            db.close()

    def _next(self) -> list[Handed] | None:
        first = self._queue.get()
        if first is None:
            return None
        handed = [first]
        while sum(len(each.batch) for each in handed) < BATCH:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._queue.put(None)
                break
            handed.append(more)
        return handed

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """Before a transaction: if all of the log has been copied, that one writes the log anew, and waits for it."""
        if self._transactions < CHECKPOINT:
            return
        self._transactions = 0
        try:
            db.execute("PRAGMA wal_checkpoint")
        except sqlite3.Error as error:  # nothing is lost: it is all in the log, which grows
            log("store").warning("the log could not be copied into its file", path=self._path, error=error)

    def _refuse_all(self, error: BaseException) -> None:
        """The file cannot be opened: everybody who waits, or comes later, is told."""
        while (handed := self._queue.get()) is not None:
            self._answer_from_afar(_refusing(handed.batch, problem(self._path, error)), [handed])

    def _answer_from_afar(self, answers: Answers, handed: list[Handed]) -> None:
        for loop in {future.get_loop() for future, _, _ in answers}:
            theirs = [each for each in answers if each[0].get_loop() is loop]
            done = [each.done for each in handed if each.batch[0][1].get_loop() is loop]
            with contextlib.suppress(RuntimeError):  # it is closed, and nobody waits any more
                loop.call_soon_threadsafe(_take, theirs, done)  # one call for all: each one wakes it up

    def _end(self) -> None:
        self._thread.join()
        if self._db is not None:
            self._db.close()

    # --- either way -----------------------------------------------------------------------------------------

    def _commit(self, db: sqlite3.Connection, batch: list[Waiting]) -> Answers:
        answers: Answers = []
        self._transactions += 1
        try:
            if not db.in_transaction:
                db.execute("BEGIN IMMEDIATE")
            if len(batch) == 1:
                return [(batch[0][1], *self._alone(db, batch[0][0]))]
            for work, future in batch:
                answers.append((future, *self._attempt(db, work)))
            db.execute("COMMIT")
        except Exception as error:  # a defect of ours too: whoever waits must hear of it, and the next must not
            if db.in_transaction:
                db.execute("ROLLBACK")
            return _refusing(batch, problem(self._path, error) if isinstance(error, sqlite3.Error) else error)
        return answers

    def _alone(self, db: sqlite3.Connection, work: Work) -> tuple[Any, BaseException | None]:
        """The only piece of a transaction, which most are."""
        try:
            result = work(db)
        except HutchError as error:
            db.execute("ROLLBACK")
            return None, error
        db.execute("COMMIT")
        return result, None

    def _attempt(self, db: sqlite3.Connection, work: Work) -> tuple[Any, BaseException | None]:
        """One of several, which its failure spares."""
        db.execute("SAVEPOINT one")
        try:
            result = work(db)
        except (HutchError, sqlite3.Error) as error:
            if not db.in_transaction:  # a full disk ends the whole transaction (sqlite.org/lang_transaction.html)
                raise
            db.execute("ROLLBACK TO one")
            db.execute("RELEASE one")
            return None, problem(self._path, error)
        db.execute("RELEASE one")
        return result, None


def _connect(path: Path, *, patience: float) -> sqlite3.Connection:
    db = opened(path, patience=patience)
    try:
        db.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        db.close()
        raise
    return db


def _refusing(batch: list[Waiting], refusal: Exception) -> Answers:
    return [(future, None, refusal) for _, future in batch]


def _take(answers: Answers, done: list[Callable[[], None]]) -> None:
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


def _nothing() -> None:
    """Of work that the loop has not counted."""
