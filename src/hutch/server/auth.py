"""Authentication: who is calling, from which page or host name, and how often."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from hutch.config.server import ServerTable
from hutch.errors import QuotaExceeded, Refused, Unauthenticated
from hutch.keeper.keys import Key, Keys, Role
from hutch.model.record import Record
from hutch.policy.rights import Rights
from hutch.server.dashboard.sign_ins import LOCAL, SignIns, cookie_of, csrf_matches
from hutch.server.http.headers import CORS_EXPOSED_HEADERS, CORS_REQUEST_HEADERS, check_headers

UNIX = "unix"
"""The first part of `scope["client"]` on a Unix socket; the second is the peer's user id."""
MAX_ADDRESSES = 4096
"""An attacker with more addresses gets a fresh bucket now and then, but cannot use up memory."""
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})


class Caller(Record, frozen=True, kw_only=True):
    """An authenticated caller."""

    key_id: str
    role: Role
    owner: str
    session: str
    over_all: bool = False
    """Whether an admin sent `Hutch-Admin: yes` to act on every owner's boxes without their lease; this is logged."""
    rights: Rights
    """What the caller may ask for; an admin may ask for anything."""


class TokenBucket:
    """Limits the request rate of one key or address; it holds at most the tokens of two seconds."""

    __slots__ = ("_counted_by", "_rate", "_refilled_at", "_tokens")

    def __init__(self, rate: float, counted_by: str) -> None:
        self._rate = rate
        self._counted_by = counted_by
        self._tokens = 2 * rate
        self._refilled_at = time.monotonic()

    def take(self) -> None:
        now = time.monotonic()
        self._tokens = min(2 * self._rate, self._tokens + (now - self._refilled_at) * self._rate)
        self._refilled_at = now
        if self._tokens < 1:
            wait = (1 - self._tokens) / self._rate
            raise QuotaExceeded(
                f"too many requests {self._counted_by}",
                retry_after=round(wait, 3),
                details={"rate_per_sec": self._rate},
                remedy="slow down, or raise server.rate_per_sec",
            )
        self._tokens -= 1


