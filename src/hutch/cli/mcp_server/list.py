"""Show the MCP servers there are, and how they are. Looking starts none."""

import argparse
import asyncio

from hutch.cli.mcp_server.host_choice import servers_of
from hutch.cli.mcp_server.text import tell_all
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_list(arguments))


async def _list(arguments: argparse.Namespace) -> int:
    async with servers_of(arguments) as servers:
        infos = await servers.all()
    if arguments.json:
        emit_json({"servers": [info.to_plain() for info in infos]})
    else:
        tell_all(infos)
    return 0
