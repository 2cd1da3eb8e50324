"""API keys: who may use a server. The store holds a digest of each, never the key itself.

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
CACHE_SECONDS = 1.0
"""A key that another process revoked stops working after this many seconds."""
UNKNOWN_CACHE_SECONDS = 0.05
"""The store is read again for an unknown key after this many seconds."""

_NO_DIGEST = hashlib.sha256(b"nobody").hexdigest()


class Role(StrEnum):
    """What a key may do: everything, use its owner's boxes within the owner's rights, or only observe them."""

    ADMIN = "admin"
    USER = "user"
    OBSERVER = "observer"


class Key(Record, frozen=True, kw_only=True):
    """One key, without its secret."""

    id: str
    name: str = ""
    role: Role
    owner: str
    created_at: float
    revoked_at: float | None = None
    rights: RightsTable = RightsTable()
    """Rights of the key itself, which narrow those of its owner."""


class _StoredKey(Record, frozen=True, kw_only=True):
    key: Key
    digest: str


class Keys:
    """Creates, lists, revokes and recognises keys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _StoredKey] = {}
        self._read_at = float("-inf")

    async def create(
        self, role: Role, owner: str = LOCAL_OWNER, name: str = "", rights: RightsTable | None = None
    ) -> tuple[Key, str]:
        """Return the key's record and its text, which nobody can get a second time."""
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
        stored = _StoredKey(key=key, digest=_digest(secret))
        await self._store.put_note(KIND, key.id, stored.to_json(), new=True)
        self._known[key.id] = stored
        return key, f"{PREFIX}_{key.id}_{secret}"

    async def all(self) -> tuple[Key, ...]:
        """Return all keys, oldest first, with the revoked ones."""
        await self._read()
        return tuple(sorted((stored.key for stored in self._known.values()), key=lambda key: key.created_at))

    async def get(self, key_id: str) -> Key:
        return (await self._stored(key_id)).key

    async def _stored(self, key_id: str) -> _StoredKey:
        await self._read()
        stored = self._known.get(key_id)
        if stored is None:
            raise NotFound(f"no key {key_id}", remedy="`hutch key list` shows those there are")
        return stored

    async def revoke(self, key_id: str) -> Key:
        """Revoke a key; revoking it twice is fine."""
        stored = await self._stored(key_id)
        if stored.key.revoked_at is None:
            stored = stored.but(key=stored.key.but(revoked_at=time.time()))
            await self._store.put_note(KIND, key_id, stored.to_json())
            self._known[key_id] = stored
        return stored.key

    async def find(self, text: str) -> Key | None:
        """Return the key that has this text; None if there is none, or it is revoked."""
        prefix, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != PREFIX or not secret:
            return None
        await self._refresh(key_id)
        stored = self._known.get(key_id)
        # The comparison is made even for an unknown id, so that timing does not reveal which ids exist.
        same = hmac.compare_digest(_digest(secret), stored.digest if stored else _NO_DIGEST)
        if stored is None or not same or stored.key.revoked_at is not None:
            return None
        return stored.key

    async def known(self, key_id: str) -> Key | None:
        """Return the key of this id; None if there is none, or it is revoked."""
        await self._refresh(key_id)
        stored = self._known.get(key_id)
        return stored.key if stored is not None and stored.key.revoked_at is None else None

    async def _refresh(self, key_id: str) -> None:
        """Read the store again: a key created elsewhere works at once, but many invalid keys make few queries."""
        if time.monotonic() - self._read_at > (CACHE_SECONDS if key_id in self._known else UNKNOWN_CACHE_SECONDS):
            await self._read()

    async def _read(self) -> None:
        begun = time.monotonic()
        notes = await self._store.notes(KIND)
        self._known = {key_id: _StoredKey.from_json(body) for key_id, body in notes.items()}
        self._read_at = begun


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
