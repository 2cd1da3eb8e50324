"""`sudo` in sandboxes that stand on a base image: its part that is root, started for callers who may act as root.

The program is `images/programs/sudo.py`. It is started before the first process of a sandbox, because only the server
can give a process root's rights; the images of others, and the machine's own programs, have their own `sudo` or none.
"""

from hutch.errors import HutchError
from hutch.images import base
from hutch.keeper.access.handles import BoxHandle
from hutch.logs import log
from hutch.policy import rights

NAME = "hutch-sudo"
"""The name of its job, which clients do not see among the processes."""
MAX_KNOWN = 10_000
_IMAGES = frozenset(f"oci:{name}" for name in base.PACKAGES)


class Sudo:
    """Knows for which sandboxes it was started since this server began."""

    def __init__(self) -> None:
        self._started: dict[str, None] = {}

    async def ensure(self, box: BoxHandle) -> None:
        """Start root's part of sudo if this sandbox has a use for it and the caller may act as root."""
        if box.spec.image not in _IMAGES or box.id in self._started or not rights.current().root:
            return
        if len(self._started) >= MAX_KNOWN:
            del self._started[next(iter(self._started))]
        self._started[box.id] = None
        try:
            await box.start(("/usr/bin/sudo", "--serve"), user="root", name=NAME, open_stdin=False)
        except HutchError as error:  # The command itself may need no root.
            log("server").info("no sudo in this sandbox", box=box.id, why=error.message)

    def forget(self, sandbox: str) -> None:
        """Start it again at the next process: the sandbox's processes were ended."""
        self._started.pop(sandbox, None)
