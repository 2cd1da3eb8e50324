"""Endpoints for clients: an MCP server in front of one hosted server, or of all of them (the gateway).

The gateway names a tool `server__tool`, and prompts likewise; resources keep their URIs. Clients stay connected when a
hosted server restarts, and are notified that its lists may have changed.
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import mcp.types as types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.dispatcher import ProgressFnT
from pydantic import BaseModel

import hutch
from hutch.errors import HutchError, NotFound
from hutch.logs import log
from hutch.mcp.hosting.supervisor import Supervisor
from hutch.policy.mcp_servers import SEPARATOR, offers
from mcp import MCPError

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)
Context = ServerRequestContext[Any, Any]

NOTIFICATIONS = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
MAX_PAGES = 100
"""Most pages of one list, because a faulty server may always announce a next page."""


class Endpoint:
    """One endpoint. `servers` returns the hosted servers behind it, by name."""

    def __init__(
        self, name: str, servers: Callable[[], Mapping[str, Supervisor]], *, prefixed: bool, wait_sec: float
    ) -> None:
        self._servers = servers
        self._prefixed = prefixed
        self._wait_sec = wait_sec
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._resources: dict[str, str] = {}
        """Maps the URI or template of a resource to its server."""
        self._bus = InMemorySubscriptionBus()
        self.server: Server[Any] = Server(
            name, version=hutch.__version__, on_list_tools=self._list_tools, on_call_tool=self._call_tool,
            on_list_resources=self._list_resources, on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource, on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe, on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt, on_completion=self._complete,
            on_subscriptions_listen=ListenHandler(self._bus),
        )  # fmt: skip
        self.server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        self.server.middleware.append(self._track_connection)

    # --- tools ----------------------------------------------------------------------------------------------------

    async def _list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        listed = await self._ask_all(lambda each: tools_of(each))
        return types.ListToolsResult(
            tools=[
                tool.model_copy(update={"name": self._public_name(name, tool.name)})
                for name, tools in listed.items()
                for tool in tools
            ]
        )

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        supervisor, tool = self._find(params.name, "tool")
        return await self._ask_with_progress(
            ctx, supervisor, lambda report: supervisor.call_tool(_forwarded(params, name=tool), report)
        )

    # --- resources ------------------------------------------------------------------------------------------------

    async def _list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        listed = await self._ask_all(resources_of)
        self._resources |= {resource.uri: name for name, found in listed.items() for resource in found}
        return types.ListResourcesResult(resources=[each for found in listed.values() for each in found])

    async def _list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        listed = await self._ask_all(templates_of)
        self._resources |= {each.uri_template: name for name, found in listed.items() for each in found}
        return types.ListResourceTemplatesResult(
            resource_templates=[each for found in listed.values() for each in found]
        )

    async def _read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        request = types.ReadResourceRequest(params=_forwarded(params))
        refused: MCPError | None = None
        for supervisor in self._candidates(params.uri):
            try:
                return await self._ask(ctx, supervisor, request, types.ReadResourceResult)
            except MCPError as error:  # It does not have the resource, but the next one may.
                refused = error
        raise refused or MCPError(types.INVALID_PARAMS, f"there is no resource {params.uri}")

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        supervisor = next(iter(self._candidates(params.uri)))
        return await self._ask(ctx, supervisor, types.SubscribeRequest(params=_forwarded(params)), types.EmptyResult)

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        supervisor = next(iter(self._candidates(params.uri)))
        return await self._ask(ctx, supervisor, types.UnsubscribeRequest(params=_forwarded(params)), types.EmptyResult)

    # --- prompts, completion, logging -----------------------------------------------------------------------------

    async def _list_prompts(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        listed = await self._ask_all(prompts_of)
        return types.ListPromptsResult(
            prompts=[
                prompt.model_copy(update={"name": self._public_name(name, prompt.name)})
                for name, prompts in listed.items()
                for prompt in prompts
            ]
        )

    async def _get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        supervisor, prompt = self._find(params.name, "prompt")
        request = types.GetPromptRequest(params=_forwarded(params, name=prompt))
        return await self._ask(ctx, supervisor, request, types.GetPromptResult)

    async def _complete(self, ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        if isinstance(params.ref, types.PromptReference):
            supervisor, prompt = self._find(params.ref.name, "prompt")
            params = params.model_copy(update={"ref": params.ref.model_copy(update={"name": prompt})})
        else:
            supervisor = next(iter(self._candidates(params.ref.uri)))
        return await self._ask(ctx, supervisor, types.CompleteRequest(params=_forwarded(params)), types.CompleteResult)

    async def _set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        for supervisor in self._servers().values():
            capabilities = supervisor.initialize_result.capabilities if supervisor.initialize_result else None
            if capabilities is not None and capabilities.logging is not None:
                await self._ask(ctx, supervisor, types.SetLevelRequest(params=_forwarded(params)), types.EmptyResult)
        return types.EmptyResult()

    # --- notifications --------------------------------------------------------------------------------------------

    async def changed(self, name: str) -> None:
        """Notify clients that a server came or went, so that lists may have changed."""
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()):
            await self._bus.publish(event)
        for connection in list(self._connections):
            await _quietly(connection.send_tool_list_changed())
            await _quietly(connection.send_prompt_list_changed())
            await _quietly(connection.send_resource_list_changed())

    async def forward_notification(self, name: str, message: types.ServerNotification) -> None:
        """Forward a server's notification that belongs to no request."""
        match message:
            case types.ToolListChangedNotification():
                await self._bus.publish(ToolsListChanged())
            case types.PromptListChangedNotification():
                await self._bus.publish(PromptsListChanged())
            case types.ResourceListChangedNotification():
                await self._bus.publish(ResourcesListChanged())
            case types.ResourceUpdatedNotification(params=params):
                await self._bus.publish(ResourceUpdated(uri=str(params.uri)))
            case types.LoggingMessageNotification():
                pass
            case _:
                return
        data = message.model_dump(by_alias=True, mode="json", exclude_none=True)
        for connection in list(self._connections):
            await _quietly(connection.notify(data["method"], data.get("params")))

    async def _track_connection(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Remember the connection of a request. The SDK offers handlers no public access to it."""
        self._connections.add(ctx.session._connection)
        try:
            return await call_next(ctx)
        except HutchError as error:
            raise to_mcp_error(error) from error

    # --- finding ----------------------------------------------------------------------------------------------

    def _public_name(self, server: str, name: str) -> str:
        return f"{server}{SEPARATOR}{name}" if self._prefixed else name

    def _find(self, name: str, what: str) -> tuple[Supervisor, str]:
        servers = self._servers()
        if not self._prefixed:
            return next(iter(servers.values())), name
        server, separator, own = name.partition(SEPARATOR)
        if not separator or server not in servers:
            raise MCPError(types.INVALID_PARAMS, f"there is no {what} {name}")
        return servers[server], own

    def _candidates(self, uri: str) -> Sequence[Supervisor]:
        """Return the servers that may have a resource, the most likely first."""
        servers = self._servers()
        known = servers.get(self._resources.get(uri, ""))
        others = [each for each in servers.values() if each is not known and _offers(each, "resources")]
        found = [*((known,) if known is not None else ()), *others]
        if not found:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri}")
        return found

    async def _ask_all(self, ask: Callable[[Supervisor], Awaitable[T]]) -> dict[str, T]:
        """Ask all servers and return the answers that came in time. Late servers are announced when they are ready."""
        servers = self._servers()
        asking = {name: asyncio.ensure_future(ask(each)) for name, each in servers.items()}
        if not asking:
            return {}
        wait = self._wait_sec if self._prefixed else None
        done, late = await asyncio.wait(asking.values(), timeout=wait)
        for task in late:
            task.cancel()
        found: dict[str, T] = {}
        for name, task in asking.items():
            if task not in done:
                log("mcp").info("server left out of a list: it is not ready yet", server=name)
                continue
            error = task.exception()
            if error is None:
                found[name] = task.result()
            elif not self._prefixed:
                raise to_mcp_error(error)
            else:
                log("mcp").warning("server left out of a list", server=name, error=error)
        return found

    async def _ask(self, ctx: Context, supervisor: Supervisor, request: Any, kind: type[R]) -> R:
        return await self._ask_with_progress(
            ctx, supervisor, lambda report: supervisor.request(request, kind, report)
        )  # fmt: skip

    async def _ask_with_progress(
        self, ctx: Context, supervisor: Supervisor, ask: Callable[[ProgressFnT], Awaitable[T]]
    ) -> T:
        """Forward a client's request to a server and its progress to the client. Cancellation is forwarded too."""

        async def report(progress: float, total: float | None, message: str | None) -> None:
            await ctx.session.report_progress(progress, total, message)

        try:
            with supervisor.in_flight.track(ctx):
                return await ask(report)
        except HutchError as error:
            raise to_mcp_error(error) from error


def to_mcp_error(error: BaseException) -> MCPError:
    """Convert an error for JSON-RPC, with our common error format as `data`."""
    if isinstance(error, MCPError):
        return error
    if not isinstance(error, HutchError):
        return MCPError(types.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
    code = types.INVALID_PARAMS if isinstance(error, NotFound) else types.INTERNAL_ERROR
    return MCPError(code, error.message, data=error.to_wire())


async def tools_of(supervisor: Supervisor) -> list[types.Tool]:
    """Return the tools that the server's definition allows."""
    if not await _has(supervisor, "tools"):
        return []
    listed = await _pages(supervisor, types.ListToolsRequest, types.ListToolsResult)
    tools = [tool for page in listed for tool in page.tools if offers(supervisor.entry.server, tool.name)]
    supervisor.tools = len(tools)
    return tools


async def resources_of(supervisor: Supervisor) -> list[types.Resource]:
    if not await _has(supervisor, "resources"):
        return []
    listed = await _pages(supervisor, types.ListResourcesRequest, types.ListResourcesResult)
    return [each for page in listed for each in page.resources]


async def templates_of(supervisor: Supervisor) -> list[types.ResourceTemplate]:
    if not await _has(supervisor, "resources"):
        return []
    listed = await _pages(supervisor, types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult)
    return [each for page in listed for each in page.resource_templates]


async def prompts_of(supervisor: Supervisor) -> list[types.Prompt]:
    if not await _has(supervisor, "prompts"):
        return []
    listed = await _pages(supervisor, types.ListPromptsRequest, types.ListPromptsResult)
    return [each for page in listed for each in page.prompts]


async def _has(supervisor: Supervisor, capability: str) -> bool:
    await supervisor.ready()
    return _offers(supervisor, capability)


def _offers(supervisor: Supervisor, capability: str) -> bool:
    initialize_result = supervisor.initialize_result
    return initialize_result is None or getattr(initialize_result.capabilities, capability) is not None


async def _pages(supervisor: Supervisor, request: Any, kind: type[R]) -> list[R]:
    pages: list[R] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
        page = await supervisor.request(request(params=params), kind)
        pages.append(page)
        cursor = getattr(page, "next_cursor", None)
        if not cursor:
            break
    return pages


_PROGRESS_KEYS = ("progressToken", "progress_token")
_CONNECTION_PREFIX = "io.modelcontextprotocol/"
"""Prefix of keys by which a request without handshake describes its own connection. They are not for the server."""


def _forwarded(params: Any, **changes: Any) -> Any:
    """Return the client's parameters for the server, without the client's progress token and connection keys."""
    meta: dict[str, Any] = dict(params.meta or {})
    meta = {key: meta[key] for key in meta if key not in _PROGRESS_KEYS and not key.startswith(_CONNECTION_PREFIX)}
    return params.model_copy(update={"meta": meta or None, **changes})


async def _quietly(sending: Awaitable[None]) -> None:
    """Send a notification, and ignore clients that have left."""
    try:
        await sending
    except Exception as error:  # The boundary of one client: its broken connection must not affect the others.
        log("mcp").debug("client not notified", error=error)
