"""A desk given to the official SDK: which method of the protocol is which method of the desk."""

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
from hutch.mcp.serving.client_session import Desk
from hutch.mcp.serving.render import result_of
from hutch.tools.result import error_result

TITLE = "Hutch: isolated boxes"
CHANGES = NotificationOptions(tools_changed=True)

MakeDesk = Callable[[Client], Awaitable[Desk]]
FindDesk = Callable[[Context], Awaitable[Desk]]


class OneDesk:
    """For a connection that is one client's: its desk is made when it says its name, and closed with the connection."""

    def __init__(self, make: MakeDesk) -> None:
        self._make = make
        self._desk: Desk | None = None

    async def __call__(self, ctx: Context) -> Desk:
        if self._desk is None:
            made = await self._make(client_of(ctx))
            if self._desk is not None:  # two first requests at once
                await made.close()
                return self._desk
            self._desk = made
        return self._desk

    async def close(self) -> None:
        if self._desk is not None:
            await self._desk.close()


def server_on(desk_of: FindDesk) -> Server[Any]:
    """The SDK's server, whose tools are those of the desk at which the caller sits."""
    bus = InMemorySubscriptionBus()

    async def seated(ctx: Context) -> Desk:
        desk = await desk_of(ctx)
        session = ctx.session

        async def tell() -> None:
            if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                await bus.publish(ToolsListChanged())
            else:
                await session.send_tool_list_changed()

        desk.changed = tell
        return desk

    async def list_tools(ctx: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        try:
            return ListToolsResult(tools=await (await seated(ctx)).list())
        except HutchError:
            return ListToolsResult(tools=[])  # the instructions say why

    async def call_tool(ctx: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        try:
            desk = await seated(ctx)
        except HutchError as error:
            return result_of(error_result(error))
        return await desk.call(ctx, params)

    async def list_resources(ctx: Context, _: PaginatedRequestParams | None) -> ListResourcesResult:
        return ListResourcesResult(resources=(await _protocol(seated(ctx))).sent.list())

    async def read_resource(ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await (await _protocol(seated(ctx))).sent.read(params.uri)

    async def instruct(ctx: Context, call_next: CallNext) -> HandlerResult:
        """What a client is told at the start depends on who it is."""
        result = await call_next(ctx)
        if ctx.method not in ("initialize", "server/discover") or not isinstance(result, dict):
            return result
        try:
            told = await (await seated(ctx)).instructions()
        except HutchError as error:
            told = f"Hutch cannot be used now: {error.message}. {error.remedy}".strip()
        return {**result, "instructions": told}

    server: Server[Any] = Server(
        "hutch", version=__version__, title=TITLE, on_list_tools=list_tools, on_call_tool=call_tool,
        on_list_resources=list_resources, on_read_resource=read_resource, on_subscriptions_listen=ListenHandler(bus),
    )  # fmt: skip
    server.middleware.append(instruct)
    return server


async def _protocol(seat: Awaitable[Desk]) -> Desk:
    """Where no result can hold the error, it is one of the protocol."""
    try:
        return await seat
    except HutchError as error:
        raise MCPError(code=INTERNAL_ERROR, message=error.message) from error


def options_of(server: Server[Any]) -> InitializationOptions:
    return server.create_initialization_options(CHANGES)
