"""Connects client sessions to the official SDK: maps methods of the protocol to methods of the session."""

from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from hutch import __version__
from hutch.errors import HutchError
from hutch.mcp.serving.client_info import Client, Context, client_of
from hutch.mcp.serving.client_session import ClientSession
from hutch.mcp.serving.render import result_of
from hutch.tools.result import error_result

TITLE = "Hutch: isolated boxes"
NOTIFICATIONS = NotificationOptions(tools_changed=True)

OpenSession = Callable[[Client], Awaitable[ClientSession]]
FindSession = Callable[[Context], Awaitable[ClientSession]]


class ConnectionSession:
    """The client session of one connection, opened when the client says its name and closed with the connection."""

    def __init__(self, make: OpenSession) -> None:
        self._make = make
        self._session: ClientSession | None = None

    async def __call__(self, ctx: Context) -> ClientSession:
        if self._session is None:
            made = await self._make(client_of(ctx))
            if self._session is not None:  # Two first requests came at once.
                await made.close()
                return self._session
            self._session = made
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def server_for(find_session: FindSession) -> Server[Any]:
    """Return an SDK server that serves the tools of the session that `find_session` returns."""
    bus = InMemorySubscriptionBus()

    async def find(ctx: Context) -> ClientSession:
        client_session = await find_session(ctx)
        session = ctx.session

        async def announce() -> None:
            if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                await bus.publish(ToolsListChanged())
            else:
                await session.send_tool_list_changed()

        client_session.on_tools_changed = announce
        return client_session

    async def list_tools(ctx: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        try:
            return ListToolsResult(tools=await (await find(ctx)).list())
        except HutchError:
            return ListToolsResult(tools=[])  # The instructions say why.

    async def call_tool(ctx: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        try:
            client_session = await find(ctx)
        except HutchError as error:
            return result_of(error_result(error))
        return await client_session.call(ctx, params)

    async def list_resources(ctx: Context, _: PaginatedRequestParams | None) -> ListResourcesResult:
        return ListResourcesResult(resources=(await _or_protocol_error(find(ctx))).sent_files.list())

    async def read_resource(ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await (await _or_protocol_error(find(ctx))).sent_files.read(params.uri)

    async def instruct(ctx: Context, call_next: CallNext) -> HandlerResult:
        """Add the instructions, which depend on the client."""
        result = await call_next(ctx)
        if ctx.method not in ("initialize", "server/discover") or not isinstance(result, dict):
            return result
        try:
            text = await (await find(ctx)).instructions()
        except HutchError as error:
            text = f"Hutch cannot be used now: {error.message}. {error.remedy}".strip()
        return {**result, "instructions": text}

    server: Server[Any] = Server(
        "hutch", version=__version__, title=TITLE, on_list_tools=list_tools, on_call_tool=call_tool,
        on_list_resources=list_resources, on_read_resource=read_resource, on_subscriptions_listen=ListenHandler(bus),
    )  # fmt: skip
    server.middleware.append(instruct)
    return server


async def _or_protocol_error(found: Awaitable[ClientSession]) -> ClientSession:
    """Convert an error to one of the protocol, for methods whose results cannot hold it."""
    try:
        return await found
    except HutchError as error:
        raise MCPError(code=INTERNAL_ERROR, message=error.message) from error


def options_of(server: Server[Any]) -> InitializationOptions:
    return server.create_initialization_options(NOTIFICATIONS)
