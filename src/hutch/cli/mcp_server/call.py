"""Call one tool of an MCP server, and print what it answered. The exit code is 1 if the tool reports an error."""

import argparse
import asyncio
import json
import sys
from typing import Any

from hutch.cli.mcp_server.host_choice import servers_of
from hutch.cli.output import emit_json
from hutch.errors import Invalid


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("tool", metavar="TOOL")
    parser.add_argument("arguments_text", metavar="JSON", nargs="?", default="{}", help="its arguments; -: from stdin")


def run(arguments: argparse.Namespace) -> int:
    text = sys.stdin.read() if arguments.arguments_text == "-" else arguments.arguments_text
    try:
        given = json.loads(text)
    except ValueError as error:
        raise Invalid(f"the arguments are not JSON: {error}") from error
    if not isinstance(given, dict):
        raise Invalid("the arguments must be a JSON object")
    return asyncio.run(_call(arguments, given))


async def _call(arguments: argparse.Namespace, given: dict[str, Any]) -> int:
    async with servers_of(arguments) as servers:
        result = await servers.call(arguments.name, arguments.tool, given)
    if arguments.json:
        emit_json(result)
    else:
        for piece in result.get("content", []):
            print(piece["text"] if piece.get("type") == "text" else json.dumps(piece))
    return 1 if result.get("isError") else 0
