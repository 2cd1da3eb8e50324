"""Connections to one PostgreSQL database: a few threads, reconnection, patience, and typed errors.

A statement runs in a thread with a connection of its own. When the server goes away, the same work is tried again on a
new connection for a while; so a server that restarts is a pause, and one that stays away is `Unavailable`.
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
"""The flag says that an earlier try may have happened, its answer lost."""

THREADS = 4
PATIENCE_SECONDS = 10.0
SCHEMA_LOCK = 0x48757463
"""Advisory locks share one space of numbers in a database: these spell "Hutc" and "Hutd"."""
EVENTS_LOCK = 0x48757464
_NO_ANSWER = {"connect_timeout": "10", "keepalives_idle": "10", "keepalives_interval": "5", "tcp_user_timeout": "15000"}


class Connections:
    """Made without touching the server; the first work connects, and brings the schema up to date."""

    def __init__(self, url: str, patience: float = PATIENCE_SECONDS) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise ConfigError("the setting `store` is not a PostgreSQL address", remedy=str(error).strip()) from error
        self._settings = {**_NO_ANSWER, "application_name": "hutch", **given}
        self.name = f"PostgreSQL {given.get('host', 'local')}/{given.get('dbname', '')}"
        """Without the password."""
        self._patience = patience
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hutch-store")
        self._idle: queue.LifoQueue[Connection] = queue.LifoQueue()
        self._reached = False
        self._closed = False
        self.unsure = False
        """The answer to some work was lost for good: what the store holds may be ahead of what a caller believes."""

    async def run(self, work: Work[T]) -> T:
        if self._closed:
            raise Unavailable(f"the store {self.name} is closed", retryable=False)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._patiently, work)

    async def close(self) -> None:
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def _patiently(self, work: Work[T]) -> T:
        deadline = time.monotonic() + self._patience
        pause, again = 0.05, False
        while True:
            try:
                return self._once(work, again)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                # An address that never worked is more likely wrong than restarting.
                if not self._reached or time.monotonic() + pause > deadline:
                    self.unsure = True
                    raise Unavailable(
                        f"the store {self.name} cannot be reached: {str(error).strip()}",
                        retry_after=5.0,
                        remedy="check the setting `store`, and that the server runs",
                    ) from error
            except psycopg.DataError as error:
                raise Invalid(f"the store {self.name} cannot hold this: {error}") from error
            except psycopg.Error as error:
                raise Unavailable(f"the store {self.name} refused: {str(error).strip()}", retryable=False) from error
            again = True
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _once(self, work: Work[T], again: bool) -> T:
        connection = self._take()
        try:
            return work(connection, again)
        finally:
            if connection.broken or connection.closed:
                connection.close()
            else:
                self._idle.put(connection)

    def _take(self) -> Connection:
        with suppress(queue.Empty):
            while True:
                connection = self._idle.get_nowait()
                # Nothing comes unasked, but the news that the server went away.
                if not _readable(connection.fileno()):
                    return connection
                connection.close()
        connection = psycopg.connect(**self._settings, autocommit=True)  # type: ignore[arg-type]
        if not self._reached:
            try:
                migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._reached = True
        return connection


def _readable(fd: int) -> bool:
    """By poll: select ends at descriptor 1024."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def migrate(connection: Connection) -> None:
    """Tables in a schema of their own, so that an application's database can be shared; one keeper at a time."""
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
