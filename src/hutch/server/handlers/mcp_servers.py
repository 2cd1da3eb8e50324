"""MCP servers over HTTP: register, import, start, stop and inspect the owner's servers, and call their tools."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from hutch.errors import Refused
from hutch.keeper.keys import Role
from hutch.model.mcp import McpServer, McpServerInfo, McpTool
from hutch.model.record import Record
from hutch.model.spec import Spec
from hutch.policy.rights import Action, admitted, require
from hutch.server.request import Call, Reply

if TYPE_CHECKING:
    from hutch.mcp.hosting.hosted import Hosted

FAILS = ("not_found", "conflict", "refused", "mcp_server", "unavailable", "disabled", "timeout")
"""Errors of every route that works on an MCP server."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


class ServerBody(Record, frozen=True, kw_only=True):
    name: Name
    definition: McpServer
    replace: bool = False
    open_paths: bool = True
    """Whether a server that an admin registers may see the host files that it names; else only those of any box."""


class ImportBody(Record, frozen=True, kw_only=True):
    servers: dict[str, Any]
    """An `mcpServers` table, or a document that contains one. Variables in it are not expanded."""
    replace: bool = False


class CallBody(Record, frozen=True, kw_only=True):
    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class ServerList(Record, frozen=True, kw_only=True):
    servers: tuple[McpServerInfo, ...]


class ImportedServers(Record, frozen=True, kw_only=True):
    servers: tuple[McpServerInfo, ...]
    notes: tuple[str, ...]
    """What was not imported, and why."""


class ServerLogs(Record, frozen=True, kw_only=True):
    lines: tuple[str, ...]
    """The latest lines that it wrote outside the protocol."""


class ToolList(Record, frozen=True, kw_only=True):
    tools: tuple[McpTool, ...]


async def list_servers(call: Call) -> Reply:
    """List the owner's MCP servers without starting them."""
    return Reply(ServerList(servers=await (await _hosted(call)).all()))


async def add(call: Call, body: ServerBody) -> Reply:
    """Register an MCP server. Only an admin may show it files of this machine, or register a server at an external
    URL."""
    trusted = _may_define(call, body.definition)
    hosted = await _hosted(call)
    info = await hosted.add(
        body.name, body.definition, trusted=trusted and body.open_paths, replace=body.replace
    )  # fmt: skip
    return Reply(info, status=201)


async def import_servers(call: Call, body: ImportBody) -> Reply:
    """Register the servers of another client's `mcpServers` table."""
    from hutch.mcp.hosting import client_files

    hosted = await _hosted(call)
    # The caller must not read this process's environment or files.
    found = client_files.from_plain(body.servers, "the body", environ={})
    allowed = [_may_define(call, server) for server in found.servers.values()]
    infos = await hosted.add_all(found, trusted=all(allowed), replace=body.replace)
    return Reply(ImportedServers(servers=tuple(infos), notes=tuple(found.notes)), status=201)


async def get(call: Call) -> Reply:
    """Return one MCP server: state, phase, box, retries and last failure."""
    return Reply(await (await _hosted(call)).info(call.params["mcp_server"]))


async def remove(call: Call) -> Reply:
    """Stop an MCP server and remove it."""
    require(call.caller.rights, Action.DESTROY)
    await (await _hosted(call)).remove(call.params["mcp_server"])
    return Reply(status=204)


async def start(call: Call) -> Reply:
    """Start an MCP server; answers when it is ready or has finally failed."""
    return Reply(await (await _hosted(call)).start(call.params["mcp_server"]))


async def stop(call: Call) -> Reply:
    """Stop an MCP server and destroy its box."""
    return Reply(await (await _hosted(call)).stop(call.params["mcp_server"]))


async def restart(call: Call) -> Reply:
    """Stop an MCP server and start it again."""
    return Reply(await (await _hosted(call)).restart(call.params["mcp_server"]))


async def logs(call: Call) -> Reply:
    """Return what the server wrote to standard error, and the output of its installation."""
    return Reply(ServerLogs(lines=await (await _hosted(call)).logs(call.params["mcp_server"])))


async def tools(call: Call) -> Reply:
    """List the tools of an MCP server, which is started if necessary."""
    return Reply(ToolList(tools=await (await _hosted(call)).tools(call.params["mcp_server"])))


async def call_tool(call: Call, body: CallBody) -> Reply:
    """Call one tool; the answer is the MCP type `CallToolResult`."""
    return Reply(await (await _hosted(call)).call(call.params["mcp_server"], body.tool, body.arguments))


async def _hosted(call: Call) -> "Hosted":
    return await call.service.hostings.of(call.caller.owner)


def _may_define(call: Call, server: McpServer) -> bool:
    """Whether the caller may show host paths to the server; Refused if it may not define the server at all.

    A URL would be called from this machine, outside any box, so only an admin may name one. A caller cannot define a
    server whose box it could not create itself.
    """
    admin, config = call.caller.role is Role.ADMIN, call.service.config
    require(call.caller.rights, Action.CREATE)
    admitted(Spec(profile=server.profile), call.caller.rights, config.profile, config.profiles)
    if server.url and not admin:
        raise Refused(
            "only an admin may register an MCP server by its URL", remedy="ask an admin, or run the server in a box"
        )
    return admin
