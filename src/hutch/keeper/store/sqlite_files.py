"""SQLite files: opening one safely, and turning its errors into ours.

A file is readable by this user only, and may be opened while another process is creating it.
"""

import os
import secrets
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from hutch.errors import HutchError, Unavailable

_RETRY_SECONDS = 0.002

_REMEDIES = {
    "SQLITE_FULL": "free space on the file system of {path}",
    "SQLITE_IOERR": "free space on the file system of {path}; if there is some, the kernel's log tells more",
    "SQLITE_READONLY": "make {path} and its directory writable for this user, or set HUTCH_STATE_DIR to another",
    "SQLITE_CANTOPEN": "make {path} and its directory writable for this user, or set HUTCH_STATE_DIR to another",
    "SQLITE_BUSY": "try again: another process is writing to {path}",
    "SQLITE_CORRUPT": "move {path} aside; `hutch prune` then removes boxes that no record knows",
    "SQLITE_NOTADB": "move {path} aside; `hutch prune` then removes boxes that no record knows",
}


def open_database(path: Path, *, timeout: float, synced: bool = False) -> sqlite3.Connection:
    """Open the file in WAL mode. Each statement waits up to `timeout` seconds for other writers.

    With `synced`, a commit returns only once it is on the disk.
    """
    _make_private(path)
    db = sqlite3.connect(path, isolation_level=None, timeout=timeout, check_same_thread=False)
    try:
        _enable_wal(db, time.monotonic() + timeout)
        _restrict_permissions(path)
        db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
        db.execute("PRAGMA cache_size = -512")  # in kB, so that a growing file does not fill memory
    except BaseException:
        db.close()
        raise
    return db


def _make_private(path: Path) -> None:
    """Create a new file that only this user can read from its first moment, whatever the umask.

    The file is created under another name and then linked: closing a descriptor of the final name would drop the locks
    that other connections of this process hold on it (fcntl(2), sqlite.org/howtocorrupt.html).
    """
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with suppress(OSError):  # it exists by now, or hard links do not work here: `_restrict_permissions` follows
            os.link(draft, path)
    finally:
        draft.unlink()


def _restrict_permissions(path: Path) -> None:
    """Make the file and SQLite's files beside it private: earlier releases left their mode to the umask."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            found = path.with_name(name).stat()
            if found.st_mode & 0o077 and found.st_uid == os.geteuid():
                path.with_name(name).chmod(0o600)


def _enable_wal(db: sqlite3.Connection, deadline: float) -> None:
    """Switch the file to WAL mode, and retry while another process does the same.

    SQLite refuses that statement at once when the file is locked, whatever the connection's timeout.
    """
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def store_error(path: Path, error: BaseException) -> HutchError:
    """Turn an error of SQLite into Unavailable with a remedy; an error of ours stays as it is."""
    if isinstance(error, HutchError):
        return error
    name = str(getattr(error, "sqlite_errorname", "")) if isinstance(error, sqlite3.Error) else ""
    # An extended name, such as SQLITE_IOERR_WRITE, has the same remedy as its first part.
    remedy = _REMEDIES.get("_".join(name.split("_")[:2]), "")
    return Unavailable(
        f"the store {path} cannot be used: {error}", remedy=remedy.format(path=path), details={"sqlite": name}
    )
