"""Opening a SQLite file of ours: for this user alone, and also at the moment in which somebody else makes it."""

import os
import secrets
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

_MOMENT = 0.002


def opened(path: Path, *, patience: float, synced: bool = False) -> sqlite3.Connection:
    """A connection to the file, with a log. It waits `patience` seconds for other writers, here and later. `synced`:
    what is committed is on the disk."""
    _make_private(path)
    db = sqlite3.connect(path, isolation_level=None, timeout=patience, check_same_thread=False)
    try:
        _keep_log(db, time.monotonic() + patience)
        _close(path)
        db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
        db.execute("PRAGMA cache_size = -512")  # kB: the rest of a growing file need not stay in memory
    except BaseException:
        db.close()
        raise
    return db


def _make_private(path: Path) -> None:
    """A new file is this user's alone from its first moment, whatever the umask.

    It is made under another name and linked, because a descriptor of it must not be closed once it can be found: that
    would drop the locks that other connections of this process hold on it (fcntl(2), sqlite.org/howtocorrupt.html).
    """
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with suppress(OSError):  # it is there by now; or there are no hard links here, and `_close` does it
            os.link(draft, path)
    finally:
        draft.unlink()


def _close(path: Path) -> None:
    """Nobody else may read the file and what SQLite keeps beside it: earlier releases left that to the umask."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            found = path.with_name(name).stat()
            if found.st_mode & 0o077 and found.st_uid == os.geteuid():
                path.with_name(name).chmod(0o600)


def _keep_log(db: sqlite3.Connection, deadline: float) -> None:
    """The first who opens a new file makes it one with a log. Whoever comes in that moment is refused at once: SQLite
    waits there for nobody, whatever its timeout."""
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(_MOMENT)
        else:
            return
