"""What clients talk to: one MCP server in front of one hosted server, or of all of them (the gateway).

The gateway shows `tool` of `server` as `server__tool`, and prompts likewise; resources keep their addresses. A hosted
server that starts again is the same one to its clients: they are told that lists may have changed, and go on.
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

CHANGES = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
LONGEST_LISTING = 100
"""Pages of one list: a server that always has a next page must not keep us reading."""


class Front:
    """One endpoint. `servers` tells which hosted servers stand behind it now, by name."""

    def __init__(
        self, name: str, servers: Callable[[], Mapping[str, Supervisor]], *, prefixed: bool, wait_sec: float
    ) -> None:
        self._servers = servers
        self._prefixed = prefixed
        self._wait_sec = wait_sec
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._resources: dict[str, str] = {}
        """Which server has a resource, by its address or template."""
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
        self.server.middleware.append(self._met)

    # --- tools ----------------------------------------------------------------------------------------------------

    async def _list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        listed = await self._from_all(lambda each: tools_of(each))
        return types.ListToolsResult(
            tools=[
                tool.model_copy(update={"name": self._shown(name, tool.name)})
                for name, tools in listed.items()
                for tool in tools
            ]
        )

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        supervisor, tool = self._find(params.name, "tool")
        return await self._asked(
            ctx, supervisor, lambda progressed: supervisor.call_tool(_passed(params, name=tool), progressed)
        )

    # --- resources ------------------------------------------------------------------------------------------------

    async def _list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        listed = await self._from_all(resources_of)
        self._resources |= {resource.uri: name for name, found in listed.items() for resource in found}
        return types.ListResourcesResult(resources=[each for found in listed.values() for each in found])

    async def _list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        listed = await self._from_all(templates_of)
        self._resources |= {each.uri_template: name for name, found in listed.items() for each in found}
        return types.ListResourceTemplatesResult(
            resource_templates=[each for found in listed.values() for each in found]
        )

    async def _read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        request = types.ReadResourceRequest(params=_passed(params))
        refused: MCPError | None = None
        for supervisor in self._candidates(params.uri):
            try:
                return await self._ask(ctx, supervisor, request, types.ReadResourceResult)
            except MCPError as error:  # not its own: the next may have it
                refused = error
        raise refused or MCPError(types.INVALID_PARAMS, f"there is no resource {params.uri}")

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        supervisor = next(iter(self._candidates(params.uri)))
        return await self._ask(ctx, supervisor, types.SubscribeRequest(params=_passed(params)), types.EmptyResult)

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        supervisor = next(iter(self._candidates(params.uri)))
        return await self._ask(ctx, supervisor, types.UnsubscribeRequest(params=_passed(params)), types.EmptyResult)

    # --- prompts, completion, logging -----------------------------------------------------------------------------

    async def _list_prompts(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        listed = await self._from_all(prompts_of)
        return types.ListPromptsResult(
            prompts=[
                prompt.model_copy(update={"name": self._shown(name, prompt.name)})
                for name, prompts in listed.items()
                for prompt in prompts
            ]
        )

    async def _get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        supervisor, prompt = self._find(params.name, "prompt")
        request = types.GetPromptRequest(params=_passed(params, name=prompt))
        return await self._ask(ctx, supervisor, request, types.GetPromptResult)

    async def _complete(self, ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        if isinstance(params.ref, types.PromptReference):
            supervisor, prompt = self._find(params.ref.name, "prompt")
            params = params.model_copy(update={"ref": params.ref.model_copy(update={"name": prompt})})
        else:
            supervisor = next(iter(self._candidates(params.ref.uri)))
        return await self._ask(ctx, supervisor, types.CompleteRequest(params=_passed(params)), types.CompleteResult)

    async def _set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        for supervisor in self._servers().values():
            capabilities = supervisor.greeting.capabilities if supervisor.greeting else None
            if capabilities is not None and capabilities.logging is not None:
                await self._ask(ctx, supervisor, types.SetLevelRequest(params=_passed(params)), types.EmptyResult)
        return types.EmptyResult()

    # --- telling clients --------------------------------------------------------------------------------------------

    async def changed(self, name: str) -> None:
        """A server came up, or went: what it offers may be other than it was."""
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()):
            await self._bus.publish(event)
        for connection in list(self._connections):
            await _quietly(connection.send_tool_list_changed())
            await _quietly(connection.send_prompt_list_changed())
            await _quietly(connection.send_resource_list_changed())

    async def heard(self, name: str, message: types.ServerNotification) -> None:
        """A server's word that belongs to no request."""
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

    async def _met(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Remember who is connected. The SDK gives handlers no other way to the connection itself."""
        self._connections.add(ctx.session._connection)
        try:
            return await call_next(ctx)
        except HutchError as error:
            raise told(error) from error

    # --- finding ----------------------------------------------------------------------------------------------

    def _shown(self, server: str, name: str) -> str:
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
        """Who may have a resource, the likeliest first."""
        servers = self._servers()
        known = servers.get(self._resources.get(uri, ""))
        others = [each for each in servers.values() if each is not known and _offers(each, "resources")]
        found = [*((known,) if known is not None else ()), *others]
        if not found:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri}")
        return found

    async def _from_all(self, ask: Callable[[Supervisor], Awaitable[T]]) -> dict[str, T]:
        """The answers of those that are there in time, in order; the others are announced when they come."""
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
                raise told(error)
            else:
                log("mcp").warning("server left out of a list", server=name, error=error)
        return found

    async def _ask(self, ctx: Context, supervisor: Supervisor, request: Any, kind: type[R]) -> R:
        return await self._asked(
            ctx, supervisor, lambda progressed: supervisor.request(request, kind, progressed)
        )  # fmt: skip

    async def _asked(self, ctx: Context, supervisor: Supervisor, ask: Callable[[ProgressFnT], Awaitable[T]]) -> T:
        """A client's request, asked of a server; its progress goes to that client, and leaving cancels it there."""

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            await ctx.session.report_progress(progress, total, message)

        try:
            with supervisor.flying.one(ctx):
                return await ask(progressed)
        except HutchError as error:
            raise told(error) from error


def told(error: BaseException) -> MCPError:
    """An error of ours as JSON-RPC carries it: `data` is the one error shape."""
    if isinstance(error, MCPError):
        return error
    if not isinstance(error, HutchError):
        return MCPError(types.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
    code = types.INVALID_PARAMS if isinstance(error, NotFound) else types.INTERNAL_ERROR
    return MCPError(code, error.message, data=error.to_wire())


async def tools_of(supervisor: Supervisor) -> list[types.Tool]:
    """Those that its definition allows."""
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
    greeting = supervisor.greeting
    return greeting is None or getattr(greeting.capabilities, capability) is not None


async def _pages(supervisor: Supervisor, request: Any, kind: type[R]) -> list[R]:
    pages: list[R] = []
    cursor: str | None = None
    for _ in range(LONGEST_LISTING):
        params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
        page = await supervisor.request(request(params=params), kind)
        pages.append(page)
        cursor = getattr(page, "next_cursor", None)
        if not cursor:
            break
    return pages


_OURS = ("progressToken", "progress_token")
_OF_THE_CONNECTION = "io.modelcontextprotocol/"
"""Of the era without handshakes: what each request says of its own connection, which is not the server's."""


def _passed(params: Any, **changes: Any) -> Any:
    """The client's parameters for the server, under our own ids: its progress token is not the server's."""
    told: dict[str, Any] = dict(params.meta or {})
    meta = {key: told[key] for key in told if key not in _OURS and not key.startswith(_OF_THE_CONNECTION)}
    return params.model_copy(update={"meta": meta or None, **changes})


async def _quietly(sending: Awaitable[None]) -> None:
    """A client that has left needs no news."""
    try:
        await sending
    except Exception as error:  # the boundary of one client: another's connection is no reason to miss the rest
        log("mcp").debug("client not told", error=error)
