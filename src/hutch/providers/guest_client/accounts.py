"""The accounts of a box's own /etc/passwd, by which a command may name the user that it runs as."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from hutch.errors import FileDenied, FileMissing, NotRunnable, Refused

if TYPE_CHECKING:
    from hutch.api import Files

_PASSWD = "/etc/passwd"
_MAX_PASSWD_BYTES = 1 << 20
_MAX_ID = 1 << 16


class Account(NamedTuple):
    uid: str
    env: Mapping[str, str]
    """The variables that show a command whose account it runs in."""


async def find_account(files: "Files", name: str) -> Account:
    """Find the account of this name in a box. Whatever the file says, the id is one of the box's own.

    Raises:
        NotRunnable: The box has no such account.
        Refused: It is root's under another name. Threat: a caller who may not use root could name it otherwise.
    """
    try:
        text = (await files.read(_PASSWD, limit=_MAX_PASSWD_BYTES)).decode(errors="replace")
    except (FileMissing, FileDenied):
        text = ""
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) < 6 or fields[0] != name or not (fields[2].isascii() and fields[2].isdecimal()):
            continue
        uid = int(fields[2][:6])
        if uid == 0:
            raise Refused(f"{name!r} is the box's root under another name", op="run", remedy="name `root` itself")
        if uid < _MAX_ID:
            return Account(str(uid), {"HOME": fields[5] or "/", "USER": name, "LOGNAME": name})
    raise NotRunnable(
        f"the box has no user {name!r}",
        op="run",
        details={"what": "user"},
        remedy="name `user`, `root`, a number, or an account of the box's /etc/passwd",
    )
