"""Stop an MCP server and forget it."""

import argparse
import asyncio

from hutch.cli.mcp_server.host_choice import servers_of
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_remove(arguments))


async def _remove(arguments: argparse.Namespace) -> int:
    async with servers_of(arguments) as servers:
        await servers.remove(arguments.name)
    if arguments.json:
        emit_json({"removed": arguments.name})
    return 0
