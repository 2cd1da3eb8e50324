"""API keys: who may knock at a server. The store holds a digest of each, never the key itself.

A key is `hutch_ID_SECRET`. The secret has 256 random bits, so one plain SHA-256 is enough: there is nothing to guess,
and a stolen store gives nobody a key.
"""

import hashlib
import hmac
import secrets
import time
from enum import StrEnum

from hutch.errors import Invalid, NotFound
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.store.store import Store
from hutch.model.ids import is_name
from hutch.model.record import Record
from hutch.policy.rights import RightsTable, check_table

KIND = "key"
PREFIX = "hutch"
FRESH_SECONDS = 1.0
"""A key revoked by another process stops working after this long."""

UNKNOWN_SECONDS = 0.05

_NOBODY = hashlib.sha256(b"nobody").hexdigest()


class Role(StrEnum):
    """What a key may do: everything; what its owner's rights allow with its owner's boxes; only look at them (P8)."""

    ADMIN = "admin"
    USER = "user"
    OBSERVER = "observer"


class Key(Record, frozen=True, kw_only=True):
    """One key as it may be shown."""

    id: str
    name: str = ""
    role: Role
    owner: str
    created_at: float
    revoked_at: float | None = None
    rights: RightsTable = RightsTable()
    """What it has of its own: they narrow those of its owner."""


class _Kept(Record, frozen=True, kw_only=True):
    key: Key
    digest: str


class Keys:
    """Creates, lists, revokes and recognises keys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _Kept] = {}
        self._read_at = float("-inf")

    async def create(
        self, role: Role, owner: str = LOCAL_OWNER, name: str = "", rights: RightsTable | None = None
    ) -> tuple[Key, str]:
        """The key's record, and its text, which nobody can get a second time."""
        if not is_name(owner):
            raise Invalid(f"{owner!r} is no name for an owner", remedy="letters, digits, dot, dash, underscore; max 63")
        if len(name) > 200:
            raise Invalid("a key's name has at most 200 characters")
        rights = rights or RightsTable()
        if role is not Role.USER and rights != RightsTable():
            raise Invalid(f"a key of role {role} has no rights of its own", remedy="give it role user, or no rights")
        check_table(rights)
        secret = secrets.token_urlsafe(32)
        key_id = "k" + secrets.token_hex(6)
        key = Key(id=key_id, name=name, role=role, owner=owner, created_at=time.time(), rights=rights)
        kept = _Kept(key=key, digest=_digest(secret))
        await self._store.put_note(KIND, key.id, kept.to_json(), new=True)
        self._known[key.id] = kept
        return key, f"{PREFIX}_{key.id}_{secret}"

    async def all(self) -> tuple[Key, ...]:
        """Oldest first, revoked ones too."""
        await self._read()
        return tuple(sorted((kept.key for kept in self._known.values()), key=lambda key: key.created_at))

    async def get(self, key_id: str) -> Key:
        return (await self._kept(key_id)).key

    async def _kept(self, key_id: str) -> _Kept:
        await self._read()
        kept = self._known.get(key_id)
        if kept is None:
            raise NotFound(f"no key {key_id}", remedy="`hutch key list` shows those there are")
        return kept

    async def revoke(self, key_id: str) -> Key:
        """From now on it opens nothing; revoking twice is fine."""
        kept = await self._kept(key_id)
        if kept.key.revoked_at is None:
            kept = kept.but(key=kept.key.but(revoked_at=time.time()))
            await self._store.put_note(KIND, key_id, kept.to_json())
            self._known[key_id] = kept
        return kept.key

    async def find(self, text: str) -> Key | None:
        """The key that this text is; None if it is none, or a revoked one."""
        prefix, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != PREFIX or not secret:
            return None
        # A key just made elsewhere works at once; a flood of made-up ones does not become a flood of queries.
        if time.monotonic() - self._read_at > (FRESH_SECONDS if key_id in self._known else UNKNOWN_SECONDS):
            await self._read()
        kept = self._known.get(key_id)
        # Compared also when there is no such key, so that the time tells nobody which ids exist.
        same = hmac.compare_digest(_digest(secret), kept.digest if kept else _NOBODY)
        if kept is None or not same or kept.key.revoked_at is not None:
            return None
        return kept.key

    async def _read(self) -> None:
        begun = time.monotonic()
        notes = await self._store.notes(KIND)
        self._known = {key_id: _Kept.from_json(body) for key_id, body in notes.items()}
        self._read_at = begun


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
