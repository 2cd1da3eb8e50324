"""A PostgreSQL server for the tests: the first test that needs it starts it, as an ordinary user, on a Unix socket."""

import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

PATIENCE = 60.0
SETTINGS = {
    "listen_addresses": "", "fsync": "off", "full_page_writes": "off",
    "max_connections": "100", "shared_buffers": "16MB", "autovacuum": "off", "shared_memory_type": "mmap",
    "dynamic_shared_memory_type": "mmap", "max_wal_senders": "0", "wal_level": "minimal",
}  # fmt: skip
_NAMES = itertools.count()


class Server:
    """One cluster in a directory of its own. PostgreSQL refuses to run as root, so `nobody` runs it then."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = directory / "data"
        self._programs = Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1])
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(directory, self._user.pw_uid, self._user.pw_gid)
        subprocess.run(
            [self._programs / "initdb", "-D", self._data, "-U", "hutch", "-A", "trust", "-N", "-E", "UTF8",
             "--locale=C", "--no-instructions"],
            check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, **self._as_user(),
        )  # fmt: skip

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://hutch@/{database}?host={self._directory}"

    def start(self) -> None:
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "QUIT", self._programs / "postgres", "-D", self._data, "-k",
                 self._directory, *settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_user(),
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self._directory / "log").read_text()) from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop at once, without waiting for clients, as when a machine goes away."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT)
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process = None

    def freeze(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT to every process of the server: it stays there, and answers nobody."""
        assert self._process is not None
        own = [self._process.pid, *_children(self._process.pid)]
        for pid in own:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database and yield its address."""
        name = f"test_{next(_NAMES)}"
        self._administer(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    def _administer(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _as_user(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"cwd": "/", "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}}
        if self._user is None:
            return plain
        return plain | {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def running() -> Iterator[Server]:
    # It is directly below /tmp, because the path of a Unix socket must be short.
    directory = Path(tempfile.mkdtemp(prefix="hpg-", dir="/tmp"))
    try:
        server = Server(directory)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for each test process; the test is skipped with a reason where PostgreSQL is not installed."""
    if not glob.glob("/usr/lib/postgresql/*/bin/initdb"):
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running() as server:
        yield server


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """The address of an empty database."""
    with postgres.database() as url:
        yield url
