"""Register the servers of another client's file: Claude's, Cursor's, VS Code's, or any with an `mcpServers` table."""

import argparse
import asyncio
from pathlib import Path

from hutch.cli.mcp_server.host_choice import servers_of
from hutch.cli.mcp_server.text import tell_all
from hutch.cli.output import emit_json, note, printable
from hutch.mcp.hosting import client_files
from hutch.mcp.hosting.client_files import Imported
from hutch.model.mcp import McpServerInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="such as ~/.claude.json, .mcp.json or .vscode/mcp.json")
    parser.add_argument("--only", action="append", metavar="NAME", help="this one; may be repeated")
    parser.add_argument(
        "--open-paths", action="store_true", help="show the servers also files outside of the file's own directory"
    )
    parser.add_argument("--replace", action="store_true", help="earlier definitions of the same names")


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.file).expanduser().absolute()
    return asyncio.run(_import(arguments, client_files.from_file(path), client_files.folder_of(path)))


async def _import(arguments: argparse.Namespace, found: Imported, folder: Path) -> int:
    chosen = {name: each for name, each in found.servers.items() if not arguments.only or name in arguments.only}
    infos: list[McpServerInfo] = []
    async with servers_of(arguments) as servers:
        for name, server in chosen.items():
            closed = () if arguments.open_paths else client_files.outside(server, folder)
            infos.append(await servers.add(name, server, trusted=not closed, replace=arguments.replace))
            found.notes += [
                f"{name}: {path} is not opened to it, because it lies outside of {folder} (--open-paths opens it)"
                for path in closed
            ]
    if arguments.json:
        emit_json({"servers": [info.to_plain() for info in infos], "notes": found.notes})
        return 0
    for text in found.notes:
        note(printable(text))
    tell_all(tuple(infos))
    return 0
