"""The door: who is calling, from where, and how often. Everything is refused that does not clearly belong here."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from hutch.config.server import ServerTable
from hutch.errors import QuotaExceeded, Refused, Unauthenticated
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.keys import Key, Keys, Role
from hutch.model.record import Record
from hutch.policy.rights import UNBOUND, Rights, narrowed
from hutch.server.http.headers import FOR_PAGES, TO_PAGES, check

UNIX = "unix"
"""The first part of `scope["client"]` on the Unix socket; the second is the peer's user id."""
ADDRESSES_KEPT = 4096
"""Whoever has more addresses than this gets a new bucket now and then, but never our memory."""
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})


class Caller(Record, frozen=True, kw_only=True):
    """Whoever knocked, and was let in."""

    key_id: str
    role: Role
    owner: str
    session: str
    over_all: bool = False
    """An admin who said `Hutch-Admin: yes`: may act on every owner's boxes, without their lease, and is logged."""
    rights: Rights
    """What it may ask for; an admin anything."""


class Bucket:
    """Somebody's right to make requests: refilled steadily, twice a second's worth at most."""

    __slots__ = ("_at", "_left", "_rate", "_whose")

    def __init__(self, rate: float, whose: str) -> None:
        self._rate = rate
        self._whose = whose
        self._left = 2 * rate
        self._at = time.monotonic()

    def take(self) -> None:
        now = time.monotonic()
        self._left = min(2 * self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            wait = (1 - self._left) / self._rate
            raise QuotaExceeded(
                f"too many requests {self._whose}",
                retry_after=round(wait, 3),
                details={"rate_per_sec": self._rate},
                remedy="slow down, or raise server.rate_per_sec",
            )
        self._left -= 1


class Door:
    """One for the TCP address and one for the Unix socket."""

    def __init__(self, keys: Keys, table: ServerTable, rights_of: Callable[[str], Rights], *, unix: bool) -> None:
        """`rights_of`: what an owner's keys may ask for (`Config.rights_of`)."""
        self._keys = keys
        self._rights_of = rights_of
        self._unix = unix
        self._rate = table.rate_per_sec
        self._of_keys: dict[str, Bucket] = {}
        self._of_addresses: dict[str, Bucket] = {}
        own = frozenset() if table.host in _WILDCARDS else frozenset({table.host.lower()})
        self._hosts = _LOCAL_NAMES | own | {host.lower() for host in table.hosts}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in table.origins)

    def check_place(self, headers: Mapping[str, str], scheme: str) -> None:
        """A web page must not drive a local server: neither by its origin, nor by a name that it had resolved to us
        (DNS rebinding)."""
        host = headers.get("host", "")
        if not self._unix and _name(host) not in self._hosts:
            raise Refused(
                f"this server is not called {_name(host)!r}",
                remedy="call it by its address, or add the name to server.hosts",
            )
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

    def count_stranger(self, client: tuple[str, int] | None) -> None:
        """A request without a good key: those of one address have one rate, however many keys it makes up."""
        self._count(self._of_addresses, client[0] if client is not None else "", "from this address")
        if len(self._of_addresses) > ADDRESSES_KEPT:
            del self._of_addresses[next(iter(self._of_addresses))]

    def _count(self, buckets: dict[str, Bucket], whose: str, in_words: str) -> None:
        if not self._rate:
            return
        bucket = buckets.get(whose)
        if bucket is None:
            bucket = buckets[whose] = Bucket(self._rate, in_words)
        bucket.take()

    def page_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What lets a page of one of `server.origins` read the answer; nothing for any other page. Never credentials:
        a key is sent by whoever knows it, not by the browser."""
        origin = headers.get("origin", "")
        if origin.lower() not in self._origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": ", ".join(TO_PAGES),
            "vary": "Origin",
        }

    def preflight(self, headers: Mapping[str, str], methods: Iterable[str]) -> dict[str, str] | None:
        """The answer to a browser that asks before it sends a page's request; None: this is no such question. It is
        the same for every path, so it tells nobody which there are."""
        if "access-control-request-method" not in headers or "origin" not in headers:
            return None
        return {
            "access-control-allow-methods": ", ".join(methods),
            "access-control-allow-headers": ", ".join(FOR_PAGES),
            "access-control-max-age": "600",
        }

    async def caller(self, headers: Mapping[str, str], client: tuple[str, int] | None) -> Caller:
        """Unauthenticated unless a key, or the kernel's word on the Unix socket, says who it is."""
        text = key_text(headers)
        if text:
            key = await self._keys.find(text)
            if key is None:
                self.count_stranger(client)
                raise Unauthenticated("this key opens nothing", remedy="check it, or have one made: hutch key create")
            key_id, role, owner, rights = key.id, key.role, key.owner, self._rights(key)
        elif self._unix and client is not None and client[0] == UNIX and client[1] in (0, os.geteuid()):
            key_id, role, owner, rights = LOCAL_OWNER, Role.ADMIN, LOCAL_OWNER, UNBOUND
        else:
            self.count_stranger(client)
            raise Unauthenticated(
                "this server needs a key", remedy="send it as `Authorization: Bearer …` or `Hutch-Key: …`"
            )
        self._count(self._of_keys, key_id, "with this key")
        check(headers)
        session = headers.get("hutch-session", "") or key_id
        return Caller(
            key_id=key_id, role=role, owner=owner, session=session, over_all=_wants_all(headers, role), rights=rights
        )  # fmt: skip

    def _rights(self, key: Key) -> Rights:
        """An admin acts for the operator, who is bound by nothing."""
        return UNBOUND if key.role is Role.ADMIN else narrowed(self._rights_of(key.owner), key.id, key.rights)


def _wants_all(headers: Mapping[str, str], role: Role) -> bool:
    if "hutch-admin" not in headers:
        return False
    if role is not Role.ADMIN:
        raise Refused("Hutch-Admin needs a key of role admin")
    return True


def key_text(headers: Mapping[str, str]) -> str:
    """The key that was sent; empty: none was."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and text:
        return text.strip()
    return headers.get("hutch-key", "").strip()


def _name(host: str) -> str:
    """Host without port: `[::1]:7300` is `::1`."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
