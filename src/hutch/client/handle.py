"""The state that all requests about one box share, and how a request follows its box to the server that keeps it."""

import asyncio
import functools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from hutch.client.transport.http import Body, ConnectionBroken, NotConnected, Response
from hutch.client.transport.requests import Repeat, Server
from hutch.errors import Conflict, Gone, HeldElsewhere, HutchError, LeaseLost, Refused, Unavailable
from hutch.model.boxes import Lease

if TYPE_CHECKING:
    from hutch.client.remote import RemoteHutch

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])

CANCEL_SECONDS = 5.0
MAX_REDIRECTS = 4
"""Servers that send a request on to each other are not followed for ever."""
RETURN_SECONDS = 1.0
ADOPTION_OUTAGES = 2.0
"""Outages (`Rhythm.outage_timeout_sec`) for which a box is looked for whose server is gone: others adopt it in 30 s."""


class Handle:
    """One session's access to one box under one lease. Without a lease it only observes, unless it is an admin's."""

    def __init__(self, server: Server, session: str, box_id: str, lease: Lease | None, *, admin: bool = False) -> None:
        self.server = server
        """The server that keeps the box, as far as is known."""
        self.session = session
        self.box_id = box_id
        self.lease = lease
        self.admin = admin
        """Whether it acts beside the holder of the lease, which the server allows to admins."""
        self.open = True
        self.is_destroyed = False
        """This handle destroyed the box, so requests fail here without asking the server."""
        self.path = f"/v1/boxes/{box_id}"

    @property
    def observing(self) -> bool:
        return self.lease is None and not self.admin

    def headers(self, **more: str) -> dict[str, str]:
        """Return the headers of a request.

        Raises:
            LeaseLost: This handle was released. A late request must not reach the box under its next holder.
        """
        if self.is_destroyed:
            raise Gone(f"box {self.box_id} has been destroyed: destroyed by a call", remedy="create a new one")
        if not self.open:
            raise LeaseLost(f"box {self.box_id} was released by this handle", remedy="attach to it again")
        return self.credentials() | {name.replace("_", "-"): value for name, value in more.items()}

    def credentials(self) -> dict[str, str]:
        """Return the headers that name the session and the lease."""
        if self.admin:
            return {"Hutch-Session": self.session, "Hutch-Admin": "yes"}
        if self.lease is None:
            return {"Hutch-Session": self.session, "Hutch-Observe": "true"}
        return {"Hutch-Session": self.session, "Hutch-Lease": repr(self.lease.acquired_at)}

    async def ask(self, kind: type[T], method: str, path: str = "", /, **options: Any) -> T:
        return await self.ask_as(self.headers(), kind, method, path, **options)

    async def ask_as(
        self, headers: Mapping[str, str], kind: type[T], method: str, path: str = "", /, **options: Any
    ) -> T:
        return await self.follow_moves(
            lambda: self.server.ask(kind, method, self.path + path, headers=headers, **options), **_repeating(options)
        )

    async def get(self, path: str, /, *, accept: str, **options: Any) -> tuple[bytes, Mapping[str, str]]:
        """Return body and headers of a successful answer."""
        return await self.follow_moves(
            lambda: self.server.get("GET", self.path + path, headers=self.headers(Accept=accept), **options),
            **_repeating(options),
        )

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, /, *, accept: str = "", content: Body | None = None, **options: Any
    ) -> AsyncIterator[Response]:
        async with AsyncExitStack() as stack:

            async def opened() -> Response:
                headers = self.headers(Accept=accept)
                asked = self.server.open(method, self.path + path, headers=headers, content=content, **options)
                return await stack.enter_async_context(asked)

            yield await self.follow_moves(opened, **_repeating({**options, "content": content}))

    async def recover(self, lost: ConnectionBroken) -> None:
        """Return when the box's server may be asked again. Raises the error if it stays away and there is no other."""
        server = self.server
        up = await server.heartbeat.wait_until_up(server.heartbeat.rhythm.outage_timeout_sec)
        if not up and not await self._try_first_server(server):
            raise lost

    async def follow_moves(
        self, work: Callable[[], Awaitable[T]], *, repeat: Repeat = Repeat.ALWAYS, content: Body | None = None
    ) -> T:
        """Ask the server that keeps the box, and its next one if the box has moved meanwhile.

        A server that stays away is given up for the one that this client was made for: it knows who adopts the box,
        once it is sure that its server is dead.
        """
        hops, until = 0, 0.0
        while True:
            asked = self.server
            try:
                return await work()
            except HeldElsewhere as elsewhere:
                hops += 1
                if hops > MAX_REDIRECTS:
                    raise
                self._follow(asked, elsewhere, content)
            except (NotConnected, ConnectionBroken) as lost:
                unsent = isinstance(lost, NotConnected) and repeat is not Repeat.NEVER
                now = time.monotonic()
                until = until or now + ADOPTION_OUTAGES * asked.heartbeat.rhythm.outage_timeout_sec
                if not (unsent or repeat is Repeat.ALWAYS) or not await self._try_first_server(asked) or now > until:
                    raise
                if _is_partly_sent(content):
                    raise
                hops = 0
                await asyncio.sleep(RETURN_SECONDS)

    def _follow(self, asked: Server, elsewhere: HeldElsewhere, content: Body | None = None) -> None:
        """Use the server of the process that adopted the box after its former keeper ended.

        Nothing was done, so the request can be sent again, unless its content is a stream that was partly read. The
        error is raised then, and also if that process cannot be reached.
        """
        server = asked.elsewhere(elsewhere) if asked.elsewhere is not None else asked
        if server is asked:
            raise elsewhere
        self._move(server)
        if _is_partly_sent(content):
            raise elsewhere

    async def _try_first_server(self, lost: Server) -> bool:
        """Use the server that this client was made for, if the lost one is another. Return whether it may be asked."""
        if lost.home is None:
            return False
        if self.server is lost:
            self._move(lost.home)
        if not lost.held_leases:
            await lost.heartbeat.stop()  # Else it would look for ever for a server that may never come back.
        return True

    def _move(self, server: Server) -> None:
        if self.lease is not None and self.open and server is not self.server:
            self.server.drop_handle(self.session, self.box_id)
            server.add_handle(self.session, self.box_id, self.lease)
        self.server = server

    async def run_once(self, path: str, body: Mapping[str, object]) -> tuple[bytes, Mapping[str, str]]:
        """Run an operation that must not happen twice.

        If the connection breaks, the operation is requested again by its id, which the server remembers. A server
        that does not know the id does not start the operation again.
        """
        operation = secrets.token_hex(8)
        headers = self.headers(Hutch_Operation=operation)
        while True:
            try:
                return await self.follow_moves(
                    lambda: self.server.get(
                        "POST", self.path + path, headers=headers, body=body, repeat=Repeat.UNSENT
                    ),
                    repeat=Repeat.UNSENT,
                )  # fmt: skip
            except ConnectionBroken as broken:
                await self.recover(broken)
                headers["Hutch-Again"] = "true"
            except Conflict as error:
                if error.details.get("operation") != "unknown":
                    raise
                # The server was another one after the reconnect, so the answer is lost to the caller.
                raise Unavailable(error.message, op=error.op, details=error.details, remedy=error.remedy) from error
            except asyncio.CancelledError:
                await asyncio.shield(self._cancel(operation))
                raise

    async def _cancel(self, operation: str) -> None:
        """Cancel the operation on the server. A server that cannot be reached ends it by itself."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self.ask(type(None), "DELETE", f"/operations/{operation}", repeat=Repeat.NEVER)
        except (HutchError, TimeoutError):
            return

    def refuse_if_observing(self, op: str) -> None:
        if self.observing:
            refuse(op)


def _repeating(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides whether a request with these options may be sent to another server."""
    return {name: options[name] for name in ("repeat", "content") if name in options}


