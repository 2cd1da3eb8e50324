"""`RemoteHutch`: the `Hutch` protocol over HTTP, as one session of a server."""

import asyncio
import copy
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec

from hutch.client import transfer
from hutch.client.boxes import RemoteBox, checked_name
from hutch.client.handle import OtherServers, following
from hutch.client.hooks import ClientHooks
from hutch.client.transport.connections import address_of
from hutch.client.transport.heartbeat import ConnectionListener, Rhythm
from hutch.client.transport.requests import Repeat, Server, convert_answer
from hutch.errors import HeldElsewhere, HutchError, Invalid, LeaseLost, Unavailable
from hutch.model.boxes import BoxInfo, Event, State
from hutch.model.capabilities import Capabilities
from hutch.model.spec import EffectiveSpec
from hutch.model.status import Condition, Status
from hutch.policy.mounts import granted_roots

if TYPE_CHECKING:
    from hutch.api import CreatedHook, DestroyedHook
    from hutch.client.apps import RemoteApps
    from hutch.client.resources import RemoteMcpServers, RemoteQuestions, RemoteReceipts, RemoteVolumes
    from hutch.client.skills import RemoteSkills
    from hutch.model.status import Metrics

STATUS_SECONDS = 10.0
UNDO_SECONDS = 30.0
CLOSE_SECONDS = 5.0
EVENTS_AT_ONCE = 1000
_KEY_CHARACTERS = "!#$&'()*+,/:;=?@[]^`{|}~-._"
"""Characters of an idempotency key that are sent unquoted."""


class FoundBox(msgspec.Struct, frozen=True, kw_only=True):
    """A box, with notes for the caller."""

    box: BoxInfo
    notes: tuple[str, ...] = ()
    grant: int = 0


