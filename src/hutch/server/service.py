"""What all handlers of one server share: the keeper, the keys, what happened lately, and whether the end is near."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hutch.config import Config
from hutch.errors import HutchError, Unavailable
from hutch.keeper.keeper import Keeper
from hutch.keeper.keys import Keys
from hutch.keeper.questions import Questions
from hutch.logs import redact
from hutch.model.boxes import Event
from hutch.model.capabilities import Capabilities
from hutch.model.record import Record
from hutch.server.creating import Creations
from hutch.server.metrics import Metrics
from hutch.server.operations import Operations
from hutch.server.presence import Presence
from hutch.server.pulling import Pulls

if TYPE_CHECKING:
    from hutch.server.mcp_hosting import Hostings

T = TypeVar("T")

ERRORS_KEPT = 500
TRY_AGAIN_SECONDS = 10.0


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
        self.operations = Operations()
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
        self._unusable: dict[str, tuple[float, Capabilities]] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One probe of an engine at a time; a slow one keeps nobody from asking for another."""
        keeper.states.listeners += [self.bell.ring, self.creations.heard, self.presence.heard]
        keeper.states.witnesses.append(self.metrics.saw)
        keeper.operations.listeners.append(self.metrics.ended)

    async def engine(self, name: str = "") -> Capabilities:
        """What an engine can do; one that cannot even be asked is not usable. One that was not usable is tried again
        after a while only: anybody may ask whether we are ready, and each try makes a box."""
        name = name or self.config.provider
        known = self._unusable.get(name)
        if known is not None and time.monotonic() - known[0] < TRY_AGAIN_SECONDS:
            return known[1]
        async with self._asking[name]:
            found = await self.keeper.engines.asked(name)
            if found.usable:
                self._unusable.pop(name, None)
            else:
                self._unusable[name] = (time.monotonic(), found)
        return found

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