def _is_partly_sent(content: Body | None) -> bool:
    return not isinstance(content, bytes | bytearray | memoryview | None)


def refuse(op: str) -> NoReturn:
    raise Refused(
        f"whoever only looks at a box may not {op}", op=op, remedy="attach to the box instead of observing it"
    )


def following(method: Method) -> Method:
    """Call the method again at the server that keeps the box, if this server says that another one does."""

    @functools.wraps(method)
    async def call(self: "RemoteHutch", *args: Any, **options: Any) -> Any:
        asked = self
        for _ in range(MAX_REDIRECTS):
            try:
                return await method(asked, *args, **options)
            except HeldElsewhere as elsewhere:
                asked = self.others.find(elsewhere).for_session(self.session)
        return await method(asked, *args, **options)

    return cast(Method, call)


class OtherServers:
    """Clients of the servers that share a store with the one this object names, made when a box is found there."""

    def __init__(self, home: str, connect: "Callable[[str], RemoteHutch]") -> None:
        self._home = home
        self._connect = connect
        self._clients: dict[str, RemoteHutch] = {}

    def find(self, elsewhere: HeldElsewhere) -> "RemoteHutch":
        """Return the client of the server that the error names. Raises the error if it names none, or one in the open.

        The key goes along: who was reached by TLS must not make us show it to everybody on the way to another server.
        """
        url = elsewhere.details.get("url")
        if not isinstance(url, str) or not url:
            raise elsewhere
        if self._home.startswith("https:") and not url.startswith("https:"):
            raise HeldElsewhere(
                elsewhere.message, op=elsewhere.op, details=elsewhere.details,
                remedy=f"no key is sent to {url} in plain text: server.advertise there must be an https:// URL",
            )  # fmt: skip
        if url not in self._clients:
            self._clients[url] = self._connect(url)
        return self._clients[url]

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()
