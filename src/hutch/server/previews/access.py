"""Who may reach which port of a box: one table for every door that routes to ports.

A grant opens one port of one box, or all of them, to a visitor who shows its token, or to everybody. A token is signed,
so a wrong one needs no lookup in the table; the grant behind it can be revoked, ends at its time, and ends with its
box.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from hashlib import blake2b

from hutch.errors import Invalid, NotFound, QuotaExceeded, Unauthenticated
from hutch.keeper.store.store import Store
from hutch.model.boxes import Event
from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.server.previews.hosts import PortName

KIND = "preview"
ANY_PORT = 0
MAX_GRANTS = 256
"""Most grants of one box."""
MAX_TTL_SECONDS = 366 * 86400.0
CACHE_SECONDS = 1.0
"""A grant that another server on the same store revoked stops working after this many seconds."""
UNKNOWN_CACHE_SECONDS = 0.05
"""The store is read again for a visitor whom no known grant admits after this many seconds."""
_MAC_BYTES = 24


class Grant(Record, frozen=True, kw_only=True):
    """Access to a port of a box."""

    id: str
    box_id: BoxId
    owner: str
    port: int
    """`ANY_PORT` for all ports of the box."""
    public: bool = False
    created_at: float
    expires_at: float = 0.0
    """Unix time; 0 if it lasts as long as the box."""

    def covers(self, name: PortName, now: float) -> bool:
        in_time = not self.expires_at or now < self.expires_at
        return self.box_id == name.box_id and self.port in (ANY_PORT, name.port) and in_time


class AccessTable:
    """The grants of one server. They are kept in the store, so they outlive a restart."""

    def __init__(self, store: Store, key: bytes) -> None:
        self._store = store
        self._key = key
        self._grants: dict[str, Grant] = {}
        self._read_at = float("-inf")
        self._uses: dict[str, set[asyncio.Timeout]] = {}
        """What runs under each grant, and is ended when it is revoked."""
        self._dropping: set[asyncio.Task[None]] = set()

    async def grant(self, box_id: BoxId, owner: str, port: int, *, public: bool = False, ttl_sec: float = 0.0) -> Grant:
        """Open a port, or `ANY_PORT`, for `ttl_sec` seconds; 0 for as long as the box lives."""
        if not ANY_PORT <= port <= 65535:
            raise Invalid(f"a port is a number from 1 to 65535, not {port}")
        if not 0 <= ttl_sec <= MAX_TTL_SECONDS:
            raise Invalid(f"a preview cannot last {ttl_sec:g} s", remedy="give up to a year, or 0 for the box's life")
        now = time.time()
        mine = [each for each in await self.of_box(box_id) if not each.expires_at or now < each.expires_at]
        if len(mine) >= MAX_GRANTS:
            raise QuotaExceeded(
                f"box {box_id} has {len(mine)} previews, and none has more", remedy="revoke some of them"
            )
        grant = Grant(
            id="p" + secrets.token_hex(8), box_id=box_id, owner=owner, port=port, public=public, created_at=now,
            expires_at=now + ttl_sec if ttl_sec else 0.0,
        )  # fmt: skip
        await self._store.put_note(KIND, grant.id, grant.to_json(), new=True)
        self._grants[grant.id] = grant
        return grant

    def token(self, grant: Grant) -> str:
        """Return the text that opens a grant which is not public."""
        return f"{grant.id}.{self._mac(grant)}"

    def is_token_of(self, grant: Grant, token: str) -> bool:
        """Whether this text is the one that opens the grant."""
        return hmac.compare_digest(self.token(grant).encode(), token.encode("utf-8", "replace"))

    def _mac(self, grant: Grant) -> str:
        signed = f"{grant.id}\0{grant.box_id}\0{grant.port}\0{grant.expires_at!r}".encode()
        return blake2b(signed, key=self._key, digest_size=_MAC_BYTES).hexdigest()

    async def of_box(self, box_id: BoxId) -> tuple[Grant, ...]:
        """Return the grants of a box, oldest first; expired ones are dropped."""
        await self._read()
        mine = [each for each in self._grants.values() if each.box_id == box_id]
        now = time.time()
        for each in mine:
            if each.expires_at and each.expires_at <= now:
                await self._drop(each)
        return tuple(sorted((each for each in mine if each.id in self._grants), key=lambda each: each.created_at))

    async def revoke(self, box_id: BoxId, grant_id: str) -> Grant:
        """End a grant, and every connection that was made under it.

        Raises:
            NotFound: The box has no such grant.
        """
        await self._read()
        grant = self._grants.get(grant_id)
        if grant is None or grant.box_id != box_id:
            raise NotFound(f"box {box_id} has no preview {grant_id}")
        await self._drop(grant)
        return grant

    async def _drop(self, grant: Grant) -> None:
        self._grants.pop(grant.id, None)
        self._end(grant.id)
        await self._store.drop_note(KIND, grant.id)

    async def admit(self, name: PortName, tokens: Iterable[str]) -> Grant:
        """Return the grant under which this port may be reached: by one of these tokens, or because it is public.

        Raises:
            Unauthenticated: There is none.
        """
        tokens = tuple(tokens)
        for allowed_age in (CACHE_SECONDS, UNKNOWN_CACHE_SECONDS):
            if time.monotonic() - self._read_at > allowed_age:
                await self._read()
            if (grant := self._find(name, tokens)) is not None:
                return grant
        raise Unauthenticated(
            f"port {name.port} of this box is not open to you: the link is wrong, has expired or was revoked",
            remedy="ask for a new link: `hutch box url BOX PORT`",
        )

    def _find(self, name: PortName, tokens: tuple[str, ...]) -> Grant | None:
        now = time.time()
        for token in tokens:
            grant = self._opened_by(token)
            if grant is not None and grant.covers(name, now):
                return grant
        return next((each for each in self._grants.values() if each.public and each.covers(name, now)), None)

    def _opened_by(self, token: str) -> Grant | None:
        grant_id, _, mac = token.partition(".")
        grant = self._grants.get(grant_id)
        # The comparison is made even for an unknown id, so that timing does not reveal which ids exist.
        expected = self._mac(grant) if grant is not None else "0" * (2 * _MAC_BYTES)
        return grant if hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace")) else None

    @asynccontextmanager
    async def using(self, grant: Grant) -> AsyncIterator[None]:
        """Run what is done under a grant, at most until it ends. Raises Unauthenticated when it has ended meanwhile."""
        left = max(0.0, grant.expires_at - time.time()) if grant.expires_at else None
        uses = self._uses.setdefault(grant.id, set())
        try:
            async with asyncio.timeout(left) as scope:
                uses.add(scope)
                try:
                    yield
                finally:
                    uses.discard(scope)
                    if not uses and self._uses.get(grant.id) is uses:
                        del self._uses[grant.id]
        except TimeoutError:
            if not scope.expired():
                raise
            raise Unauthenticated("this preview has ended", remedy="ask for a new link") from None

    def end_all(self) -> None:
        """End everything that runs under any grant, because the server stops."""
        for grant_id in tuple(self._uses):
            self._end(grant_id)

    def _end(self, grant_id: str) -> None:
        for use in self._uses.pop(grant_id, ()):
            use.reschedule(0.0)  # A time that has passed.

    def on_event(self, event: Event) -> None:
        """Drop the grants of a box that is gone."""
        if event.kind == "gone" and any(each.box_id == event.box_id for each in self._grants.values()):
            task = asyncio.get_running_loop().create_task(self.forget(event.box_id))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def forget(self, box_id: BoxId) -> None:
        """Drop all grants of a box."""
        for grant in [each for each in self._grants.values() if each.box_id == box_id]:
            await self._drop(grant)

    async def _read(self) -> None:
        begun = time.monotonic()
        notes = await self._store.notes(KIND)
        self._grants = {grant_id: Grant.from_json(body) for grant_id, body in notes.items()}
        self._read_at = begun
