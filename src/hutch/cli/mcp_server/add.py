"""Register an MCP server: a command that will run in a box of its own, or the address of one that runs elsewhere.

Options end at the name; what follows it is the command.
"""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from hutch.cli.mcp_server.host_choice import servers_of
from hutch.cli.mcp_server.text import tell
from hutch.errors import Invalid
from hutch.model.mcp import SECRETS_AT, McpServer, Share, Start
from hutch.model.spec_kinds import MountMode, NetworkMode

EPILOG = """\
examples:
  hutch mcp-server add time -- uvx mcp-server-time
  hutch mcp-server add --env API_TOKEN --start eager github -- npx -y some-server
  hutch mcp-server add --secret-file token=~/.token hub -- npx -y some-server --token-file /run/secrets/token
  hutch mcp-server add --mount rw files -- npx -y @modelcontextprotocol/server-filesystem ~/notes
  hutch mcp-server add --url https://example.org/mcp --header 'Authorization: Bearer …' far
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="", help="of a server that runs elsewhere")
    parser.add_argument("--sse", action="store_true", help="that server speaks the older SSE transport")
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="sent to the url")
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help="without a value: yours")
    parser.add_argument(
        "--secret-file", action="append", default=[], metavar="NAME=PATH",
        help=f"its content, for the server to read at {SECRETS_AT}/NAME; may be repeated",
    )  # fmt: skip
    parser.add_argument("--cwd", default="", metavar="DIR")
    parser.add_argument("--host-path", default="", metavar="DIR", help="the project, where the command does not tell")
    parser.add_argument("--mount", choices=list(MountMode), help="how its files are shown (default: ro)")
    parser.add_argument("--start", choices=list(Start), help="default: lazy")
    parser.add_argument("--share", choices=list(Share), help="whose box it runs in (default: own)")
    parser.add_argument("--group", metavar="NAME", help="which pipeline it shares a box with")
    parser.add_argument("--image", metavar="IMAGE")
    parser.add_argument("--network", choices=list(NetworkMode))
    parser.add_argument("--cpus", type=float, metavar="N")
    parser.add_argument("--memory", type=int, metavar="MB", dest="memory_mb")
    parser.add_argument("--pids", type=int, metavar="N")
    parser.add_argument("--startup-timeout", type=float, metavar="SECONDS", dest="startup_timeout_sec")
    parser.add_argument("--allow", action="append", metavar="PATTERN", help="show only such tools; may be repeated")
    parser.add_argument("--deny", action="append", metavar="PATTERN", help="never show such tools; may be repeated")
    parser.add_argument("--replace", action="store_true", help="an earlier definition of this name")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] COMMAND ...", help="program and arguments")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_add(arguments, definition(arguments)))


def definition(arguments: argparse.Namespace) -> McpServer:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if command and command[0].startswith("-"):
        raise Invalid(
            f"{command[0]} stands behind the name", remedy="options come first: add [OPTIONS] NAME -- COMMAND"
        )
    given: dict[str, Any] = {
        "command": _program(command[0]) if command else "", "args": [_path(word) for word in command[1:]],
        "url": arguments.url,
        "cwd": os.path.abspath(arguments.cwd) if arguments.cwd else "", "env": dict(map(_variable, arguments.env)),
        "secret_files": dict(map(_secret_file, arguments.secret_file)),
        "host_path": os.path.abspath(arguments.host_path) if arguments.host_path else "",
        "headers": dict(map(_header, arguments.header)), "type": "sse" if arguments.sse else None,
    }  # fmt: skip
    options = (
        "mount", "start", "share", "group", "image", "network", "cpus", "memory_mb", "pids", "startup_timeout_sec",
        "allow", "deny",
    )  # fmt: skip
    given |= {name: value for name in options if (value := getattr(arguments, name)) is not None}
    return McpServer.from_plain(given)


def _program(word: str) -> str:
    return os.path.abspath(word) if "/" in word else word


def _path(word: str) -> str:
    """A word that is a path here means that path, wherever the server's process starts."""
    relative = word.startswith(("./", "../", "~/"))
    return os.path.abspath(os.path.expanduser(word)) if relative or (word and os.path.isfile(word)) else word


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign and name not in os.environ:
        raise Invalid(f"--env {name}: there is no such variable here", remedy="write NAME=VALUE")
    return name, value if sign else os.environ[name]


def _secret_file(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if not sign:
        raise Invalid(f"--secret-file {name} has no path", remedy="write NAME=PATH")
    try:
        return name, Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"--secret-file {name}: {path} cannot be read as text: {error}") from error


def _header(text: str) -> tuple[str, str]:
    name, sign, value = text.partition(":")
    if not sign:
        raise Invalid(f"--header {name} has no value", remedy="write NAME:VALUE")
    return name.strip(), value.strip()


async def _add(arguments: argparse.Namespace, server: McpServer) -> int:
    async with servers_of(arguments) as servers:
        info = await servers.add(arguments.name, server, replace=arguments.replace)
    tell(info, as_json=arguments.json)
    return 0
