"""Show the tools of an MCP server; it is started for that."""

import argparse
import asyncio

from hutch.cli.mcp_server.host_choice import servers_of
from hutch.cli.output import emit_json, printable, table


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_tools(arguments))


async def _tools(arguments: argparse.Namespace) -> int:
    async with servers_of(arguments) as servers:
        tools = await servers.tools(arguments.name)
    if arguments.json:
        emit_json({"tools": [tool.to_plain() for tool in tools]})
        return 0
    rows = [(printable(tool.name), printable(tool.description.strip().split("\n")[0][:90])) for tool in tools]
    table(("TOOL", "DESCRIPTION"), rows)
    return 0