class RemoteHutch:
    """`async with RemoteHutch("http://127.0.0.1:7300", key=…) as hutch: …`

    `session` names the holder of the leases. Without one, a new session ends with this object. `on_change` is called
    when the server is lost and when it is back.
    """

    def __init__(
        self, url: str, *, key: str = "", ca: str = "", session: str = "", rhythm: Rhythm | None = None,
        on_change: ConnectionListener | None = None, expected: bool = False,
        elsewhere: Callable[[HeldElsewhere], Server] | None = None, others: OtherServers | None = None,
    ) -> None:  # fmt: skip
        self.others = others or OtherServers(url, lambda other: self._client_of(other, key, ca, rhythm))
        self._server = Server(
            address_of(url, ca), key, rhythm=rhythm, on_change=on_change, expected=expected,
            elsewhere=elsewhere or (lambda error: self.others.find(error).server),
        )  # fmt: skip
        self._own_session = not session
        self.session = _checked_session(session or f"client-{secrets.token_hex(8)}")
        self._hooks = ClientHooks(self._read_events)
        self._is_view = False
        """This object is a view for another session. The original object closes the connection."""

    def _client_of(self, url: str, key: str, ca: str, rhythm: Rhythm | None) -> "RemoteHutch":
        """Return a client of another server that shares this one's store, for the same session."""
        client = RemoteHutch(url, key=key, ca=ca, session=self.session, rhythm=rhythm, others=self.others)
        client._own_session = self._own_session
        client._server.home = self._server
        client._hooks = self._hooks
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        return self._server.address.url

    @property
    def server(self) -> Server:
        """The server that all sessions of this object use."""
        return self._server

    @property
    def _headers(self) -> dict[str, str]:
        return {"Hutch-Session": self.session}

    async def _ask(self, kind: type[Any], method: str, path: str, /, **options: Any) -> Any:
        return await self._server.ask(kind, method, path, headers=self._headers, **options)

    def for_session(self, name: str) -> "RemoteHutch":
        """Return a view of the same server for another session."""
        view = copy.copy(self)
        view.session = _checked_session(name)
        view._is_view = True
        return view

    # --- boxes ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def box(self, **spec: Any) -> AsyncIterator[RemoteBox]:
        """Create a box and destroy it at exit, unless another session took it over meanwhile."""
        box = await self.create(**spec)
        try:
            yield box
        finally:
            with suppress(LeaseLost):
                await box.destroy()

    async def create(self, *, key: str = "", wait: bool = True, **spec: Any) -> RemoteBox:
        """Create a box. Without a key of the caller one is generated, so a retry never creates two boxes."""
        name = quote(key, safe=_KEY_CHARACTERS) if key else f"once:{secrets.token_hex(16)}"
        headers = self._headers | {"Idempotency-Key": name}
        if roots := granted_roots():
            headers["Hutch-Mount-Roots"] = json.dumps(roots)
        making = self._server.ask(
            BoxInfo, "POST", "/v1/boxes", headers=headers, body=_plain_spec(spec), wait=None if wait else False
        )
        try:
            info = await making
        except asyncio.CancelledError:
            if not key:
                await asyncio.shield(self._destroy_unclaimed(headers, spec))
            raise
        if info.state is State.CREATING:
            return RemoteBox(self._server, self.session, info, on_ready=self._hooks.run_created)
        box = await self._leased(info)
        try:
            await self._hooks.run_created(box)
        except BaseException:
            if not key:  # As in this process: a box whose hook fails was not created.
                await asyncio.shield(self.destroy(box.id, force=True))
            raise
        return box

    async def _destroy_unclaimed(self, headers: dict[str, str], spec: dict[str, Any]) -> None:
        """Destroy the box of a cancelled creation. Its idempotency key finds it if it was created."""
        try:
            async with asyncio.timeout(UNDO_SECONDS):
                info = await self._server.ask(
                    BoxInfo, "POST", "/v1/boxes", headers=headers, body=_plain_spec(spec), repeat=Repeat.UNSENT
                )
                await self.destroy(info.id, force=True)
        except (HutchError, TimeoutError):  # The server is gone. The box ends by its idle timeout.
            return

    async def _leased(self, info: BoxInfo) -> RemoteBox:
        """Return a handle. A box that was found by its key may be held by another session."""
        if info.lease is None or info.lease.holder != self.session:
            return await self._attach(info.id)
        return RemoteBox(self._server, self.session, info)

    @asynccontextmanager
    async def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> AsyncIterator[RemoteBox]:
        """Find the box of this conversation, or create it from `spec`. Leaving only releases the box."""
        given = {name: None if value is None else str(value) for name, value in values.items()}
        if template == "task" and not (given.get("task") or given.get("conversation_id")):
            given["task"] = secrets.token_hex(8)  # Chosen here, so that a retry names the same task.
        body = {"template": template, "kind": kind, "values": given, "spec": _plain_spec(dict(spec or {}))}
        box = await self._box_of_scope(body)
        try:
            await self._hooks.run_created(box)
            yield box
        finally:
            await box.release()

    @following
    async def _box_of_scope(self, body: dict[str, Any]) -> RemoteBox:
        return self._found(await self._ask(FoundBox, "POST", "/v1/scopes", body=body))

    def _found(self, found: FoundBox) -> RemoteBox:
        return RemoteBox(self._server, self.session, found.box, found.notes, grant=found.grant)

    async def plan(self, **spec: Any) -> EffectiveSpec:
        found: EffectiveSpec = await self._ask(EffectiveSpec, "POST", "/v1/plan", body=_plain_spec(spec))
        return found

    async def import_box(
        self, file: str | Path, *, provider: str = "", profile: str | None = None, image: str | None = None,
        name: str | None = None,
    ) -> RemoteBox:  # fmt: skip
        """Create a box from a file that `Box.export` wrote. It is not retried, since that could create two boxes."""
        found: FoundBox = await self._ask(
            FoundBox, "POST", "/v1/boxes/import", content=transfer.read_file(file), repeat=Repeat.NEVER,
            provider=provider, profile=profile, image=image, name=name,
        )  # fmt: skip
        box = self._found(found)
        await self._hooks.run_created(box)
        return box

    @following
    async def attach(self, box_id: str, *, takeover: bool = False) -> RemoteBox:
        box = await self._attach(box_id, takeover=takeover)
        await self._hooks.run_created(box)
        return box

    async def _attach(self, box_id: str, *, takeover: bool = False) -> RemoteBox:
        path = f"/v1/boxes/{checked_name(box_id, 'box')}"
        lease = await self._ask(dict[str, Any], "POST", f"{path}/lease", body={"takeover": takeover})
        info = await self._ask(BoxInfo, "GET", path)
        return RemoteBox(self._server, self.session, info, grant=int(lease.get("grant", 0)))

    @following
    async def observe(self, box_id: str) -> RemoteBox:
        info = await self._ask(BoxInfo, "GET", f"/v1/boxes/{checked_name(box_id, 'box')}")
        return RemoteBox(self._server, self.session, info, observing=True)

    @following
    async def administer(self, box_id: str) -> RemoteBox:
        path = f"/v1/boxes/{checked_name(box_id, 'box')}"
        headers = self._headers | {"Hutch-Admin": "yes"}
        info = await self._server.ask(BoxInfo, "GET", path, headers=headers)
        return RemoteBox(self._server, self.session, info, admin=True)

    async def find(self, text: str) -> BoxInfo:
        found: BoxInfo = await self._ask(BoxInfo, "GET", "/v1/find", text=text)
        return found

    async def boxes(self, *, after: str = "", limit: int | None = None) -> tuple[BoxInfo, ...]:
        """Return no boxes while the server is down, so that lists keep working."""
        try:
            found: tuple[BoxInfo, ...] = await self._ask(
                tuple[BoxInfo, ...], "GET", "/v1/boxes", part="boxes", repeat=Repeat.NEVER, after=after, limit=limit
            )
        except Unavailable:
            return ()
        return found

    @following
    async def destroy(self, box_id: str, *, force: bool = False) -> None:
        await self._ask(type(None), "DELETE", f"/v1/boxes/{checked_name(box_id, 'box')}", force=force)

    # --- the session's current box ----------------------------------------------------------------------------

    async def current(self) -> str | None:
        return _id(await self._ask(dict[str, Any], "GET", "/v1/session/current"))

    @following
    async def switch(self, box_id: str, *, takeover: bool = False) -> RemoteBox:
        checked_name(box_id, "box")
        await self._ask(dict[str, Any], "PUT", "/v1/session/current", body={"box": box_id, "takeover": takeover})
        info = await self._ask(BoxInfo, "GET", f"/v1/boxes/{box_id}")
        box = RemoteBox(self._server, self.session, info)
        await self._hooks.run_created(box)
        return box

    async def working(self, **spec: Any) -> RemoteBox:
        box = self._found(await self._ask(FoundBox, "POST", "/v1/session/working", body=_plain_spec(spec)))
        await self._hooks.run_created(box)
        return box

    async def leave(self) -> None:
        await self._ask(type(None), "DELETE", "/v1/session/current")

    async def default(self, provider: str = "") -> str | None:
        return _id(await self._ask(dict[str, Any], "GET", "/v1/default", provider=provider or None))

    async def set_default(self, box_id: str, provider: str = "") -> None:
        await self._ask(dict[str, Any], "PUT", "/v1/default", body={"box": box_id, "provider": provider})

    # --- everything else ----------------------------------------------------------------------------------------

    @property
    def volumes(self) -> "RemoteVolumes":
        from hutch.client.resources import RemoteVolumes  # Few callers need it, so it is loaded on demand.

        return RemoteVolumes(self._ask)

    @property
    def receipts(self) -> "RemoteReceipts":
        from hutch.client.resources import RemoteReceipts  # Few callers need it, so it is loaded on demand.

        return RemoteReceipts(self._server, self.session)

    @property
    def questions(self) -> "RemoteQuestions":
        from hutch.client.resources import RemoteQuestions  # Few callers need it, so it is loaded on demand.

        return RemoteQuestions(self._server, self.session)

    @property
    def skills(self) -> "RemoteSkills":
        from hutch.client.skills import RemoteSkills  # Few callers need it, so it is loaded on demand.

        return RemoteSkills(self._ask, self._get)

    @property
    def apps(self) -> "RemoteApps":
        from hutch.client.apps import RemoteApps  # Few callers need it, so it is loaded on demand.

        return RemoteApps(self, self._ask)

    @property
    def mcp_servers(self) -> "RemoteMcpServers":
        from hutch.client.resources import RemoteMcpServers  # Few callers need it, so it is loaded on demand.

        return RemoteMcpServers(self._ask)

    async def _get(self, path: str, /, **query: Any) -> bytes:
        data, _ = await self._server.get("GET", path, headers=self._headers, **query)
        return data

    async def on_created(self, hook: "CreatedHook") -> None:
        self._hooks.add_created(hook)

    async def on_destroyed(self, hook: "DestroyedHook") -> None:
        await self._hooks.add_destroyed(hook)

    async def metrics(self) -> "Metrics":
        from hutch.model.status import Metrics  # Few callers need it, so it is loaded on demand.

        found: Metrics = await self._ask(Metrics, "GET", "/v1/metrics")
        return found

    async def shutdown(self) -> None:
        await self._ask(dict[str, Any], "POST", "/v1/shutdown", repeat=Repeat.UNSENT)

    async def _read_events(self, after: int, wait: float) -> tuple[tuple[Event, ...], int]:
        page = await self._ask(dict[str, Any], "GET", "/v1/events", after=after, limit=EVENTS_AT_ONCE, wait=wait)
        return convert_answer(page["events"], tuple[Event, ...]), page["cursor"]

    async def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        found: list[Event] = []
        while len(found) < limit:
            asked = min(limit - len(found), EVENTS_AT_ONCE)
            page = await self._ask(dict[str, Any], "GET", "/v1/events", after=after, limit=asked)
            found += convert_answer(page["events"], list[Event])
            after = page["cursor"]
            if len(page["events"]) < asked:
                break
        return tuple(found)

    async def providers(self, name: str = "") -> tuple[Capabilities, ...]:
        answer = await self._ask(dict[str, Any], "GET", "/v1/providers", **({"name": name} if name else {}))
        return convert_answer(answer["providers"], tuple[Capabilities, ...])

    async def dashboard_path(self) -> str:
        """Create a one-time link that signs a browser in as this client; returns its path below the server's URL."""
        answer = await self._ask(dict[str, Any], "POST", "/v1/dashboard/links")
        return str(answer["path"])

    async def check(self) -> None:
        """Raise unless the server answers and accepts this session."""
        await self._ask(dict[str, Any], "GET", "/v1/session/current")

    async def status(self) -> Status:
        """Return the status. It never raises, so that it can report an unreachable server."""
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                answer: Status = await self._ask(Status, "GET", "/v1/status", repeat=Repeat.NEVER)
        except HutchError as error:
            return _unreachable(error.message, error.remedy)
        except TimeoutError:
            return _unreachable(f"{self.url} does not answer", "look at the server's log")
        return answer

    async def close(self) -> None:
        """Close the connections, and release the leases if the session ends here. Boxes live on until they time out."""
        if self._is_view:
            return
        await self._hooks.close()
        await self.others.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if not self._own_session:
                    await self._server.close_handles(self.session)
                for session, box_id in list(self._server.held_leases) if self._own_session else ():
                    if session == self.session:
                        path = f"/v1/boxes/{box_id}/lease"
                        await self._ask(dict[str, Any], "DELETE", path, repeat=Repeat.NEVER)
        except (HutchError, TimeoutError):  # The leases expire by themselves.
            pass
        await self._server.close()


def _id(answer: dict[str, Any]) -> str | None:
    found: str | None = answer["box"]
    return found


def _plain_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec as JSON values, without fields that are not set."""
    given = {name: value for name, value in spec.items() if value is not None}
    plain: dict[str, Any] = msgspec.to_builtins(given, enc_hook=str)
    return plain


def _checked_session(session: str) -> str:
    if not session or len(session) > 128 or not (session.isascii() and session.isprintable()):
        raise Invalid(f"{session!r} is no name for a session", remedy="1 to 128 printable ASCII characters")
    return session


def _unreachable(reason: str, remedy: str) -> Status:
    return Status(state=Condition.UNREACHABLE, enabled=True, available=False, reason=reason, remedy=remedy)
