"""What all handlers of one server share: the keeper, the keys, what happened lately, and whether the end is near."""

import asyncio
import time
from collections import deque

from hutch.config import Config
from hutch.errors import HutchError
from hutch.keeper.keeper import Keeper
from hutch.keeper.keys import Keys
from hutch.keeper.records import Event
from hutch.logs import redact
from hutch.model.record import Record
from hutch.server.creating import Creations
from hutch.server.metrics import Metrics

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
        self.bell = Bell()
        self.draining = asyncio.Event()
        """Set when the server was told to end: streams and waits that never end by themselves end now."""
        self.failures: deque[Failure] = deque(maxlen=ERRORS_KEPT)
        self.started_at = time.time()
        keeper.states.listeners += [self.bell.ring, self.metrics.heard, self.creations.heard]

    @property
    def config(self) -> Config:
        return self.keeper.config

    def failed(self, error: HutchError, *, status: int, op: str, request: str, box: str, owner: str) -> None:
        """Remember an error that a caller was told."""
        self.metrics.failures[error.code] += 1
        self.failures.append(
            Failure(
                at=time.time(),
                request=request,
                op=op,
                status=status,
                code=error.code,
                message=redact(error.message),
                box=box,
                owner=owner,
            )  # fmt: skip
        )
