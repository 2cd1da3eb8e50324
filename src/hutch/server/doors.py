"""Doors: other protocols on the server's own port, such as previews of a box's web applications or the E2B API.

A door translates: it parses a foreign protocol, calls the keeper through the service, and renders. The application asks
each door in order whether a request is its own, before it looks at its own routes.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from hutch.server.auth import Authenticator
from hutch.server.dashboard.pages import DashboardDoor
from hutch.server.previews.door import PreviewDoor
from hutch.server.request import Receive, Scope, Send
from hutch.server.service import Service


class Door(Protocol):
    """One foreign protocol. It authenticates its callers itself, and answers every error in the protocol's own form."""

    name: str
    """Names the door in metrics and logs."""

    def claims(self, scope: Scope) -> bool:
        """Decide from host name, path and headers whether this HTTP request or WebSocket is the door's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket to its end."""

    async def start(self) -> None:
        """Resume what an earlier server left, because this one is ready. It runs in the background."""

    async def drain(self, seconds: float) -> None:
        """End what still runs after at most this time, because the server stops."""


class Doors:
    """All doors of one listening socket, in the order in which they are asked."""

    def __init__(self, doors: Sequence[Door] = ()) -> None:
        self._doors = tuple(doors)

    def find(self, scope: Scope) -> Door | None:
        return next((door for door in self._doors if door.claims(scope)), None)

    async def start(self) -> None:
        await asyncio.gather(*(door.start() for door in self._doors))

    async def drain(self, seconds: float) -> None:
        await asyncio.gather(*(door.drain(seconds) for door in self._doors))


def open_doors(service: Service, auth: Authenticator) -> Doors:
    """Return the doors that this server opens beside its own API."""
    from hutch.server.bay.door import BayDoor
    from hutch.server.bay.shipyard import ShipyardDoor
    from hutch.server.e2b.door import E2BDoor
    from hutch.server.langbot.door import LangBotDoor

    return Doors([
        E2BDoor(service, auth),
        PreviewDoor(service, auth, service.previews),
        LangBotDoor(service, auth),
        BayDoor(service, auth),
        ShipyardDoor(service, auth),
        DashboardDoor(),
    ])  # fmt: skip
