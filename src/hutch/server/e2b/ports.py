"""Ports of a sandbox: its own programs, reached by host name or by headers. They are public unless its creator says no.

Who may reach a port is decided by the access table of all doors (`server/previews/access.py`): a sandbox gets a grant
of all its ports when it is created, public or by a token.
"""

from hutch.errors import Gone, HutchError, NotFound, PortClosed, Refused, Unauthenticated
from hutch.keeper.access.ports import BoxStream
from hutch.keeper.boxes.records import BoxRecord
from hutch.model.ids import BoxId
from hutch.server.e2b.errors import NotRunning, PortNotOpen
from hutch.server.e2b.labels import MASKED_HOST, PRIVATE, TRAFFIC
from hutch.server.e2b.requests import Request
from hutch.server.previews.access import ANY_PORT, AccessTable
from hutch.server.previews.headers import Visit
from hutch.server.previews.hosts import PortName, PreviewHosts
from hutch.server.previews.proxy import proxy_http
from hutch.server.previews.websocket import proxy_websocket
from hutch.server.request import Receive, Scope, Send

TRAFFIC_TOKEN = "e2b-traffic-access-token"
_OURS = frozenset({b"e2b-sandbox-id", b"e2b-sandbox-port", TRAFFIC_TOKEN.encode(), b"x-access-token", b"x-api-key"})
"""Headers that steer a request, or show who sends it; a program in the box sees none of them."""


def domain_of(hosts: PreviewHosts) -> str:
    """Return the domain below which ports have their names, with the server's port."""
    return hosts.origin(PortName(BoxId("-"), 1)).partition("://")[2].partition(".")[2]


async def open_ports(access: AccessTable, record: BoxRecord, *, public: bool) -> None:
    """Let everybody reach the ports of a new sandbox, or only those who have its traffic token."""
    await access.grant(record.id, record.owner, ANY_PORT, public=public)


async def traffic_token(access: AccessTable, record: BoxRecord) -> str | None:
    """Return the token that opens the ports of a sandbox; None if they are public."""
    if record.spec.labels.get(TRAFFIC) != PRIVATE:
        return None
    grants = [grant for grant in await access.of_box(record.id) if grant.port == ANY_PORT]
    return access.token(grants[0]) if grants and not grants[0].public else None


async def proxy(request: Request, port: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Pass a request to the program that listens on a port of the sandbox, and its answer back."""
    call = request.call
    previews, keeper = call.service.previews, call.keeper
    name = PortName(BoxId(request.sandbox), port)
    try:
        grant = await previews.access.admit(name, [token for token in (call.header(TRAFFIC_TOKEN),) if token])
    except Unauthenticated as error:
        raise Refused(
            "the ports of this sandbox are not public", remedy=f"send its traffic access token as {TRAFFIC_TOKEN}"
        ) from error
    live = await request.find_running()

    async def connect() -> BoxStream:
        return await keeper.ports.connect(live, port)

    host = live.record.spec.labels.get(MASKED_HOST, "").replace("${PORT}", str(port)) or call.header("host")
    visit = Visit(port, host, previews.hosts.scheme, drop=_OURS, private=not grant.public)
    passing = proxy_websocket if scope["type"] == "websocket" else proxy_http
    try:
        async with previews.access.using(grant):
            await passing(connect, visit, scope, receive, send)
    except PortClosed as error:
        raise PortNotOpen(request.sandbox, port) from error
    except (Gone, NotFound) as error:
        raise NotRunning(request.sandbox) from error
    except HutchError:
        if live.tombstone is not None:
            raise NotRunning(request.sandbox) from None
        raise
