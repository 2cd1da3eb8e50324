"""What all handlers of one server share: the keeper, the keys, metrics, recent errors, and whether it is draining."""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hutch.config import Config
from hutch.errors import HutchError, Unavailable
from hutch.keeper.keeper import Keeper
from hutch.keeper.keys import Key, Keys, Role
from hutch.keeper.questions import Questions
from hutch.logs import redact
from hutch.model.boxes import Event
from hutch.model.record import Record
from hutch.policy.rights import UNBOUND, Rights, narrowed
from hutch.server.dashboard.readings import EVENTS_KEPT, History, Recent, Usages
from hutch.server.dashboard.sign_ins import SignIns
from hutch.server.http.connections import Connections, descriptors
from hutch.server.metrics import Metrics
from hutch.server.previews.issuer import Previews
from hutch.server.state.budget import Budget
from hutch.server.state.image_pulls import Pulls
from hutch.server.state.operations import Operations
from hutch.server.state.presence import Presence
from hutch.server.state.spool import Spool

if TYPE_CHECKING:
    from hutch.server.handlers.mcp_hosting import Hostings

T = TypeVar("T")

ERRORS_KEPT = 500


class Failure(Record, frozen=True, kw_only=True):
    """One error that a caller got, as `/v1/errors` returns it."""

    at: float
    request: str
    op: str
    status: int
    code: str
    message: str
    box: str
    owner: str


class EventSignal:
    """Wakes the tasks that wait for the next event of any box."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """An asyncio event that is set at the next box event; take it before reading the store to miss none."""
        return self._next

    def notify(self, _: Event) -> None:
        current, self._next = self._next, asyncio.Event()
        current.set()


class Service:
    """The parts of one server; created inside the running event loop."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.keys = Keys(keeper.store)
        self.sign_ins = SignIns(keeper.store, self.keys)
        self.metrics = Metrics(keeper)
        self.budget = Budget(self.config.server)
        self.metrics.held = self.budget.usage
        self.operations = Operations(self.budget)
        self.spool = Spool(self.config.state_dir / "spool")
        self.connections = Connections(
            self.config.server.max_connections, descriptors(), unfinished_per_owner=self.budget.small.per_key,
            unfinished=self.budget.small.total,
        )  # fmt: skip
        self.presence = Presence()
        self.questions = Questions(self.config.server.answer_sec)
        self.pulls = Pulls()
        self.previews = Previews(keeper, frozenset(host.lower() for host in self.config.server.hosts))
        self.hostings: Hostings
        """MCP servers in boxes; set after construction, because they need the service."""
        self.event_signal = EventSignal()
        self.recent_events: Recent[Event] = Recent(EVENTS_KEPT)
        self.history = History(self.metrics)
        self.usages = Usages(keeper)
        self.draining = asyncio.Event()
        """Set when the server begins to stop: streams and waits that never end by themselves end then."""
        self.stop_requested: asyncio.Event | None = None
        """Set to end the server; None in a process that serves its own boxes to others."""
        self._waiting: set[asyncio.Timeout] = set()
        self.failures: deque[Failure] = deque(maxlen=ERRORS_KEPT)
        self.started_at = time.time()
        self._rights: dict[str, Rights] = {}
        keeper.states.listeners += [self.recent_events.add, self.event_signal.notify, self.presence.on_event]
        keeper.operations.listeners.append(self.metrics.on_receipt)

    def drain(self) -> None:
        """Begin to stop: end every request that only waits."""
        self.draining.set()
        for scope in self._waiting:
            scope.reschedule(0.0)

    async def unless_draining(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that only waits; Unavailable when the server begins to stop, so that the caller can retry later."""
        try:
            # This creates no task, because streams come here with every piece.
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
            "the server is stopping", retry_after=1.0, details={"draining": True},
            remedy="retry when it is back",
        )  # fmt: skip

    def rights_of(self, owner: str) -> Rights:
        """The rights of the owner's keys; cached, because the configuration does not change while a server runs."""
        if owner not in self._rights:
            self._rights[owner] = self.config.rights_of(owner)
        return self._rights[owner]

    def rights_of_key(self, key: Key) -> Rights:
        """The rights of a key; an admin acts for the operator and is not restricted."""
        return UNBOUND if key.role is Role.ADMIN else narrowed(self.rights_of(key.owner), key.id, key.rights)

    @property
    def config(self) -> Config:
        return self.keeper.config

    def record_failure(self, error: HutchError, *, status: int, op: str, request: str, box: str, owner: str) -> None:
        """Record an error that a caller got."""
        self.metrics.failures[error.code] += 1
        failure = Failure(
            at=time.time(), request=request, op=op, status=status, code=error.code, message=redact(error.message),
            box=redact(box), owner=owner,
        )  # fmt: skip
        self.failures.append(failure)
