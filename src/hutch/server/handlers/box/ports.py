"""Ports of a box over HTTP: what listens, and the addresses at which browsers reach it."""

from typing import Annotated

import msgspec

from hutch.errors import Invalid
from hutch.keeper.access.handles import BoxHandle
from hutch.model.boxes import PortInfo, Preview
from hutch.model.record import Record
from hutch.server.access import observing, using
from hutch.server.request import Call, Reply

WaitSeconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class PortsQuery(Record, frozen=True, kw_only=True):
    wait: WaitSeconds = 0.0
    """Seconds to wait until every port of the box's spec listens."""


class PortList(Record, frozen=True, kw_only=True):
    ports: tuple[PortInfo, ...]


class PreviewBody(Record, frozen=True, kw_only=True):
    public: bool = False
    """Whether everybody who knows the address may use it, without a token."""
    ttl_sec: Annotated[float, msgspec.Meta(ge=0, le=366 * 86400)] = 3600.0
    """Seconds until it ends; 0 for as long as the box lives."""


class PreviewList(Record, frozen=True, kw_only=True):
    previews: tuple[Preview, ...]


async def list_ports(call: Call, query: PortsQuery) -> Reply:
    """Return the TCP ports on which programs in the box listen, with their names. From then on, events of kind `port`
    say when one opens or closes."""
    async with observing(call) as guard:
        if isinstance(guard, BoxHandle):
            return Reply(PortList(ports=await guard.ports(wait=query.wait)))
        instance = await guard.begin()
        try:
            return Reply(PortList(ports=await instance.ports()))
        finally:
            guard.end()


async def open_url(call: Call, body: PreviewBody) -> Reply:
    """Make an address at which browsers reach a port of the box. The first visit turns its token into a cookie of that
    origin alone."""
    port = port_of(call)
    async with using(call) as box:
        return Reply(await box.url(port, public=body.public, ttl_sec=body.ttl_sec), status=201)


async def list_previews(call: Call) -> Reply:
    """Return the previews of the box that have not ended, with their tokens."""
    async with using(call) as box:
        return Reply(PreviewList(previews=await box.previews()))


async def revoke(call: Call) -> Reply:
    """End a preview, and the connections made by it."""
    async with using(call) as box:
        await box.revoke(call.params["preview"])
    return Reply(status=204)


def port_of(call: Call) -> int:
    """The port of the path."""
    text = call.params["port"]
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise Invalid(f"a port is a number from 1 to 65535, not {text[:20]!r}")
    return int(text)
