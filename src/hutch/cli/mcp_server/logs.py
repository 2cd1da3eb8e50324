"""Show what an MCP server wrote beside the protocol lately, and what its installation said."""

import argparse
import asyncio

from hutch.cli.mcp_server.opening import servers_of
from hutch.cli.output import emit_json, printable


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_logs(arguments))


async def _logs(arguments: argparse.Namespace) -> int:
    async with servers_of(arguments) as servers:
        lines = await servers.logs(arguments.name)
    if arguments.json:
        emit_json({"lines": lines})
    for line in () if arguments.json else lines:
        print(printable(line))
    return 0
