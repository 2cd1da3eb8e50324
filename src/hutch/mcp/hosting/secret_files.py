"""Secrets that a server reads from files: put into its box just before its process starts, for its user alone.

They travel as content of files: on no command line, in no environment, and in no layer or volume that outlives the box.
Installers of its packages, which run before, do not see them.
"""

from collections.abc import Mapping

from hutch.api import Box
from hutch.errors import ServerFailed
from hutch.model.mcp import SECRETS_AT, Phase

FILE_MODE = 0o400
_MINE = 'mkdir -p -m 0700 "$1"'
_GIVEN = 'mkdir -p -m 0700 "$1" && chown "$2" "$1"'


async def place(box: Box, contents: Mapping[str, str]) -> None:
    """ServerFailed if the box has no place for them: without its secrets a server is not started."""
    if not contents:
        return
    await _directory(box)
    for name, text in contents.items():
        await box.files.write(f"{SECRETS_AT}/{name}", text, mode=FILE_MODE, parents=False)


async def _directory(box: Box) -> None:
    """The box's own user makes it where it may write to /run; where that is root's, root makes it for him."""
    made = await box.exec(["sh", "-c", _MINE, "sh", SECRETS_AT])
    if made.ok:
        return
    user = (await box.exec(["id", "-u"])).stdout.strip()
    made = await box.exec(["sh", "-c", _GIVEN, "sh", SECRETS_AT, user], user="root")
    if not made.ok:
        raise ServerFailed(
            f"{SECRETS_AT} cannot be made in its box: {made.stderr.strip()[-200:]}", retryable=False,
            remedy="give it a writable root, or pass the secret by env", details={"phase": Phase.PROCESS_START},
        )  # fmt: skip
