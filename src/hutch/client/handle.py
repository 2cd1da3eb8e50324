"""What everything about one box shares: who asks, under which lease, and whether the handle is still open."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn, TypeVar

from hutch.client.http import Body, Broken, Response
from hutch.client.requests import Repeat, Server
from hutch.errors import Conflict, Gone, HeldElsewhere, HutchError, LeaseLost, Refused, Unavailable
from hutch.model.boxes import Lease

T = TypeVar("T")

CANCEL_SECONDS = 5.0


class Handle:
    """One session's way to one box, under one lease; without a lease it only looks."""

    def __init__(self, server: Server, session: str, box_id: str, lease: Lease | None) -> None:
        self.server = server
        """Of the process that keeps the box, as far as is known."""
        self.session = session
        self.box_id = box_id
        self.lease = lease
        self.open = True
        self.is_destroyed = False
        """By this very handle: the server is not asked about a box that is certainly gone."""
        self.path = f"/v1/boxes/{box_id}"

    @property
    def observing(self) -> bool:
        return self.lease is None

    def headers(self, **more: str) -> dict[str, str]:
        """LeaseLost if this handle was released: what comes late must not hit whoever has the box then."""
        if self.is_destroyed:
            raise Gone(f"box {self.box_id} has been destroyed: destroyed by a call", remedy="create a new one")
        if not self.open:
            raise LeaseLost(f"box {self.box_id} was released by this handle", remedy="attach to it again")
        return self.credentials() | {name.replace("_", "-"): value for name, value in more.items()}

    def credentials(self) -> dict[str, str]:
        """Whose handle this is, and of which lease."""
        if self.lease is None:
            return {"Hutch-Session": self.session, "Hutch-Observe": "true"}
        return {"Hutch-Session": self.session, "Hutch-Lease": repr(self.lease.acquired_at)}

    async def ask(self, kind: type[T], method: str, path: str = "", /, **options: Any) -> T:
        return await self.ask_as(self.headers(), kind, method, path, **options)

    async def ask_as(
        self, headers: Mapping[str, str], kind: type[T], method: str, path: str = "", /, **options: Any
    ) -> T:
        while True:
            try:
                return await self.server.ask(kind, method, self.path + path, headers=headers, **options)
            except HeldElsewhere as elsewhere:
                self._follow(elsewhere, options.get("content"))

    async def get(self, path: str, /, *, accept: str, **options: Any) -> tuple[bytes, Mapping[str, str]]:
        """The body of a good answer, whole, and its headers."""
        while True:
            try:
                headers = self.headers(Accept=accept)
                return await self.server.get("GET", self.path + path, headers=headers, **options)
            except HeldElsewhere as elsewhere:
                self._follow(elsewhere)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, /, *, accept: str = "", content: Body | None = None, **options: Any
    ) -> AsyncIterator[Response]:
        async with AsyncExitStack() as stack:
            while True:
                headers = self.headers(Accept=accept)
                try:
                    opened = self.server.open(method, self.path + path, headers=headers, content=content, **options)
                    response = await stack.enter_async_context(opened)
                    break
                except HeldElsewhere as elsewhere:
                    self._follow(elsewhere, content)
            yield response

    def _follow(self, elsewhere: HeldElsewhere, content: Body | None = None) -> None:
        """From now on ask the process that keeps the box: it adopted the box when the one that we asked had ended.
        Raises what was told if there is no way to it. Nothing was done, so the request can be sent again, unless its
        content was a stream, which has been read from."""
        server = self.server.elsewhere(elsewhere) if self.server.elsewhere is not None else self.server
        if server is self.server:
            raise elsewhere
        if self.lease is not None and self.open:
            self.server.let_go(self.session, self.box_id)
            server.hold(self.session, self.box_id, self.lease)
        self.server = server
        if not isinstance(content, bytes | bytearray | memoryview | None):
            raise elsewhere

    async def once(self, path: str, body: Mapping[str, object]) -> tuple[bytes, Mapping[str, str]]:
        """Something that must not happen twice. If the connection breaks, the same operation is asked for again by
        its name, which the server remembers; one that it does not know is not begun anew."""
        operation = secrets.token_hex(8)
        headers = self.headers(Hutch_Operation=operation)
        while True:
            try:
                return await self.server.get(
                    "POST", self.path + path, headers=headers, body=body, repeat=Repeat.UNSENT
                )  # fmt: skip
            except Broken:
                if not await self.server.life.there(self.server.life.rhythm.patience_sec):
                    raise
                headers["Hutch-Again"] = "true"
            except HeldElsewhere as elsewhere:
                self._follow(elsewhere)
            except Conflict as error:
                if error.details.get("operation") != "unknown":
                    raise
                # For the caller it is the loss that counts: the server was another one when the connection was back.
                raise Unavailable(error.message, op=error.op, details=error.details, remedy=error.remedy) from error
            except asyncio.CancelledError:
                await asyncio.shield(self._cancel(operation))
                raise

    async def _cancel(self, operation: str) -> None:
        """Nobody waits for it any more. A server that cannot be told ends it by itself."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self.ask(type(None), "DELETE", f"/operations/{operation}", repeat=Repeat.NEVER)
        except (HutchError, TimeoutError):
            return

    def refuse_if_observing(self, op: str) -> None:
        if self.observing:
            refuse(op)


def refuse(op: str) -> NoReturn:
    raise Refused(
        f"whoever only looks at a box may not {op}", op=op, remedy="attach to the box instead of observing it"
    )
