"""The door of previews: it finds the port that a request names, decides whether the visitor may reach it, and proxies.

A visitor shows a token once, in the address. The door turns it into a cookie of that origin and leads to the address
without it, so no page of the box ever sees it. The cookie counts only for requests of that origin's own pages and for
navigation, because a page of another preview may be of the same site.
"""

import asyncio
from contextlib import suppress

from hutch.errors import Gone, HeldElsewhere, HutchError, NotFound, QuotaExceeded, Unauthenticated
from hutch.keeper.access.callers import called_by
from hutch.keeper.access.ports import BoxStream
from hutch.keeper.boxes.live import Live
from hutch.model.receipts import Who
from hutch.policy.rights import UNBOUND
from hutch.server.auth import Authenticator
from hutch.server.error_status import status_of
from hutch.server.http.connections import CONNECTION, Connection
from hutch.server.peers import Peers
from hutch.server.previews.access import Grant
from hutch.server.previews.headers import COOKIE, TOKEN_HEADER, Headers, Visit, own_cookies, path_form_headers
from hutch.server.previews.hosts import PATH_PREFIX, PathName, PortName, parse_path
from hutch.server.previews.idle import IdleConnections, Visitor
from hutch.server.previews.issuer import QUERY, Previews
from hutch.server.previews.pages import send_page
from hutch.server.previews.proxy import NotProxied, proxy_http
from hutch.server.previews.websocket import proxy_websocket
from hutch.server.request import Message, Receive, Scope, Send, headers_of
from hutch.server.service import Service

_PARAMETER = f"{QUERY}="
WAIT_SECONDS = 30.0
"""How long a request waits for a port that the box's spec promises."""
SHORT_SECONDS = 1.0
"""How long requests may go on when the server stops; what takes longer is a stream."""
_NAVIGATION = ("document", "iframe", "frame")


