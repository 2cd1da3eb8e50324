"""One request of an E2B client: its parts, the sandbox that it names, and the user that it acts as."""

import base64
import binascii
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from hutch.errors import Gone, HutchError, Invalid, NotFound, Unauthenticated
from hutch.keeper.access.files import GuardedFiles
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.boxes.live import Live
from hutch.model.boxes import State
from hutch.model.ids import is_box_id
from hutch.server.access import find, using
from hutch.server.e2b.errors import NotRunning
from hutch.server.e2b.labels import TEMPLATE, resumes_by_itself
from hutch.server.e2b.sandboxes import Sandboxes
from hutch.server.request import Call, Scope
from hutch.server.state.budget import Account

T = TypeVar("T")

ENVD_PORT = "49983"
INTERPRETER_PORT = "49999"
_CONTROL = frozenset({"sandboxes", "templates", "snapshots", "volumes", "volumecontent", "secrets"})
HOMES = {"user": "/home/user", "root": "/root"}


class Request:
    """A request with the sandbox that it concerns. Every handler takes one."""

    def __init__(self, call: Call, scope: Scope, sandboxes: Sandboxes) -> None:
        self.call = call
        self.sandboxes = sandboxes
        self.method: str = scope.get("method", "GET")
        self.path: str = scope["path"]
        self.query: dict[str, str] = dict(
            parse_qsl(
                scope["query_string"].decode("ascii", "replace"), keep_blank_values=True, errors="surrogateescape"
            )
        )
        self.client: tuple[str, int] | None = scope["client"]
        # Releases before 2.35 name a sandbox in the headers of control-plane calls too.
        controls = bool(call.header("x-api-key")) and is_control_path(self.path)
        self.sandbox = "" if controls else call.header("e2b-sandbox-id")
        """The sandbox that the request names; empty for the control plane."""
        self.port = call.header("e2b-sandbox-port") or ENVD_PORT
        # The SDKs send the headers to a host name of the sandbox too. The name counts, because the door went by it.
        named = call.service.previews.hosts.parse(call.header("host"))
        self.by_host = named is not None
        """Whether the sandbox was named by a host name of its own, where no page of the server is served."""
        if named is not None:
            self.sandbox, self.port = named.box_id, str(named.port)
        if not (self.port.isascii() and self.port.isdigit() and len(self.port) < 6 and 1 <= int(self.port) <= 65535):
            raise Invalid(f"{self.port[:10]!r} is no port")

    def name_sandbox(self, sandbox: str) -> None:
        """Make this the sandbox of the request."""
        self.sandbox = sandbox
        self.call.params = {"box": sandbox}

    # --- the sandbox -----------------------------------------------------------------------------------------

    async def find(self) -> Live:
        """Return the sandbox of the request. NotFound for another owner's, and for boxes that are no sandboxes."""
        if not is_box_id(self.sandbox) or self.sandbox in self.sandboxes.ending:
            raise self._missing()
        try:
            live = await find(self.call)
        except (NotFound, Gone) as error:
            raise self._missing() from error
        if TEMPLATE not in live.record.spec.labels or live.record.doomed:
            raise self._missing()
        return live

    def _missing(self) -> NotFound:
        return NotFound(f"Sandbox \"{self.sandbox[:64]}\" doesn't exist or you don't have access to it")

    async def find_running(self) -> Live:
        """Return the sandbox for its data plane. NotRunning unless it runs, or resumes when it is used."""
        try:
            live = await self.find()
        except NotFound as error:
            raise NotRunning(self.sandbox) from error
        state = live.record.state
        if state is State.PAUSED and resumes_by_itself(live.record):
            await self.sandboxes.resume(live)
        elif state is not State.RUNNING:
            raise NotRunning(self.sandbox)
        return live

    @asynccontextmanager
    async def using(self) -> AsyncIterator[BoxHandle]:
        """Use the sandbox, which runs. NotRunning if it ends meanwhile."""
        live = await self.find_running()
        try:
            async with using(self.call) as box:
                yield box
        except HutchError as error:
            if live.tombstone is not None or live.record.doomed:
                raise NotRunning(self.sandbox) from error
            raise

    @asynccontextmanager
    async def files(self) -> AsyncIterator[GuardedFiles]:
        """Use the sandbox's files with the rights of the call's user."""
        async with self.using() as box:
            yield self.files_of(box)

    def files_of(self, box: BoxHandle) -> GuardedFiles:
        """Return the files of a box with the rights of the call's user."""
        return box.files if self.user in (None, box.spec.user) else box.files_as(self.user)

    # --- the user --------------------------------------------------------------------------------------------

    @property
    def user(self) -> str | None:
        """The user that the call acts as, by Basic authentication or by `username`; None for the template's own."""
        scheme, _, given = self.call.header("authorization").partition(" ")
        name = self.query.get("username", "")
        if scheme.lower() == "basic":
            try:
                name = base64.b64decode(given, validate=True).decode().partition(":")[0]
            except (binascii.Error, UnicodeDecodeError) as error:
                raise Unauthenticated("the Authorization header is no Basic authentication") from error
        if not name:
            return None
        if name not in HOMES:
            raise Unauthenticated(f"error looking up user '{name[:64]}': there is no such user in a sandbox")
        return name

    def resolve(self, path: str) -> str:
        """Return an absolute path: relative ones and `~` begin at the user's home."""
        home = HOMES[self.user or "user"]
        if "\0" in path:
            raise Invalid("a path has no NUL byte")
        if path == "~" or path.startswith("~/"):
            path = home + path[1:]
        return posixpath.normpath(posixpath.join(home, path))

    @property
    def account(self) -> Account:
        """What counts the bytes that are held for this request, which was admitted."""
        assert self.call.account is not None
        return self.call.account

    # --- the body --------------------------------------------------------------------------------------------

    async def body(self, kind: type[T]) -> T:
        return parse(await self.call.whole_body(), kind)


def is_control_path(path: str) -> bool:
    """Whether the control plane serves this path."""
    first, _, rest = path[1:].partition("/")
    return (rest.partition("/")[0] if first in ("v2", "v3") else first) in _CONTROL


def parse(data: bytes, kind: type[T]) -> T:
    """Return JSON as a struct; 64-bit numbers may be strings. Invalid names the field that is wrong."""
    try:
        return msgspec.json.decode(data or b"{}", type=kind, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"error parsing the request: {error}") from error
    except RecursionError as error:
        raise Invalid("error parsing the request: it is nested too deeply") from error
