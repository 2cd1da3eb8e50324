"""Stop an MCP server and start it again."""

import argparse
import asyncio

from hutch.cli.mcp_server.host_choice import servers_of
from hutch.cli.mcp_server.text import tell


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_restart(arguments))


async def _restart(arguments: argparse.Namespace) -> int:
    async with servers_of(arguments) as servers:
        info = await servers.restart(arguments.name)
    tell(info, as_json=arguments.json)
    return 0