class Authenticator:
    """Authenticates the requests of one listening socket, TCP or Unix."""

    def __init__(
        self, keys: Keys, sign_ins: SignIns, table: ServerTable, rights_of: Callable[[Key], Rights], *, unix: bool
    ) -> None:
        """`rights_of` gives the rights of a key (`Service.rights_of_key`)."""
        self._keys = keys
        self._sign_ins = sign_ins
        self._rights_of = rights_of
        self._unix = unix
        self._rate = table.rate_per_sec
        self._key_buckets: dict[str, TokenBucket] = {}
        self._address_buckets: dict[str, TokenBucket] = {}
        own = frozenset() if table.host in _WILDCARDS else frozenset({table.host.lower()})
        advertised = {_host_name(urlsplit(table.advertise).netloc)} if table.advertise else set()
        self._hosts = _LOCAL_NAMES | own | advertised | {host.lower() for host in table.hosts}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in table.origins)

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse requests to a name that is not this server's, as a web page sends them by DNS rebinding."""
        name = _host_name(headers.get("host", ""))
        if not self._unix and name not in self._hosts:
            raise Refused(
                f"this server is not called {name!r}",
                remedy="call it by its address, or add the name to server.hosts",
            )

    def check_origin(self, headers: Mapping[str, str], scheme: str) -> None:
        """Refuse requests of foreign web pages, by their origin or by a rebound host name."""
        self.check_host(headers)
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
                raise Refused("pages of other sites may not call this server")
            return
        own = f"{scheme.replace('ws', 'http')}://{host}".lower()
        if origin.lower() not in self._origins and (self._unix or origin.lower() != own):
            raise Refused(
                f"pages from {origin[:200]} may not call this server", remedy="add the origin to server.origins"
            )

    def count_anonymous(self, client: tuple[str, int] | None) -> None:
        """Count a request without a valid key; one address has one rate, however many keys it guesses."""
        self._count(self._address_buckets, client[0] if client is not None else "", "from this address")
        if len(self._address_buckets) > MAX_ADDRESSES:
            del self._address_buckets[next(iter(self._address_buckets))]

    def _count(self, buckets: dict[str, TokenBucket], who: str, counted_by: str) -> None:
        if not self._rate:
            return
        bucket = buckets.get(who)
        if bucket is None:
            bucket = buckets[who] = TokenBucket(self._rate, counted_by)
        bucket.take()

    def cors_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The CORS headers that let a page of `server.origins` read the answer; empty for any other page.

        Credentials are never allowed: a page that knows the key sends it, the browser does not.
        """
        origin = headers.get("origin", "")
        if origin.lower() not in self._origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": ", ".join(CORS_EXPOSED_HEADERS),
            "vary": "Origin",
        }

    def preflight_headers(self, headers: Mapping[str, str], methods: Iterable[str]) -> dict[str, str] | None:
        """The answer to a CORS preflight request; None if the request is not one.

        The answer is the same for every path, so it does not reveal which paths exist.
        """
        if "access-control-request-method" not in headers or "origin" not in headers:
            return None
        return {
            "access-control-allow-methods": ", ".join(methods),
            "access-control-allow-headers": ", ".join(CORS_REQUEST_HEADERS),
            "access-control-max-age": "600",
        }

    async def authenticate(
        self, headers: Mapping[str, str], client: tuple[str, int] | None, scope: Mapping[str, Any] | None = None
    ) -> Caller:
        """The caller, by a key or by the peer credentials of a Unix socket; else Unauthenticated.

        With the request's `scope` a signed-in browser is recognised by its cookie too.
        """
        text, own_session = key_text(headers), ""
        if text:
            key = await self._keys.find(text)
            if key is None:
                self.count_anonymous(client)
                raise Unauthenticated("this key opens nothing", remedy="check it, or have one made: hutch key create")
        elif self._unix and client is not None and client[0] == UNIX and client[1] in (0, os.geteuid()):
            key = LOCAL
        elif scope is not None and (cookie := cookie_of(headers)):
            key = await self._of_browser(cookie, headers, client, scope)
            own_session = f"dashboard-{key.id}"
        else:
            self.count_anonymous(client)
            raise Unauthenticated(
                "this server needs a key", remedy="send it as `Authorization: Bearer …` or `Hutch-Key: …`"
            )
        self._count(self._key_buckets, key.id, "with this key")
        check_headers(headers)
        return Caller(
            key_id=key.id, role=key.role, owner=key.owner,
            session=headers.get("hutch-session", "") or own_session or key.id, over_all=_over_all(headers, key.role),
            rights=self._rights_of(key),
        )  # fmt: skip

    async def _of_browser(
        self, cookie: str, headers: Mapping[str, str], client: tuple[str, int] | None, scope: Mapping[str, Any]
    ) -> Key:
        """The key with which this browser signed in.

        Browsers send the cookie by themselves, also for a page on another port of this host. So only the dashboard's
        own origin may use it, a change must carry the token that only the dashboard can read, and a WebSocket must
        name its origin.
        """
        found = await self._sign_ins.find(cookie)
        if found is None:
            self.count_anonymous(client)
            raise Unauthenticated("you are signed out", remedy="sign in again", details={"signed_out": True})
        origin, websocket = headers.get("origin"), scope["type"] == "websocket"
        # Only the host is compared: behind a proxy that ends TLS the schemes differ, and check_origin knows the proxy.
        foreign = origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()
        if foreign or (websocket and origin is None):
            raise Refused("only the dashboard itself may use its session")
        if not websocket and scope["method"] not in ("GET", "HEAD") and not csrf_matches(cookie, headers):
            raise Refused("this change does not carry the session's token", remedy="reload the page")
        return found[1]

    async def trust(self, key_id: str, session: str) -> Caller | None:
        """The caller behind a credential that names a key and was checked already; None if the key is revoked.

        Doors give out such credentials: they end with the key, and act within its rights.
        """
        key = await self._keys.known(key_id)
        if key is None:
            return None
        self._count(self._key_buckets, key.id, "with this key")
        return Caller(key_id=key.id, role=key.role, owner=key.owner, session=session, rights=self._rights_of(key))


def _over_all(headers: Mapping[str, str], role: Role) -> bool:
    if "hutch-admin" not in headers:
        return False
    _check_admin(role)
    return True


def act_over_all(caller: Caller) -> Caller:
    """The caller as an admin who acts on every owner's boxes; Refused for every other role."""
    _check_admin(caller.role)
    return caller.but(over_all=True)


def _check_admin(role: Role) -> None:
    if role is not Role.ADMIN:
        raise Refused("Hutch-Admin needs a key of role admin")


def key_text(headers: Mapping[str, str]) -> str:
    """The key that the request carries, or an empty string."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and text:
        return text.strip()
    return headers.get("hutch-key", "").strip()


def _host_name(host: str) -> str:
    """The host without its port: `[::1]:7300` gives `::1`."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
