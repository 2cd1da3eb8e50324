"""LangBot's door: `/rpc/ws` carries the actions, and one WebSocket for each managed process carries its lines."""

import asyncio
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import msgspec

from hutch.errors import HutchError, Invalid, Unavailable
from hutch.keeper.access.callers import called_by
from hutch.logs import current_operation, log
from hutch.providers.guest_client.allowance import allowed
from hutch.server.auth import Authenticator, Caller
from hutch.server.error_status import status_of
from hutch.server.handlers.receipts import who_of
from hutch.server.handlers.websockets import RESTART, Socket
from hutch.server.langbot.actions import Actions
from hutch.server.langbot.messages import (
    Context,
    Request,
    answer,
    error_name,
    error_text,
    is_instance,
    refusal,
)
from hutch.server.langbot.processes import Processes
from hutch.server.langbot.sessions import Sessions
from hutch.server.langbot.shared_roots import SharedRoots
from hutch.server.request import Call, Receive, Scope, Send, headers_of
from hutch.server.routes import May, check_role
from hutch.server.service import Service
from hutch.server.state.budget import Account

RPC = "/rpc/ws"
RELAY = "/v1/sessions/"
MAX_ACTIONS = 128
UNAUTHORIZED = b"Unauthorized"

Run = Callable[[Request], Awaitable[str]]
"""Runs one request and returns the frame of its answer."""


