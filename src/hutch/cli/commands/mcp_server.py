"""MCP servers that run in boxes: registered once, started when needed, used by any MCP client through `hutch serve`.

Clients connect to /mcp/gateway (all servers, tools as SERVER__TOOL) or /mcp/servers/NAME of that server.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hutch.cli.connect import McpServers, open_mcp_servers
from hutch.cli.output import emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.errors import Invalid
from hutch.mcp.hosting import client_files
from hutch.model.mcp import SECRETS_AT, McpServer, McpServerInfo, Share
from hutch.model.mcp import Start as StartMode
from hutch.model.spec import MountMode
from hutch.model.units import format_seconds


class Add(CliCommand):
    """Register an MCP server: a command that will run in a box of its own, or the address of one that runs elsewhere.

    Options end at the name; what follows it is the command.
    """

    epilog = """\
examples:
  hutch mcp-server add time -- uvx mcp-server-time
  hutch mcp-server add --env API_TOKEN --start eager github -- npx -y some-server
  hutch mcp-server add --secret-file token=~/.token hub -- npx -y some-server --token-file /run/secrets/token
  hutch mcp-server add --mount rw files -- npx -y @modelcontextprotocol/server-filesystem ~/notes
  hutch mcp-server add --url https://example.org/mcp --header 'Authorization: Bearer …' far
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--url", default="", help="of a server that runs elsewhere")
        parser.add_argument("--sse", action="store_true", help="that server speaks the older SSE transport")
        parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="sent to the url")
        parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help="without a value: yours")
        parser.add_argument(
            "--secret-file", action="append", default=[], metavar="NAME=PATH",
            help=f"its content, for the server to read at {SECRETS_AT}/NAME; may be repeated",
        )  # fmt: skip
        parser.add_argument("--cwd", default="", metavar="DIR")
        parser.add_argument(
            "--host-path", default="", metavar="DIR", help="the project, where the command does not tell"
        )
        parser.add_argument("--mount", choices=list(MountMode), help="how its files are shown (default: ro)")
        parser.add_argument("--start", choices=list(StartMode), help="default: lazy")
        parser.add_argument("--share", choices=list(Share), help="whose box it runs in (default: own)")
        parser.add_argument("--group", metavar="NAME", help="which pipeline it shares a box with")
        parser.add_argument("--image", metavar="IMAGE")
        parser.add_argument("--net", "--network", choices=("off", "on"), dest="network", help="outbound network (on)")
        parser.add_argument("--cpus", type=float, metavar="N")
        parser.add_argument("--memory", type=int, metavar="MB", dest="memory_mb")
        parser.add_argument("--pids", type=int, metavar="N")
        parser.add_argument("--startup-timeout", type=float, metavar="SECONDS", dest="startup_timeout_sec")
        parser.add_argument("--allow", action="append", metavar="PATTERN", help="show only such tools; may be repeated")
        parser.add_argument("--deny", action="append", metavar="PATTERN", help="never show such tools; may be repeated")
        parser.add_argument("--replace", action="store_true", help="an earlier definition of this name")
        parser.add_argument("name", metavar="NAME")
        parser.add_argument(
            "command", nargs=argparse.REMAINDER, metavar="[--] COMMAND ...", help="program and arguments"
        )

    async def run_async(self, arguments: argparse.Namespace) -> int:
        server = definition(arguments)
        async with open_mcp_servers(arguments) as servers:
            info = await servers.add(arguments.name, server, replace=arguments.replace)
        _show(info, as_json=arguments.json)
        return 0


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
    """Make a word that is a path here absolute, because the server's process starts elsewhere."""
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


class Import(CliCommand):
    """Register the servers of another client's file: Claude, Cursor, VS Code, or any with an `mcpServers` table."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="such as ~/.claude.json, .mcp.json or .vscode/mcp.json")
        parser.add_argument("--only", action="append", metavar="NAME", help="this one; may be repeated")
        parser.add_argument(
            "--open-paths", action="store_true", help="show the servers also files outside of the file's own directory"
        )
        parser.add_argument("--replace", action="store_true", help="earlier definitions of the same names")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        path = Path(arguments.file).expanduser().absolute()
        found, folder = client_files.from_file(path), client_files.folder_of(path)
        chosen = {name: each for name, each in found.servers.items() if not arguments.only or name in arguments.only}
        infos: list[McpServerInfo] = []
        async with open_mcp_servers(arguments) as servers:
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
        _show_all(tuple(infos))
        return 0


class List(CliCommand):
    """Show the MCP servers there are, and how they are. Looking starts none."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_mcp_servers(arguments) as servers:
            infos = await servers.all()
        if arguments.json:
            emit_json({"servers": [info.to_plain() for info in infos]})
        else:
            _show_all(infos)
        return 0


