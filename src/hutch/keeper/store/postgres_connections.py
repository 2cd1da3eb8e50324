"""Connections to one PostgreSQL database: a few threads, reconnection within a timeout, and typed errors.

Each piece of work runs in a thread with a connection of its own. When the server goes away, the work is tried again on
a new connection until the timeout: a server that restarts is a pause, and one that stays away is `Unavailable`.
"""

import asyncio
import queue
import select
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from hutch.errors import ConfigError, Invalid, Unavailable
from hutch.keeper.store.schema import POSTGRES_STEPS, newer, statements

T = TypeVar("T")
Connection = psycopg.Connection[tuple[object, ...]]
Work = Callable[[Connection, bool], T]
"""The flag says that an earlier attempt may have succeeded although its answer was lost."""

THREADS = 4
TIMEOUT_SECONDS = 10.0
SCHEMA_LOCK = 0x48757463
"""Advisory locks of a database share one space of numbers; these two spell "Hutc" and "Hutd"."""
EVENTS_LOCK = 0x48757464
_SETTINGS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "tcp_user_timeout": "15000",
}


class Connections:
    """A pool that is created without touching the server; the first work connects and migrates the schema."""

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise ConfigError("the setting `store` is not a PostgreSQL address", remedy=str(error).strip()) from error
        self._settings = {**_SETTINGS, "application_name": "hutch", **given}
        self.name = f"PostgreSQL {given.get('host', 'local')}/{given.get('dbname', '')}"
        """The address without its password, for messages."""
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hutch-store")
        self._idle: queue.LifoQueue[Connection] = queue.LifoQueue()
        self._ever_connected = False
        self._closed = False
        self.answer_lost = False
        """True after the answer to some work was lost: the database may hold more than a caller believes."""

    async def run(self, work: Work[T]) -> T:
        if self._closed:
            raise Unavailable(f"the store {self.name} is closed", retryable=False)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._retry, work)

    async def close(self) -> None:
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def _retry(self, work: Work[T]) -> T:
        deadline = time.monotonic() + self._timeout
        pause, retried = 0.05, False
        while True:
            try:
                return self._attempt(work, retried)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                # An address that has never worked is more likely wrong than its server is restarting.
                if not self._ever_connected or time.monotonic() + pause > deadline:
                    self.answer_lost = True
                    raise Unavailable(
                        f"the store {self.name} cannot be reached: {str(error).strip()}",
                        retry_after=5.0,
                        remedy="check the setting `store`, and that the server runs",
                    ) from error
            except psycopg.DataError as error:
                raise Invalid(f"the store {self.name} cannot hold this: {error}") from error
            except psycopg.Error as error:
                raise Unavailable(f"the store {self.name} refused: {str(error).strip()}", retryable=False) from error
            retried = True
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _attempt(self, work: Work[T], retried: bool) -> T:
        connection = self._take()
        try:
            return work(connection, retried)
        finally:
            if connection.broken or connection.closed:
                connection.close()
            else:
                self._idle.put(connection)

    def _take(self) -> Connection:
        with suppress(queue.Empty):
            while True:
                connection = self._idle.get_nowait()
                # An idle connection has something to read only when its server has gone away.
                if not _readable(connection.fileno()):
                    return connection
                connection.close()
        connection = psycopg.connect(**self._settings, autocommit=True)  # type: ignore[arg-type]
        if not self._ever_connected:
            try:
                migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._ever_connected = True
        return connection


def _readable(fd: int) -> bool:
    """Whether the descriptor has something to read; poll, because select ends at descriptor 1024."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def migrate(connection: Connection) -> None:
    """Bring the tables up to date, one keeper at a time.

    They are in a schema of their own, so that Hutch can share an application's database.
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        row = connection.execute("SELECT to_regclass('hutch.schema_version')").fetchone()
        if row is None or row[0] is None:
            connection.execute("CREATE SCHEMA IF NOT EXISTS hutch")
            connection.execute("CREATE TABLE hutch.schema_version (version INTEGER NOT NULL)")
            connection.execute("INSERT INTO hutch.schema_version VALUES (0)")
        found = connection.execute("SELECT version FROM hutch.schema_version").fetchone()
        version = int(str(found[0])) if found else 0
        if version > len(POSTGRES_STEPS):
            raise newer(version, len(POSTGRES_STEPS))
        connection.execute("SET LOCAL search_path = hutch")
        for step in POSTGRES_STEPS[version:]:
            for statement in statements(step):
                connection.execute(statement.encode())
        connection.execute("UPDATE hutch.schema_version SET version = %s", (len(POSTGRES_STEPS),))