class LangBotDoor:
    """Serves any number of LangBots; each key's sessions are its owner's boxes."""

    name = "langbot"

    def __init__(self, service: Service, auth: Authenticator) -> None:
        self._service = service
        self._auth = auth
        self._sessions = Sessions(service, SharedRoots(service.config.server.langbot_shared_roots))
        self._processes = Processes()
        self._channels: set[Channel] = set()

    def claims(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return scope["type"] == "websocket" and (path == RPC or path.startswith(RELAY))

    async def start(self) -> None:
        return None

    async def drain(self, seconds: float) -> None:
        """Give running actions their time to answer, then close the channels; LangBot connects again by itself."""
        await asyncio.gather(*(channel.drain(seconds) for channel in tuple(self._channels)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket, headers = Socket(receive, send), headers_of(scope)
        instance = headers.get("x-langbot-instance-id", "").strip()
        try:
            call = Call(self._service, await self._authenticate(scope, instance), scope, receive, {})
        except HutchError as error:
            log("server").info("refused", operation=self.name, code=error.code, why=error.message)
            await socket.refuse(401, UNAUTHORIZED, "text/plain")
            return
        account = call.admit(scope)
        try:
            if scope["path"] == RPC:
                await self._serve_channel(scope, socket, call.caller, instance, account)
            else:
                with called_by(who_of(call.caller, current_operation()), call.caller.rights), allowed(account):
                    await self._serve_relay(scope, socket, call, instance)
        except OSError:  # uvicorn's ClientDisconnected; there is nobody to answer.
            return
        finally:
            account.close()

    async def _authenticate(self, scope: Scope, instance: str) -> Caller:
        """The control token is a key of Hutch; each LangBot has a session of its own."""
        headers = headers_of(scope)
        self._auth.check_origin(headers, scope["scheme"])
        if not is_instance(instance):
            raise Invalid("a valid X-LangBot-Instance-Id is required")
        given = {"hutch-session": f"langbot:{instance}"[:128]}
        if token := headers.get("x-langbot-box-control-token", "").strip():
            given["hutch-key"] = token
        caller = await self._auth.authenticate(given, scope["client"])
        check_role(May.CHANGE, caller, self.name)
        return caller

    # --- the channel ----------------------------------------------------------------------------------------

    async def _serve_channel(
        self, scope: Scope, socket: Socket, caller: Caller, instance: str, account: Account
    ) -> None:
        actions = Actions(self._service, self._sessions, self._processes, caller, instance)

        async def run(request: Request) -> str:
            # The key is checked again for each action: it may have been revoked, and its rate is limited.
            started, code = time.monotonic(), ""
            try:
                actions.caller = await self._authenticate(scope, instance)
                who = who_of(actions.caller, current_operation())
                with called_by(who, actions.caller.rights), allowed(account):
                    return answer(request.seq_id, await actions.run(request.action, request.data, request.context))
            except HutchError as error:
                code = error.code
                self._record(error, request.action, actions.caller)
                return refusal(request.seq_id, error)
            except Exception as error:  # The boundary of an action: a defect is reported, and the channel stays open.
                code = "internal"
                log("server").error("defect", operation=request.action[:100], error=error, trace=traceback.format_exc())
                return refusal(request.seq_id, HutchError("internal error"))
            finally:
                name = request.action if actions.knows(request.action) else "?"
                self._service.metrics.count_request(
                    f"langbot {name}", status_of(code) if code else 200, time.monotonic() - started
                )

        channel = Channel(socket, run, self._service, account)
        self._channels.add(channel)
        try:
            await channel.serve()
        finally:
            self._channels.discard(channel)

    def _record(self, error: HutchError, action: str, caller: Caller) -> None:
        status = status_of(error.code)
        self._service.record_failure(
            error, status=status, op=f"langbot {action[:100]}", request=current_operation(), box="", owner=caller.owner
        )
        log("server").info("refused", operation=f"langbot {action[:100]}", code=error.code, why=error.message)

    # --- relays ---------------------------------------------------------------------------------------------

    async def _serve_relay(self, scope: Scope, socket: Socket, call: Call, instance: str) -> None:
        context = _relay_context(call, instance)
        parts = scope["path"].removeprefix(RELAY).split("/")
        if len(parts) not in (3, 4) or parts[1] != "managed-process" or parts[-1] != "ws":
            await socket.refuse(404, b"Not Found", "text/plain")
            return
        physical, process_id = unquote(parts[0]), unquote(parts[2]) if len(parts) == 4 else "default"
        if context is None or not physical.startswith(context.prefix):
            await socket.refuse(401, UNAUTHORIZED, "text/plain")
            return
        try:
            await self._sessions.fence(call.caller, context)
            live = await self._sessions.find_physical(call.caller, physical)
            offered = [each.strip() for each in call.header("sec-websocket-protocol").split(",")]
            async with self._sessions.boxes.use(call.caller, live) as box:
                await self._processes.relay(box, physical, process_id, socket, "mcp" if "mcp" in offered else "")
        except HutchError as error:
            self._record(error, "relay", call.caller)
            if socket.accepted:
                await socket.close(1000, error.message)
            else:
                body = {"error": {"code": error_name(error), "message": error_text(error)}}
                await socket.refuse(400, msgspec.json.encode(body))


class Channel:
    """One control connection: requests run at the same time, and their answers come in any order."""

    def __init__(self, socket: Socket, run: Run, service: Service, account: Account) -> None:
        self._socket = socket
        self._run = run
        self._service = service
        self._account = account
        self._running: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        """Held while a frame is sent: a large one is written in several steps."""

    async def serve(self) -> None:
        """Serve until the client disconnects, which ends what it still runs, or until the server stops."""
        await self._socket.accept()
        try:
            while (frame := await self._service.unless_draining(self._socket.next())) is not None:
                await self._receive(frame)
        except Unavailable:  # The server stops.
            await self.drain(self._service.config.server.drain_sec)
            await self._socket.close(RESTART, "the server is stopping")
        finally:
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.wait(self._running)

    async def drain(self, seconds: float) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    async def _receive(self, frame: bytes | str) -> None:
        try:
            request = msgspec.json.decode(frame, type=Request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            await self._refuse_malformed(frame, error)
            return
        if len(self._running) >= MAX_ACTIONS:
            busy = HutchError(f"Runtime connection is busy (max {MAX_ACTIONS} concurrent actions)")
            await self._send(refusal(request.seq_id, busy))
            return
        try:
            self._account.take(len(frame))
        except HutchError as error:
            await self._send(refusal(request.seq_id, error))
            return
        task = asyncio.create_task(self._answer(request, len(frame)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _refuse_malformed(self, frame: bytes | str, error: Exception) -> None:
        """Answer a request whose members are wrong; a frame that is no request at all is only logged."""
        log("server").info("unreadable frame", operation="langbot", error=str(error)[:200])
        seq_id = _number_of(frame)
        if seq_id is not None:
            await self._send(refusal(seq_id, Invalid(f"not a valid request: {error}")))

    async def _answer(self, request: Request, size: int) -> None:
        """Run a request, whose `size` bytes are held until it has been answered."""
        try:
            await self._send(await self._run(request))
        finally:
            self._account.give(size)

    async def _send(self, frame: str) -> None:
        try:
            async with self._sending:
                await self._socket.send(frame)
        except OSError:  # The client has disconnected meanwhile.
            return


def _number_of(frame: bytes | str) -> int | None:
    try:
        return msgspec.json.decode(frame, type=_Numbered).seq_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # Unlike msgspec it reads the lone surrogates that Python's own encoder writes for bytes that are no text.
        return msgspec.convert(json.loads(frame), type=_Numbered).seq_id
    except (ValueError, msgspec.ValidationError, RecursionError):
        return None


class _Numbered(msgspec.Struct):
    """A frame of which only the number is known; a response, which the client never has to send, has no action."""

    seq_id: int
    action: object


def _relay_context(call: Call, instance: str) -> Context | None:
    workspace = call.header("x-langbot-workspace-id")
    generation = call.header("x-langbot-placement-generation") or "1"
    if not workspace or not generation.isdecimal() or len(generation) > 9 or generation.strip("0") == "":
        return None
    return Context(instance_uuid=instance, workspace_uuid=workspace, placement_generation=int(generation))