class PreviewDoor:
    """Serves the host names and paths of previews."""

    name = "previews"

    def __init__(self, service: Service, auth: Authenticator, previews: Previews) -> None:
        self._service = service
        self._auth = auth
        self._previews = previews
        self._peers = Peers(service, auth)
        self._idle_connections = IdleConnections()
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def claims(self, scope: Scope) -> bool:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        path: str = scope["path"]
        return self._previews.hosts.covers(host) or path.startswith(PATH_PREFIX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self._active += 1
        self._idle.clear()
        received = self._peers.recorded(receive)
        try:
            try:
                await self._serve(scope, received, watched)
            except HeldElsewhere as elsewhere:
                await self._peers.pass_on(elsewhere, scope, received, watched)
        except NotProxied as error:
            if not started:
                await send_page(scope, send, status=error.status, code="not_proxied", message=error.message)
        except HutchError as error:
            if not started:
                self._service.metrics.failures[error.code] += 1
                await send_page(
                    scope, send, status=status_of(error.code), code=error.code, message=error.message,
                    remedy=error.remedy,
                )  # fmt: skip
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        path_name = parse_path(scope["path"]) if not self._previews.hosts.covers(headers.get("host", "")) else None
        name = path_name.name if path_name is not None else self._previews.hosts.parse(headers.get("host", ""))
        if path_name is not None and not scope.get("raw_path", b"").startswith(path_name.prefix.encode()):
            name = None  # An encoded name would be cut off at another place than it was parsed.
        if name is None:
            self._auth.count_anonymous(scope["client"])
            raise NotFound("this address names no port of a box", remedy="`hutch box url BOX PORT` makes one")
        if path_name is not None:
            self._auth.check_host(headers)  # Else a rebound name would share its origin with these pages.
        if path_name is not None and _is_preflight(scope, headers):
            await _answer_preflight(send)
            return
        await self._peers.check_place(name.box_id, scope["client"])
        grant = await self._admit(scope, headers, name, path_name)
        live = await self._live(name)
        self._count_connection(scope, grant)
        if path_name is None and await self._redirected(scope, headers, grant, live, send):
            return
        visit = self._visit(headers, name, path_name, private=not grant.public)
        if path_name is not None and scope["path"] == path_name.prefix:
            await _redirect(send, f"{path_name.prefix}/", [])
            return
        wait = WAIT_SECONDS if name.port in live.record.spec.ports else 0.0
        ports = self._service.keeper.ports

        async def connect() -> BoxStream:
            try:
                return await ports.connect(live, name.port, wait=wait)
            except QuotaExceeded:
                if not self._idle_connections.close_all():
                    raise
            return await ports.connect(live, name.port, wait=wait)

        async with self._previews.access.using(grant):
            if scope["type"] == "websocket":
                await proxy_websocket(connect, visit, _without_token(scope), receive, send)
            else:
                # Strangers who share a public preview do not share connections.
                reuse = None if grant.public else Visitor(self._idle_connections, grant.id, live, name.port)
                await proxy_http(connect, visit, _without_token(scope), receive, send, reuse)

    async def _admit(
        self, scope: Scope, headers: dict[str, str], name: PortName, path_name: PathName | None
    ) -> Grant:  # fmt: skip
        """Return the grant under which the visitor may reach the port."""
        tokens = [headers.get(TOKEN_HEADER.decode(), ""), _query_token(scope)]
        if path_name is not None:
            tokens.append(path_name.token)
        elif _may_use_cookie(headers, self._previews.hosts.origin(name)):
            tokens += own_cookies(headers.get("cookie", ""))
        try:
            return await self._previews.access.admit(name, [token for token in tokens if token])
        except Unauthenticated:
            self._auth.count_anonymous(scope["client"])
            tombstone = await self._service.keeper.store.tombstone(name.box_id)
            if tombstone is not None:
                raise Gone("the box of this preview has been destroyed", remedy="ask for a new one") from None
            raise

    async def _live(self, name: PortName) -> Live:
        keeper = self._service.keeper
        try:
            return keeper.held(name.box_id) or await keeper.live(name.box_id)
        except NotFound:  # Gone is one. The box ended while no server was there to see it.
            await self._previews.access.forget(name.box_id)
            raise

    def _count_connection(self, scope: Scope, grant: Grant) -> None:
        """Count the connection as the preview's, so that strangers without a token cannot push it out."""
        connection: Connection | None = scope.get(CONNECTION)
        if connection is not None and not connection.owner:
            self._service.connections.admit(connection, grant.id)

    async def _redirected(self, scope: Scope, headers: dict[str, str], grant: Grant, live: Live, send: Send) -> bool:
        """Turn the token of a browser's first visit into a cookie; programs may go on with the token as it is."""
        token = _query_token(scope)
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return False
        # Only the token that let the visitor in may become its cookie: another page chooses what is in a link.
        if not self._previews.access.is_token_of(grant, token):
            return False
        if "text/html" not in headers.get("accept", ""):
            return False
        keeper = self._service.keeper
        with called_by(Who(role="visitor"), UNBOUND):
            async with keeper.operations.begin(live, "", "preview.visit", {"preview": grant.id, "port": grant.port}):
                cookie = _cookie(token, grant, headers, secure=self._previews.hosts.scheme == "https")
        clean = _without_token(scope)
        query = clean["query_string"].decode("latin-1")
        target = clean["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        # A path of two slashes would name another host; to a browser a backslash is one.
        await _redirect(send, "/" + target.lstrip("/\\"), [(b"set-cookie", cookie.encode())])
        return True

    def _visit(self, headers: dict[str, str], name: PortName, path_name: PathName | None, *, private: bool) -> Visit:
        scheme = self._previews.hosts.scheme
        if path_name is None:
            return Visit(name.port, headers["host"], scheme, private=private)
        return Visit(name.port, f"localhost:{name.port}", scheme, path_name.prefix, private=private)

    async def start(self) -> None:
        return None

    async def drain(self, seconds: float) -> None:
        """Let short requests finish, then end streams, which would never end by themselves."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, SHORT_SECONDS)):
                await self._idle.wait()
        self._previews.access.end_all()
        self._idle_connections.close_all()


def _may_use_cookie(headers: dict[str, str], own: str) -> bool:
    """Whether the request comes from the preview's own pages or is a navigation, and not from another page.

    Previews below one domain may be one site, so browsers send cookies with requests from one to another.
    """
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (own, "null"):
        return False
    site = headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return origin != "null" or site == "same-origin"
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") in _NAVIGATION


def _cookie(token: str, grant: Grant, headers: dict[str, str], *, secure: bool) -> str:
    parts = [f"{COOKIE}={token}", "Path=/", "HttpOnly"]
    if grant.expires_at:
        parts.append(f"Max-Age={max(1, round(grant.expires_at - grant.created_at))}")
    if headers.get("sec-fetch-dest") in ("iframe", "frame"):
        # In a frame of another site the cookie has to be a partitioned one.
        parts += ["SameSite=None", "Secure", "Partitioned"]
    else:
        parts += ["SameSite=Lax", *(["Secure"] if secure else [])]
    return "; ".join(parts)


def _query_token(scope: Scope) -> str:
    parts = scope["query_string"].decode("latin-1").split("&")
    return next((part.removeprefix(_PARAMETER) for part in parts if part.startswith(_PARAMETER)), "")


def _without_token(scope: Scope) -> Scope:
    """Return the request as the box may see it."""
    parts = scope["query_string"].split(b"&")
    kept = [part for part in parts if not part.startswith(_PARAMETER.encode())]
    return scope if len(kept) == len(parts) else {**scope, "query_string": b"&".join(kept)}


async def _redirect(send: Send, target: str, headers: Headers) -> None:
    listed = [
        (b"location", target.encode("latin-1", "replace")), (b"content-length", b"0"), (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"), *headers,
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 307, "headers": listed})
    await send({"type": "http.response.body", "body": b""})


def _is_preflight(scope: Scope, headers: dict[str, str]) -> bool:
    return scope["type"] == "http" and scope["method"] == "OPTIONS" and "access-control-request-method" in headers


async def _answer_preflight(send: Send) -> None:
    """Let a page of an opaque origin send what it likes to its own program; the token in the path decides."""
    listed = [
        *path_form_headers(), (b"access-control-allow-methods", b"*"), (b"access-control-allow-headers", b"*"),
        (b"content-length", b"0"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 204, "headers": listed})
    await send({"type": "http.response.body", "body": b""})
