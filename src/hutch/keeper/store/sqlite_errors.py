"""What SQLite refuses, as an error of ours: what happened to which file, and what to do about it."""

import sqlite3
from pathlib import Path

from hutch.errors import HutchError, Unavailable

_REMEDIES = {
    "SQLITE_FULL": "free space on the file system of {path}",
    "SQLITE_IOERR": "free space on the file system of {path}; if there is some, the kernel's log tells more",
    "SQLITE_READONLY": "make {path} and its directory writable for this user, or set HUTCH_STATE_DIR to another",
    "SQLITE_CANTOPEN": "make {path} and its directory writable for this user, or set HUTCH_STATE_DIR to another",
    "SQLITE_BUSY": "try again: another process is writing to {path}",
    "SQLITE_CORRUPT": "move {path} aside; `hutch prune` then removes boxes that no record knows",
    "SQLITE_NOTADB": "move {path} aside; `hutch prune` then removes boxes that no record knows",
}


def problem(path: Path, error: BaseException) -> HutchError:
    """Unavailable, unless the error is ours already."""
    if isinstance(error, HutchError):
        return error
    name = str(getattr(error, "sqlite_errorname", "")) if isinstance(error, sqlite3.Error) else ""
    # An extended name, such as SQLITE_IOERR_WRITE, says more than we can advise on.
    remedy = _REMEDIES.get("_".join(name.split("_")[:2]), "")
    return Unavailable(
        f"the store {path} cannot be used: {error}", remedy=remedy.format(path=path), details={"sqlite": name}
    )