class NamedServerCommand(CliCommand):
    """A command about one server, which shows how the server is afterwards."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_mcp_servers(arguments) as servers:
            info = await self.work(servers, arguments.name)
        _show(info, as_json=arguments.json)
        return 0

    async def work(self, servers: McpServers, name: str) -> McpServerInfo:
        raise NotImplementedError


class Show(NamedServerCommand):
    """Show one MCP server: its state, its phase, its box, and why it failed last."""

    async def work(self, servers: McpServers, name: str) -> McpServerInfo:
        return await servers.info(name)


class Start(NamedServerCommand):
    """Start an MCP server; returns when it is ready, or has failed for the last time."""

    async def work(self, servers: McpServers, name: str) -> McpServerInfo:
        return await servers.start(name)


class Stop(NamedServerCommand):
    """End the process and the box of an MCP server; its next use starts it again."""

    async def work(self, servers: McpServers, name: str) -> McpServerInfo:
        return await servers.stop(name)


class Restart(NamedServerCommand):
    """Stop an MCP server and start it again."""

    async def work(self, servers: McpServers, name: str) -> McpServerInfo:
        return await servers.restart(name)


class Tools(CliCommand):
    """Show the tools of an MCP server; it is started for that."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_mcp_servers(arguments) as servers:
            tools = await servers.tools(arguments.name)
        if arguments.json:
            emit_json({"tools": [tool.to_plain() for tool in tools]})
            return 0
        rows = [(printable(tool.name), printable(tool.description.strip().split("\n")[0][:90])) for tool in tools]
        table(("TOOL", "DESCRIPTION"), rows)
        return 0


class Call(CliCommand):
    """Call one tool of an MCP server, and print what it answered. The exit code is 1 if the tool reports an error."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")
        parser.add_argument("tool", metavar="TOOL")
        parser.add_argument(
            "arguments_text", metavar="JSON", nargs="?", default="{}", help="its arguments; -: from stdin"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        text = sys.stdin.read() if arguments.arguments_text == "-" else arguments.arguments_text
        try:
            arguments.tool_arguments = json.loads(text)
        except ValueError as error:
            raise Invalid(f"the arguments are not JSON: {error}") from error
        if not isinstance(arguments.tool_arguments, dict):
            raise Invalid("the arguments must be a JSON object")
        return super().run(arguments)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_mcp_servers(arguments) as servers:
            result = await servers.call(arguments.name, arguments.tool, arguments.tool_arguments)
        if arguments.json:
            emit_json(result)
        else:
            for piece in result.get("content", []):
                print(piece["text"] if piece.get("type") == "text" else json.dumps(piece))
        return 1 if result.get("isError") else 0


class Logs(CliCommand):
    """Show what an MCP server wrote beside the protocol recently, and what its installation said."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_mcp_servers(arguments) as servers:
            lines = await servers.logs(arguments.name)
        if arguments.json:
            emit_json({"lines": lines})
            return 0
        for line in lines:
            print(printable(line))
        if not lines:
            note(f"{arguments.name} has written nothing; lines are kept while it is hosted, by a running `hutch serve`")
        return 0


class Remove(CliCommand):
    """Stop an MCP server and forget it."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_mcp_servers(arguments) as servers:
            await servers.remove(arguments.name)
        if arguments.json:
            emit_json({"removed": arguments.name})
        return 0


# --- how a server is shown ------------------------------------------------------------------------------------------


def _show(info: McpServerInfo, *, as_json: bool) -> None:
    if as_json:
        emit_json(info.to_plain())
        return
    error = info.error
    since = f" for {format_seconds(time.time() - info.since)}" if info.state != "stopped" else ""
    facts = {
        "name": info.name,
        "description": printable(info.description),
        "state": f"{info.state}{since}",
        "phase": f"{info.phase}" if info.phase else "",
        "runs": printable(" ".join(info.command) or info.url),
        "box": info.box or ("" if info.boxed else "none: it runs somewhere else"),
        "shares": "" if info.share == "own" else f"{info.share}",
        "start": f"{info.start}",
        "tries": f"{info.retries}" if info.retries else "",
        "env": " ".join(info.env),
        "secret files": " ".join(info.secret_files),
        "files": ", ".join(f"{source} at {target}" for source, target in info.files.items()),
        "tools": "" if info.tools is None else f"{info.tools}",
        "defined in": info.origin,
        "failed": f"in phase {error.phase}: {printable(error.message)}" if error else "",
        "fix": printable(error.remedy) if error else "",
    }
    for name, value in facts.items():
        if value:
            print(f"{name + ':':<14}{value}")


def _show_all(infos: tuple[McpServerInfo, ...]) -> None:
    if not infos:
        print("there is no MCP server; `hutch mcp-server add NAME -- COMMAND` registers one")
        return
    rows = [
        (info.name, f"{info.state}", f"{info.phase or '-'}", info.box[:12] or "-", printable(_command_text(info)))
        for info in infos
    ]
    table(("SERVER", "STATE", "PHASE", "BOX", "RUNS"), rows)


def _command_text(info: McpServerInfo) -> str:
    text = " ".join(info.command) or info.url
    return text if len(text) <= 60 else text[:59] + "…"
