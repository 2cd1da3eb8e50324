"""MCP servers over HTTP: register, import, start, stop, look at, and call their tools; each of the caller's owner."""

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
"""What can go wrong with an MCP server, whatever is asked of it."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


class ServerBody(Record, frozen=True, kw_only=True):
    name: Name
    definition: McpServer
    replace: bool = False
    open_paths: bool = True
    """What an admin registers may show the files that it names; false: only those that any box could be shown."""


class ImportBody(Record, frozen=True, kw_only=True):
    servers: dict[str, Any]
    """An `mcpServers` table, or a document that holds one. Variables in it are not filled in."""
    replace: bool = False


class CallBody(Record, frozen=True, kw_only=True):
    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class ServerList(Record, frozen=True, kw_only=True):
    servers: tuple[McpServerInfo, ...]


class ImportedServers(Record, frozen=True, kw_only=True):
    servers: tuple[McpServerInfo, ...]
    notes: tuple[str, ...]
    """What was left out, and why."""


class ServerLogs(Record, frozen=True, kw_only=True):
    lines: tuple[str, ...]
    """What it wrote beside the protocol, lately."""


class ToolList(Record, frozen=True, kw_only=True):
    tools: tuple[McpTool, ...]


async def list_servers(call: Call) -> Reply:
    """The owner's MCP servers. Looking starts none."""
    return Reply(ServerList(servers=await (await _hosted(call)).all()))


async def add(call: Call, body: ServerBody) -> Reply:
    """Register an MCP server. What an admin registers may show files of this machine in its box; addresses somewhere
    else are an admin's to name."""
    trusted = _may_define(call, body.definition)
    hosted = await _hosted(call)
    info = await hosted.add(
        body.name, body.definition, trusted=trusted and body.open_paths, replace=body.replace
    )  # fmt: skip
    return Reply(info, status=201)


async def import_servers(call: Call, body: ImportBody) -> Reply:
    """Register the servers of another client's table."""
    from hutch.mcp.hosting import client_files

    hosted = await _hosted(call)
    # Neither this process's environment nor its files are the caller's.
    found = client_files.from_plain(body.servers, "the body", environ={})
    allowed = [_may_define(call, server) for server in found.servers.values()]
    infos = await hosted.add_all(found, trusted=all(allowed), replace=body.replace)
    return Reply(ImportedServers(servers=tuple(infos), notes=tuple(found.notes)), status=201)


async def get(call: Call) -> Reply:
    """One MCP server: state, phase, box, retries, and why it failed last."""
    return Reply(await (await _hosted(call)).info(call.params["mcp_server"]))


async def remove(call: Call) -> Reply:
    """Stop an MCP server and forget it."""
    require(call.caller.rights, Action.DESTROY)
    await (await _hosted(call)).remove(call.params["mcp_server"])
    return Reply(status=204)


async def start(call: Call) -> Reply:
    """Answers when it is ready, or has failed for the last time."""
    return Reply(await (await _hosted(call)).start(call.params["mcp_server"]))


async def stop(call: Call) -> Reply:
    """End its process and its box."""
    return Reply(await (await _hosted(call)).stop(call.params["mcp_server"]))


async def restart(call: Call) -> Reply:
    """Stop it, and start it again."""
    return Reply(await (await _hosted(call)).restart(call.params["mcp_server"]))


async def logs(call: Call) -> Reply:
    """What it wrote to standard error, and what its installation said."""
    return Reply(ServerLogs(lines=await (await _hosted(call)).logs(call.params["mcp_server"])))


async def tools(call: Call) -> Reply:
    """Its tools; it is started for that."""
    return Reply(ToolList(tools=await (await _hosted(call)).tools(call.params["mcp_server"])))


async def call_tool(call: Call, body: CallBody) -> Reply:
    """Call one tool; the answer is the protocol's `CallToolResult`."""
    return Reply(await (await _hosted(call)).call(call.params["mcp_server"], body.tool, body.arguments))


async def _hosted(call: Call) -> "Hosted":
    return await call.service.hostings.of(call.caller.owner)


def _may_define(call: Call, server: McpServer) -> bool:
    """Whether the caller may open paths of this machine. An address would be called from this machine, past the walls
    around boxes, so that is an admin's too. Refused for a box that the caller could not have itself."""
    admin, config = call.caller.role is Role.ADMIN, call.service.config
    require(call.caller.rights, Action.CREATE)
    admitted(Spec(profile=server.profile), call.caller.rights, config.profile, config.profiles)
    if server.url and not admin:
        raise Refused("an MCP server somewhere else is registered by an admin", remedy="ask one, or run it in a box")
    return admin
