"""Show what an MCP server wrote beside the protocol lately, and what its installation said."""

import argparse
import asyncio

from hutch.cli.mcp_server.host_choice import servers_of
from hutch.cli.output import emit_json, note, printable


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_logs(arguments))


async def _logs(arguments: argparse.Namespace) -> int:
    async with servers_of(arguments) as servers:
        lines = await servers.logs(arguments.name)
    if arguments.json:
        emit_json({"lines": lines})
        return 0
    for line in lines:
        print(printable(line))
    if not lines:
        note(f"{arguments.name} has written nothing; lines are kept while it is hosted, by a running `hutch serve`")
    return 0
