"""Opening a SQLite file of ours, also at the moment in which somebody else makes it."""

import sqlite3
import time
from pathlib import Path

_MOMENT = 0.002


def opened(path: Path, *, patience: float, synced: bool = False) -> sqlite3.Connection:
    """A connection to the file, with a log. It waits `patience` seconds for other writers, here and later. `synced`:
    what is committed is on the disk."""
    db = sqlite3.connect(path, isolation_level=None, timeout=patience, check_same_thread=False)
    try:
        _keep_log(db, time.monotonic() + patience)
        db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
        db.execute("PRAGMA cache_size = -512")  # kB: the rest of a growing file need not stay in memory
    except BaseException:
        db.close()
        raise
    return db


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
