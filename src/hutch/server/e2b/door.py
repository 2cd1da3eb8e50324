"""The door: which requests are E2B's, who calls, and which part of the protocol answers.

A request that names a sandbox, by the header `E2b-Sandbox-Id` or by a host name, belongs to that sandbox: port 49983 is
E2B's agent `envd`, 49999 the code interpreter, any other port a program in the box. All other requests are the control
plane's, found by their paths.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hmac import compare_digest

from hutch import logs
from hutch.errors import HeldElsewhere, HutchError, Unauthenticated, Unsupported
from hutch.keeper.access.callers import called_by
from hutch.keeper.keys import Key, Role
from hutch.logs import log
from hutch.model.ids import BoxId, is_box_id
from hutch.providers.guest_client.allowance import allowed
from hutch.server.auth import Authenticator
from hutch.server.e2b import interpreter, ports, volumes
from hutch.server.e2b.agent import filesystem, processes, transfers, watchers
from hutch.server.e2b.agent.connect import (
    ClientStream,
    Nothing,
    ServerStream,
    Unary,
    serve_client_stream,
    serve_stream,
    serve_unary,
)
from hutch.server.e2b.control import routes
from hutch.server.e2b.control.metrics import agent_metrics
from hutch.server.e2b.credentials import SignedRequest, to_hutch_key
from hutch.server.e2b.errors import Answer, NotRunning, answer_of, status_of
from hutch.server.e2b.labels import SESSION, TEMPLATE
from hutch.server.e2b.requests import ENVD_PORT, INTERPRETER_PORT, Request, is_control_path
from hutch.server.e2b.sandboxes import Sandboxes
from hutch.server.handlers.receipts import who_of
from hutch.server.peers import Peers, Recorded
from hutch.server.previews.hosts import PortName
from hutch.server.request import ANONYMOUS, Call, Message, Receive, Scope, Send
from hutch.server.service import Service

_SANDBOX = b"e2b-sandbox-id"
_CONTENT = "/volumecontent/"


class E2BDoor:
    """Serves the parts of E2B's protocol that docs/guides/e2b.md lists."""

    name = "e2b"

    def __init__(self, service: Service, auth: Authenticator) -> None:
        self._service = service
        self._auth = auth
        self._peers = Peers(service, auth)
        self._sandboxes = Sandboxes(service)
        self._methods = agent_methods(watchers.Watchers())

    def claims(self, scope: Scope) -> bool:
        if scope["type"] not in ("http", "websocket"):
            return False
        headers = {name: value for name, value in scope["headers"] if name in (_SANDBOX, b"host")}
        # The name first: a page of a preview may send any header to its own origin.
        if (name := self._service.previews.hosts.parse(headers.get(b"host", b"").decode("latin-1"))) is not None:
            return self._is_sandbox(name)
        if _SANDBOX in headers:
            return True
        path: str = scope["path"]
        ours = path == "/files" or path in self._methods or is_control_path(path)
        return ours and scope["type"] == "http"

    def _is_sandbox(self, name: PortName) -> bool:
        """Whether a host name belongs to a sandbox, running or ended."""
        if str(name.port) in (ENVD_PORT, INTERPRETER_PORT) or name.box_id in self._sandboxes.ended:
            return True
        live = self._service.keeper.held(name.box_id)
        return live is not None and TEMPLATE in live.record.spec.labels

    async def start(self) -> None:
        return None

    async def drain(self, seconds: float) -> None:
        await self._sandboxes.streams.cut_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def starting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        received = self._peers.recorded(receive)
        call = Call(self._service, ANONYMOUS, scope, received, {})
        call.op = f"e2b {scope['method']} {scope['path']}"[:200]
        try:
            try:
                answer = await self._serve_or_pass_on(call, scope, received, starting)
            except HutchError as error:
                answer = self._refused(call, error)
            if scope["type"] == "websocket" and not started:
                await send({"type": "websocket.close", "code": 1008})
            elif answer is not None and not started:  # A stream that failed is cut: nobody takes it for complete.
                await _send_answer(send, answer)
        finally:
            if call.account is not None:
                call.account.close()

    async def _serve_or_pass_on(self, call: Call, scope: Scope, received: Recorded, send: Send) -> Answer | None:
        try:
            return await self._serve(Request(call, scope, self._sandboxes), scope, received, send)
        except HeldElsewhere as elsewhere:
            await self._peers.pass_on(elsewhere, scope, received, send)
            return None

    def _refused(self, call: Call, error: HutchError) -> Answer:
        status = status_of(error)
        self._service.record_failure(
            error, status=status, op=call.op, request=logs.current_operation(), box=call.params.get("box", ""),
            owner=call.caller.owner,
        )  # fmt: skip
        report = log("server").warning if status >= 500 and status != 502 else log("server").info
        report("refused", operation=call.op, status=status, code=error.code, why=error.message, by=call.caller.key_id)
        return answer_of(error)

    async def _serve(self, request: Request, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """Return the answer to send, or None if a stream was sent already."""
        call = request.call
        if request.sandbox:
            await self._peers.check_place(request.sandbox, request.client)
        if request.sandbox and request.port not in (ENVD_PORT, INTERPRETER_PORT):
            request.name_sandbox(request.sandbox)
            await self._authenticate_by_id(request)
            await ports.proxy(request, int(request.port), scope, receive, send)
            return None
        if scope["type"] == "websocket":
            raise Unsupported("the agent of a sandbox has no WebSockets")
        if not request.by_host:
            self._auth.check_origin(call.headers, scope["scheme"])
        signed = request.path == "/files" and not call.header("x-access-token")
        if request.sandbox and self._is_open(request):
            request.name_sandbox(request.sandbox)
            await self._authenticate_by_id(request)
        elif signed:
            await self._authenticate_signature(request)
        elif request.path.startswith(_CONTENT):
            await self._authenticate_volume(request)
        elif request.sandbox or request.path in self._methods:
            await self._authenticate_token(request)
        else:
            await self._authenticate_key(request)
        account = call.admit(scope)
        with ExitStack() as held:
            held.enter_context(called_by(who_of(call.caller, logs.current_operation()), call.caller.rights))
            held.enter_context(allowed(account))
            return await self._dispatch(request, send)

    async def _dispatch(self, request: Request, send: Send) -> Answer | None:
        if not request.sandbox and request.path.startswith(_CONTENT):
            return await volumes.serve_content(request, send)
        if not request.sandbox:
            return await routes.serve(request)
        if request.port == INTERPRETER_PORT:
            return await interpreter.serve(request, send)
        if request.path == "/files":
            return await transfers.serve(request, send)
        if request.path == "/health":
            await request.find_running()
            return Answer(204)
        if request.path == "/metrics":
            return await agent_metrics(request)
        method = self._methods.get(request.path)
        if method is None:
            raise Unsupported(f"{request.path} is not a part of the E2B protocol that this server speaks")
        if isinstance(method, Unary):
            return await serve_unary(request, method)
        if isinstance(method, ClientStream):
            return await serve_client_stream(request, method)
        await serve_stream(request, send, method)
        return None

    # --- who calls -------------------------------------------------------------------------------------------

    async def _authenticate_key(self, request: Request) -> None:
        call, scope_client = request.call, request.client
        key = to_hutch_key(call.header("x-api-key"))
        headers = {"authorization": f"Bearer {key}"} if key else {}
        caller = await self._auth.authenticate(headers, scope_client)
        if caller.role is Role.OBSERVER:
            raise Unauthenticated("a key of role observer cannot use sandboxes", remedy="use a key of role user")
        call.caller = caller.but(session=SESSION)

    async def _authenticate_token(self, request: Request) -> None:
        """Authenticate a data-plane request by the sandbox's token, and act for the key it was issued to."""
        token = request.call.header("x-access-token")
        if not request.sandbox:
            self._auth.count_anonymous(request.client)  # The search below goes through every sandbox.
            request.sandbox = self._owner_of(token)
        key_id = self._sandboxes.tokens.key_of(request.sandbox, token)
        await self._act_for(request, key_id)

    async def _authenticate_volume(self, request: Request) -> None:
        """Authenticate a request for the content of a volume by the token that came with the volume."""
        scheme, _, token = request.call.header("authorization").partition(" ")
        name = volumes.volume_of_content(request.path)
        key_id = self._sandboxes.tokens.key_of(volumes.subject(name), token if scheme.lower() == "bearer" else "")
        await self._act_for(request, key_id)

    def _owner_of(self, token: str) -> str:
        """Return the sandbox that a token opens. SDKs before 2.35 do not name the sandbox after `connect`."""
        key_id, of = token.partition(".")[0], self._sandboxes.tokens.of
        for record in self._service.keeper.boxes():
            if TEMPLATE in record.spec.labels and compare_digest(
                of(record.id, key_id).encode(), token.encode("utf-8", "replace")
            ):
                return record.id
        raise Unauthenticated("this access token is no sandbox's", remedy="connect to the sandbox again")

    async def _act_for(self, request: Request, key_id: str) -> None:
        caller = await self._auth.trust(key_id, SESSION)
        if caller is None:
            raise Unauthenticated("the key of this access token is revoked", remedy="connect with another key")
        request.call.caller = caller
        request.name_sandbox(request.sandbox)

    async def _authenticate_signature(self, request: Request) -> None:
        """Find the sandbox and the key whose token signed a URL. Most SDKs name neither in it."""
        query = request.query
        signed = SignedRequest(
            query.get("path", ""), query.get("username", ""), query.get("signature", ""),
            query.get("signature_expiration", ""), writes=request.method == "POST",
        )  # fmt: skip
        self._auth.count_anonymous(request.client)
        candidates = self._possible_signers(request.sandbox, await self._service.keys.all())
        request.sandbox, key_id = signed.signer(self._sandboxes.tokens, candidates)
        signed.check_expiration()
        await self._act_for(request, key_id)

    def _possible_signers(self, named: str, keys: Iterable[Key]) -> Iterator[tuple[str, str]]:
        """Yield each sandbox, or the one that is named, with each key of its owner: the newest sandbox first."""
        of_owner: defaultdict[str, list[str]] = defaultdict(list)
        for key in keys:
            if key.revoked_at is None:
                of_owner[key.owner].append(key.id)
        for record in sorted(self._service.keeper.boxes(), key=lambda record: record.created_at, reverse=True):
            if TEMPLATE in record.spec.labels and named in ("", record.id):
                yield from ((record.id, key_id) for key_id in of_owner[record.owner])

    def _is_open(self, request: Request) -> bool:
        """Whether the protocol lets everybody who knows a sandbox's id do this: ask for its health, see contexts.

        The SDKs send no token with these. An id has a hundred random bits, so it cannot be guessed.
        """
        contexts = request.path.startswith("/contexts") and request.port == INTERPRETER_PORT
        return request.path == "/health" or contexts

    async def _authenticate_by_id(self, request: Request) -> None:
        """Let whoever knows the sandbox's id act with the rights of its owner."""
        self._auth.count_anonymous(request.client)
        live = self._service.keeper.held(BoxId(request.sandbox)) if is_box_id(request.sandbox) else None
        if live is None:
            raise NotRunning(request.sandbox)
        rights = self._service.rights_of(live.record.owner)
        request.call.caller = ANONYMOUS.but(owner=live.record.owner, role=Role.USER, session=SESSION, rights=rights)


def agent_methods(watching: watchers.Watchers) -> dict[str, Unary | ServerStream | ClientStream]:
    """Return every call of E2B's agent by its path; those on watchers keep what they began in `watching`."""
    process, files = "/process.Process/", "/filesystem.Filesystem/"
    return {
        process + "Start": ServerStream(processes.StartMessage, processes.start, processes.KEEPALIVE, ends_itself=True),
        process + "Connect": ServerStream(processes.ProcessMessage, processes.connect, processes.KEEPALIVE),
        process + "List": Unary(Nothing, processes.list_processes),
        process + "SendInput": Unary(processes.InputMessage, processes.send_input),
        process + "StreamInput": ClientStream(processes.StreamMessage, processes.stream_input),
        process + "CloseStdin": Unary(processes.ProcessMessage, processes.close_stdin),
        process + "SendSignal": Unary(processes.SignalMessage, processes.send_signal),
        process + "Update": Unary(processes.UpdateMessage, processes.update),
        files + "Stat": Unary(filesystem.PathMessage, filesystem.stat),
        files + "ListDir": Unary(filesystem.ListMessage, filesystem.list_dir),
        files + "MakeDir": Unary(filesystem.PathMessage, filesystem.make_dir),
        files + "Move": Unary(filesystem.MoveMessage, filesystem.move),
        files + "Remove": Unary(filesystem.PathMessage, filesystem.remove),
        files + "WatchDir": ServerStream(watchers.WatchMessage, watchers.watch_dir, watchers.KEEPALIVE),
        files + "CreateWatcher": Unary(watchers.WatchMessage, watching.create),
        files + "GetWatcherEvents": Unary(watchers.WatcherMessage, watching.events),
        files + "RemoveWatcher": Unary(watchers.WatcherMessage, watching.remove),
    }


async def _send_answer(send: Send, answer: Answer) -> None:
    headers = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    headers += [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
    if answer.status != 204:
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
