"""One tool call in progress. It may span several requests: if the client cannot be asked during a request, a question
to its user is the result, and the next request brings the reply."""

import asyncio
import secrets
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)

from hutch.errors import Refused, Timeout
from hutch.mcp.serving.client_info import Context, client_of
from hutch.tools import Answer, AskRequest, ToolResult, Tools

ANSWER_SECONDS = 300.0
"""Time for a person to answer a question. After it the answer is no."""
MAX_PARKED = 32
"""Most calls of one client that wait for an answer."""
QUESTION = "permission"

_CHOICES = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": "allow: this once; always: the same from now on; deny: no",
            "enum": [Answer.ALLOW, Answer.ALWAYS, Answer.DENY],
        }
    },
    "required": ["decision"],
}

_current: ContextVar["ToolCall"] = ContextVar("hutch_mcp_call")


class ToolCall:
    """One call, run in a task of its own.

    The SDK cancels every await again and again, during which no command could be killed in order. The task is
    cancelled only once, and then awaited.
    """

    def __init__(self, tools: Tools, ctx: Context, params: CallToolRequestParams) -> None:
        self.ctx = ctx
        """Context of the request that waits now."""
        self.requested = (params.name, params.arguments or {})
        self._question: asyncio.Future[AskRequest] | None = None
        self._answer: asyncio.Future[ElicitResult] | None = None
        token = _current.set(self)
        try:
            self.task = asyncio.create_task(self._work(tools))
        finally:
            _current.reset(token)

    async def _work(self, tools: Tools) -> ToolResult:
        name, arguments = self.requested
        wanted = self.ctx.meta is not None and "progress_token" in self.ctx.meta
        return await tools.call(name, arguments, progress=self._progress if wanted else None)

    async def _progress(self, seconds: float, total: float | None, message: str) -> None:
        await self.ctx.session.report_progress(round(seconds, 3), total, message)

    async def outcome(self) -> ToolResult | AskRequest:
        """Return the result, or a question that must be answered first. Cancellation kills the command."""
        self._question = asyncio.get_running_loop().create_future()
        waiting: set[Awaitable[Any]] = {self.task, self._question}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self.end()
            raise
        return self.task.result() if self.task.done() else self._question.result()

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    # --- asking -------------------------------------------------------------------------------------------------

    async def ask(self, request: AskRequest) -> Answer:
        if not client_of(self.ctx).can_ask:
            raise Refused("this client cannot ask its user", op="ask")
        if self.ctx.session.can_send_request:
            reply = await self._elicit(request)
        else:
            reply = await self._park(request)
        return _decision(reply)

    async def _elicit(self, request: AskRequest) -> ElicitResult:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self.ctx.session.elicit_form(_text(request), _CHOICES, self.ctx.request_id)
        except (MCPError, NoBackChannelError, TimeoutError) as error:
            raise Timeout(f"no answer: {error}", op="ask") from error

    async def _park(self, request: AskRequest) -> ElicitResult:
        """Answer the current request with the question, and wait until `answer` delivers the reply."""
        assert self._question is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._question.set_result(request)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._answer
        except TimeoutError as error:
            raise Timeout("no answer came in time", op="ask") from error

    def answer(self, ctx: Context, reply: ElicitResult) -> None:
        self.ctx = ctx
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(reply)


class ParkedCalls:
    """Calls of one client that wait for its user's answer."""

    def __init__(self) -> None:
        self._calls: dict[str, ToolCall] = {}

    def put(self, call: ToolCall, request: AskRequest) -> InputRequiredResult:
        state = secrets.token_urlsafe(18)
        self._calls[state] = call
        while len(self._calls) > MAX_PARKED:
            self._calls.pop(next(iter(self._calls))).task.cancel()
        asked = ElicitRequest(params=ElicitRequestFormParams(message=_text(request), requested_schema=_CHOICES))
        return InputRequiredResult(input_requests={QUESTION: asked}, request_state=state)

    def take(self, ctx: Context, params: CallToolRequestParams) -> ToolCall:
        """Return the parked call that this request resumes. Its tool and arguments must be the same."""
        call = self._calls.pop(params.request_state or "", None)
        if call is None or call.requested != (params.name, params.arguments or {}):
            if call is not None:
                call.task.cancel()
            raise MCPError(code=INVALID_PARAMS, message="no call waits for this answer: call the tool again")
        reply = (params.input_responses or {}).get(QUESTION)
        call.answer(ctx, reply if isinstance(reply, ElicitResult) else ElicitResult(action="cancel"))
        return call

    async def end(self) -> None:
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            await call.end()


async def ask(request: AskRequest) -> Answer:
    """Ask the user of the client whose call is running. `Tools` uses this as its `ask`."""
    return await _current.get().ask(request)


def _text(request: AskRequest) -> str:
    why = f"\nReason: {request.reason}" if request.reason else ""
    return f"{request.question}{why}"


def _decision(reply: ElicitResult) -> Answer:
    if reply.action != "accept":
        return Answer.DENY
    decision = (reply.content or {}).get("decision")
    return Answer(decision) if isinstance(decision, str) and decision in set(Answer) else Answer.DENY
