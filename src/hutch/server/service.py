"""What all handlers of one server share: the keeper, the keys, what happened lately, and whether the end is near."""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hutch.config import Config
from hutch.errors import HutchError, Unavailable
from hutch.keeper.keeper import Keeper
from hutch.keeper.keys import Keys
from hutch.keeper.questions import Questions
from hutch.logs import redact
from hutch.model.boxes import Event
from hutch.model.record import Record
from hutch.policy.rights import Rights
from hutch.server.background_creates import Creations
from hutch.server.budget import Budget
from hutch.server.handlers.image_pulls import Pulls
from hutch.server.heartbeats import Presence
from hutch.server.http.connections import Connections, descriptors
from hutch.server.idempotency import Operations
from hutch.server.metrics import Metrics
from hutch.server.spool import Spool

if TYPE_CHECKING:
    from hutch.server.handlers.mcp_hosting import Hostings

T = TypeVar("T")

ERRORS_KEPT = 500


class Failure(Record, frozen=True, kw_only=True):
    """One error that a caller got, as `/v1/errors` shows it (B30)."""

    at: float
    request: str
    op: str
    status: int
    code: str
    message: str
    box: str
    owner: str


class Bell:
    """Wakes whoever waits for the next event of any box."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Set at the next event. Taken before the store is read, no event is missed."""
        return self._next

    def ring(self, _: Event) -> None:
        rung, self._next = self._next, asyncio.Event()
        rung.set()


class Service:
    """One server's parts. Made inside the running event loop."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.keys = Keys(keeper.store)
        self.metrics = Metrics(keeper)
        self.creations = Creations(keeper)
        self.budget = Budget(self.config.server)
        self.metrics.held = self.budget.told
        self.operations = Operations(self.budget)
        self.spool = Spool(self.config.state_dir / "spool")
        self.connections = Connections(self.config.server.max_connections, descriptors())
        self.presence = Presence()
        self.questions = Questions(self.config.server.answer_sec)
        self.pulls = Pulls()
        self.hostings: Hostings
        """MCP servers in boxes; set by whoever serves, since they need all the rest."""
        self.bell = Bell()
        self.draining = asyncio.Event()
        """Set when the server was told to end: streams and waits that never end by themselves end now."""
        self._waiting: set[asyncio.Timeout] = set()
        self.failures: deque[Failure] = deque(maxlen=ERRORS_KEPT)
        self.started_at = time.time()
        self._rights: dict[str, Rights] = {}
        keeper.states.listeners += [self.bell.ring, self.creations.heard, self.presence.heard]
        keeper.states.witnesses.append(self.metrics.saw)
        keeper.operations.listeners.append(self.metrics.ended)

    def drain(self) -> None:
        """The end is near: whoever only waits is told now."""
        self.draining.set()
        for scope in self._waiting:
            scope.reschedule(0.0)

    async def unless_draining(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that only waits for something: given up when the server is about to end, so that the caller can go
        on waiting at the next one."""
        try:
            # No task beside it: streams pass here with every piece.
            async with asyncio.timeout(0.0 if self.draining.is_set() else None) as scope:
                self._waiting.add(scope)
                try:
                    return await work
                finally:
                    self._waiting.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
        raise Unavailable(
            "the server is about to end", retry_after=1.0, details={"draining": True},
            remedy="ask again when it is back",
        )  # fmt: skip

    def rights_of(self, owner: str) -> Rights:
        """What the owner's keys may ask for; the configuration stays the same as long as a server runs."""
        if owner not in self._rights:
            self._rights[owner] = self.config.rights_of(owner)
        return self._rights[owner]

    @property
    def config(self) -> Config:
        return self.keeper.config

    def failed(self, error: HutchError, *, status: int, op: str, request: str, box: str, owner: str) -> None:
        """Remember an error that a caller was told."""
        self.metrics.failures[error.code] += 1
        told = Failure(
            at=time.time(), request=request, op=op, status=status, code=error.code, message=redact(error.message),
            box=redact(box), owner=owner,
        )  # fmt: skip
        self.failures.append(told)
