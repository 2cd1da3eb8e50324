"""What the door does with boxes as sandboxes (clocks, pauses, sudo), and what it remembers between requests."""

import asyncio
import time

from hutch.errors import HutchError, Unavailable
from hutch.images import base
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.health import CHECK_SECONDS
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.store.open_store import open_key
from hutch.logs import log
from hutch.model.spec import TtlAction
from hutch.policy import rights
from hutch.server.e2b.control.shapes import DEFAULT_TIMEOUT
from hutch.server.e2b.credentials import Tokens
from hutch.server.e2b.labels import SESSION, TEMPLATE, TIMEOUT
from hutch.server.e2b.streams import Streams
from hutch.server.keyed_boxes import KeyedBoxes
from hutch.server.service import Service

MAX_ENDED = 10_000
"""How many ended sandboxes are remembered. Their host names then answer that the sandbox has ended."""
SUDO_JOB = "hutch-sudo"
"""The name of the job that is root's part of sudo. Clients do not see it among the processes."""
MAX_SUDO = 10_000
"""Sandboxes whose sudo is remembered as started."""
_SUDO_IMAGES = frozenset(f"oci:{name}" for name in base.PACKAGES)


class Sandboxes:
    """The door's state between requests. A restart may lose all of it without harm, besides open connections."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.keeper = service.keeper
        self.tokens = Tokens(open_key(service.config))
        self.streams = Streams()
        self.sudo = Sudo()
        self.ending: set[str] = set()
        """Sandboxes that are being killed. A client whose stream was cut asks at once, and must not find them alive."""
        self.ended: dict[str, None] = {}
        """Sandboxes that have ended, the oldest first. A restart forgets them."""
        service.keeper.teardown.destroyed_hooks.append(self._remember)
        self.readers = KeyedBoxes(service.keeper)
        """The boxes that read and write the content of volumes."""

    async def _remember(self, record: BoxRecord) -> None:
        if TEMPLATE in record.spec.labels:
            self.ended[record.id] = None
            if len(self.ended) > MAX_ENDED:
                del self.ended[next(iter(self.ended))]

    async def resume(self, live: Live, timeout: float | None = None) -> None:
        """Let a paused sandbox run again, and give it the time that it was created with."""
        given = live.record.spec.labels.get(TIMEOUT, "")
        seconds = timeout if timeout is not None else float(given) if given else DEFAULT_TIMEOUT
        await self.set_end(live, time.time() + seconds)
        await self.keeper.pauser.resume(live)
        if live.record.spec.ttl_action is TtlAction.HALT:
            self.sudo.forget(live.record.id)

    async def set_end(self, live: Live, at: float) -> None:
        """Let the sandbox end at a Unix time; 0 for never."""
        await self.keeper.updater.set_ttl(live, max(1.0, at - live.record.created_at) if at else 0.0)

    async def pause(self, live: Live, *, halt: bool = False) -> None:
        """Freeze the sandbox without an end. What is connected to it is cut off, as by a machine that goes to sleep.

        With `halt` its processes end first.
        """
        await self.streams.cut(live.record.id)
        await self.keeper.pauser.pause(live, "paused by an E2B client", halt=halt)
        if halt:
            self.sudo.forget(live.record.id)
        await self.set_end(live, 0.0)

    async def check_guest(self, live: Live) -> None:
        """Raise Unavailable unless the guest of the sandbox answers."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await live.running.check()
        except (HutchError, TimeoutError) as error:
            raise Unavailable(
                "the sandbox was not paused, because it does not answer",
                op="pause",
                remedy="kill it, or do not ask for this",
            ) from error

    async def relabel(
        self, live: Live, labels: dict[str, str], *, ttl_sec: float, action: TtlAction = TtlAction.DESTROY
    ) -> None:
        """Replace the labels and the end that a new fork has taken over from its source."""
        updater = self.keeper.updater
        await updater.set_labels(live, labels)
        await updater.set_ttl(live, ttl_sec, action)
        if live.record.spec.idle_timeout_sec:
            await updater.change(live, SESSION, None, 0.0, {})


class Sudo:
    """Root's part of `sudo` in sandboxes on a base image, started for callers who may act as root.

    The program is `images/programs/sudo.py`. Only the server can give a process root's rights, so it starts this part
    before the first process of a sandbox. Other images, and the machine's own programs, have their own `sudo` or none.
    """

    def __init__(self) -> None:
        self._started: dict[str, None] = {}
        """Sandboxes for which it was started since this server began, the oldest first."""

    async def ensure(self, box: BoxHandle) -> None:
        """Start root's part unless it runs, if this sandbox has a use for it and the caller may act as root."""
        if box.spec.image not in _SUDO_IMAGES or box.id in self._started or not rights.current().root:
            return
        if len(self._started) >= MAX_SUDO:
            del self._started[next(iter(self._started))]
        self._started[box.id] = None
        try:
            await box.start(("/usr/bin/sudo", "--serve"), user="root", name=SUDO_JOB, open_stdin=False)
        except HutchError as error:  # The command itself may need no root.
            log("server").info("no sudo in this sandbox", box=box.id, why=error.message)

    def forget(self, sandbox: str) -> None:
        """Start it again at the next process, because the sandbox's processes were ended."""
        self._started.pop(sandbox, None)
