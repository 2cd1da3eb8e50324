"""Who is signed in to the dashboard: sessions of browsers, and the one-time links that open them.

A browser never holds a key. It exchanges a key or the code of a one-time link for a cookie, of which the store keeps a
digest. A session is its key's: it ends when the key is revoked, or when its role or owner is no longer the same.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from hutch.errors import Unauthenticated
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.keys import Key, Keys, Role
from hutch.keeper.store.store import Store
from hutch.model.record import Record

KIND = "sign_in"
SESSION_SECONDS = 12 * 3600.0
LINK_SECONDS = 600.0
MAX_LINKS = 20
"""Links of one key that wait to be used; the oldest makes room for a new one."""
MAX_SESSIONS = 64
"""Sessions of one key; the oldest ends for a new one, because all sessions are read again and again."""
CACHE_SECONDS = 1.0
"""A session that another process ended stops working after this many seconds."""
CSRF_HEADER = "hutch-csrf"
_NO_DIGEST = hashlib.sha256(b"nobody").hexdigest()

LOCAL = Key(id=LOCAL_OWNER, name="this machine", role=Role.ADMIN, owner=LOCAL_OWNER, created_at=0.0)
"""Stands for the user of this machine, who needs no key."""


class SignIn(Record, frozen=True, kw_only=True):
    """One browser session as the store keeps it."""

    id: str
    digest: str
    """Digest of the cookie's secret."""
    key_id: str
    role: Role
    owner: str
    created_at: float
    expires_at: float


class Opened(Record, frozen=True, kw_only=True):
    """A new session with the cookie's value, which is shown to its browser only."""

    sign_in: SignIn
    cookie: str


class Link(Record, frozen=True, kw_only=True):
    """A code that opens one session, once."""

    code: str
    expires_at: float


class SignIns:
    """Opens, recognises and ends the sessions of browsers."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._known: dict[str, SignIn] = {}
        self._read_at = float("-inf")
        self._links: dict[str, tuple[Key, float]] = {}
        """The waiting links by the digest of their code: whose they are, and until when."""

    # --- one-time links ---------------------------------------------------------------------------------------

    def create_link(self, key: Key) -> Link:
        """Return a code that signs a browser in as this key, once, within minutes."""
        now = time.time()
        self._links = {digest: link for digest, link in self._links.items() if link[1] > now}
        mine = [digest for digest, (of, _) in self._links.items() if of.id == key.id]
        if len(mine) >= MAX_LINKS:
            del self._links[mine[0]]
        code, expires_at = secrets.token_urlsafe(24), now + LINK_SECONDS
        self._links[_digest(code)] = (key, expires_at)
        return Link(code=code, expires_at=expires_at)

    async def redeem(self, code: str) -> Opened:
        """Open a session by the code of a link, which then is used up."""
        key, expires_at = self._links.pop(_digest(code), (None, 0.0))
        current = await self._current(key.id) if key is not None else None
        if current is None or expires_at < time.time():
            raise Unauthenticated(
                "this link was used already, or is too old", op="sign in",
                remedy="get a new one with `hutch dashboard`, or sign in with a key",
            )  # fmt: skip
        return await self.open(current)

    # --- sessions ---------------------------------------------------------------------------------------------

    async def open(self, key: Key) -> Opened:
        """Open a session of this key."""
        await self._make_room(key.id)
        session_id, secret, now = secrets.token_hex(8), secrets.token_urlsafe(32), time.time()
        made = SignIn(
            id=session_id, digest=_digest(secret), key_id=key.id, role=key.role, owner=key.owner, created_at=now,
            expires_at=now + SESSION_SECONDS,
        )  # fmt: skip
        await self._store.put_note(KIND, session_id, made.to_json(), new=True)
        self._known[session_id] = made
        return Opened(sign_in=made, cookie=f"{session_id}.{secret}")

    async def find(self, cookie: str) -> tuple[SignIn, Key] | None:
        """Return the session that has this cookie, and its key; None if it has ended."""
        session_id, _, secret = cookie.partition(".")
        if not secret:
            return None
        if time.monotonic() - self._read_at > CACHE_SECONDS:
            await self._read()
        found = self._known.get(session_id)
        same = hmac.compare_digest(_digest(secret), found.digest if found else _NO_DIGEST)
        if found is None or not same or found.expires_at < time.time():
            return None
        key = await self._current(found.key_id)
        if key is None or (key.role, key.owner) != (found.role, found.owner):
            await self.end(found.id)
            return None
        return found, key

    async def end(self, session_id: str) -> None:
        """End one session; ending it twice is no error."""
        self._known.pop(session_id, None)
        await self._store.drop_note(KIND, session_id)

    async def end_all(self, key_id: str) -> None:
        """End every session of one key."""
        await self._read()
        for found in [each for each in self._known.values() if each.key_id == key_id]:
            await self.end(found.id)

    async def _current(self, key_id: str) -> Key | None:
        return LOCAL if key_id == LOCAL_OWNER else await self._keys.known(key_id)

    async def _read(self) -> None:
        begun = time.monotonic()
        notes = await self._store.notes(KIND)
        self._known = {session_id: SignIn.from_json(body) for session_id, body in notes.items()}
        self._read_at = begun

    async def _make_room(self, key_id: str) -> None:
        """End expired sessions, and the oldest of a key that has as many as it may have."""
        await self._read()
        for found in [each for each in self._known.values() if each.expires_at < time.time()]:
            await self.end(found.id)
        mine = sorted(
            (each for each in self._known.values() if each.key_id == key_id), key=lambda each: each.created_at
        )
        for found in mine[: max(0, len(mine) - MAX_SESSIONS + 1)]:
            await self.end(found.id)


def cookie_name(headers: Mapping[str, str]) -> str:
    """Return the cookie's name, with the port: browsers do not keep apart the cookies of two ports of one host."""
    _, _, port = headers.get("host", "").rpartition(":")
    return f"hutch-dashboard-{port}" if port.isdigit() else "hutch-dashboard"


def cookie_of(headers: Mapping[str, str]) -> str:
    """Return the session cookie of a request, or an empty string."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(cookie_name(headers))
    except CookieError:
        return ""
    return found.value if found is not None else ""


def csrf_of(cookie: str) -> str:
    """Return the token that changes must carry beside this cookie; pages of other origins can read neither."""
    return hashlib.sha256(b"csrf:" + cookie.encode("utf-8", "replace")).hexdigest()[:40]


def csrf_matches(cookie: str, headers: Mapping[str, str]) -> bool:
    return hmac.compare_digest(csrf_of(cookie).encode(), headers.get(CSRF_HEADER, "").encode("utf-8", "replace"))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
