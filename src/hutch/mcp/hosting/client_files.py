"""Reads the tables of MCP servers that other clients keep, such as Claude, Cursor and VS Code.

They agree on `mcpServers` (VS Code: `servers`), command, args, env, url and headers, and differ in the rest. Each key
that is not understood becomes a note.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hutch.errors import FileMissing, FileTooLarge, Invalid, Refused
from hutch.host_files import open_as_user
from hutch.mcp.hosting import projects
from hutch.model.mcp import McpServer, Transport
from hutch.policy import mcp_servers as servers
from hutch.policy.values import at_or_below

TABLES = ("mcpServers", "servers", "mcp_servers", "context_servers")
_TYPES = {
    "stdio": Transport.STDIO, "local": Transport.STDIO, "http": Transport.HTTP, "streamable-http": Transport.HTTP,
    "streamableHttp": Transport.HTTP, "streamable_http": Transport.HTTP, "remote": Transport.HTTP,
    "sse": Transport.SSE,
}  # fmt: skip
_URLS = ("serverUrl", "httpUrl")
_IGNORED_KEYS = frozenset(
    {"alwaysAllow", "autoApprove", "gallery", "version", "name", "dev", "sandbox", "sandboxEnabled"}
)
"""Keys that concern only the other client."""
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_UNIX_HOME = ("${userHome}", "${env:HOME}", "${HOME}")
MAX_FILE_BYTES = 4 << 20


@dataclass
class Imported:
    """The servers of one table, and notes about what was left out."""

    servers: dict[str, McpServer] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def from_file(path: Path, environ: Mapping[str, str] | None = None) -> Imported:
    """Read the file of another client. Comments and trailing commas are allowed."""
    try:
        with open_as_user(str(path)) as file:
            text = file.read(most=MAX_FILE_BYTES).decode("utf-8-sig")
    except (FileMissing, FileTooLarge, Refused, UnicodeDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}") from error
    return from_text(text, str(path), environ=environ, folder=str(folder_of(path)))


def folder_of(path: Path) -> Path:
    """Return the project directory that a client's file belongs to."""
    return path.parent.parent if path.parent.name in (".vscode", ".cursor") else path.parent


def outside(server: McpServer, folder: Path) -> tuple[str, ...]:
    """Return the host paths of a definition outside of its file's project.

    A box may have written the file, so the file alone must not open such paths.
    """
    if server.transport is not Transport.STDIO:
        return ()
    try:
        sources = projects.infer(server).sources()
    except FileMissing:
        return (server.host_path or server.cwd,)
    top = os.path.realpath(folder)
    return tuple(source for source in sources if not at_or_below(os.path.realpath(source), top))


def from_text(
    text: str, origin: str = "the text", *, environ: Mapping[str, str] | None = None, folder: str = ""
) -> Imported:
    try:
        plain = json.loads(without_comments(text))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{origin} is not JSON: {error}") from error
    return from_plain(plain, origin, environ=environ, folder=folder)


def from_plain(
    plain: object, origin: str = "the table", *, environ: Mapping[str, str] | None = None, folder: str = ""
) -> Imported:
    """Read the `mcpServers` object or the document around it.

    Without a folder no file is read. Variables come from `environ`, by default that of this process.
    """
    table = _table(plain)
    if table is None:
        raise Invalid(f"{origin} has no table of MCP servers", remedy=f"it is expected under {', '.join(TABLES[:2])}")
    found = Imported()
    for name, entry in table.items():
        if not isinstance(entry, dict):
            found.notes.append(f"{name}: is no object, left out")
            continue
        safe = re.sub(r"_{2,}", "_", re.sub(r"[^a-zA-Z0-9_.-]+", "-", name)).strip("-_.")[: servers.LONGEST_NAME]
        if safe != name:
            found.notes.append(f"{name}: is called {safe} here")
        if safe in found.servers:
            found.notes.append(f"{name}: another one is called {safe} already, left out")
            continue
        reader = _Entry(name, entry, dict(os.environ if environ is None else environ), folder)
        try:
            server = reader.server()
            servers.check(safe, server)
        except Invalid as error:
            found.notes.append(f"{name}: {error.message}, left out")
            continue
        found.servers[safe] = server
        found.notes += reader.notes
    return found


def _table(plain: object) -> dict[str, Any] | None:
    if not isinstance(plain, dict):
        return None
    for key in TABLES:
        if isinstance(plain.get(key), dict):
            return dict(plain[key])
    inner = plain.get("mcp")
    if isinstance(inner, dict):  # VS Code's settings.json
        return _table(inner)
    is_table = plain and all(isinstance(each, dict) and ("command" in each or "url" in each) for each in plain.values())
    return dict(plain) if is_table else None


class _Entry:
    """One server of a table."""

    def __init__(self, name: str, entry: dict[str, Any], environ: dict[str, str], folder: str) -> None:
        self.name = name
        self.notes: list[str] = []
        self._entry = entry
        self._environ = environ
        self._folder = folder

    def server(self) -> McpServer:
        entry = self._expanded(self._entry)
        plain: dict[str, Any] = {key: entry[key] for key in McpServer.__struct_fields__ if entry.get(key) is not None}
        command = plain.get("command")
        if isinstance(command, list) and command:  # Some clients write the whole argv here.
            plain["command"], plain["args"] = command[0], [*command[1:], *plain.get("args", ())]
        for key in ("cwd", "host_path"):
            if self._folder and isinstance(plain.get(key), str):
                plain[key] = os.path.normpath(os.path.join(self._folder, plain[key]))
        command = plain.get("command")
        if self._folder and isinstance(command, str) and "/" in command and not os.path.isabs(command):
            plain.setdefault("cwd", self._folder)  # Its own client would have started it there.
        for key in _URLS:
            if key in entry and "url" not in plain:
                plain["url"] = entry[key]
        if "enabled" in entry:
            plain["disabled"] = not entry["enabled"]
        if isinstance(entry.get("timeout"), int | float) and not isinstance(entry["timeout"], bool):
            # Most clients use milliseconds, and no server may take 1000 seconds to start.
            seconds = entry["timeout"] / 1000 if entry["timeout"] >= 1000 else entry["timeout"]
            plain["startup_timeout_sec"] = max(1.0, float(seconds))
        if "type" in plain or "transport" in entry:
            plain["type"] = self._type(plain.get("type") or entry.get("transport"))
        if "env" in plain and isinstance(plain["env"], dict):
            plain["env"] = {key: str(value) for key, value in plain["env"].items() if value is not None}
        known = {*McpServer.__struct_fields__, *_URLS, *_IGNORED_KEYS, "enabled", "timeout", "transport", "envFile"}
        self.notes += [f"{self.name}: {key} is not used here" for key in entry if key not in known]
        if "envFile" in entry and not self._folder:
            raise Invalid("has an envFile, which only its own machine has")
        if "envFile" in entry:
            plain["env"] = _env_file(self._folder, str(entry["envFile"])) | plain.get("env", {})
        try:
            return msgspec.convert(plain, McpServer, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(f"is not understood ({error})") from error

    def _type(self, given: object) -> str:
        kind = _TYPES.get(str(given))
        if kind is None:
            raise Invalid(f"has the type {str(given)[:40]!r}, which is not known")
        return kind

    def _expanded(self, value: Any) -> Any:
        """Replace variables by values of the environment and by the file's folder."""
        if isinstance(value, dict):
            return {key: self._expanded(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._expanded(each) for each in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        text = value.replace("${workspaceFolder}", self._folder)
        for home in _UNIX_HOME:
            text = text.replace(home, self._environ.get("HOME", home))
        if "${input:" in text:
            raise Invalid("asks for an input, which only its own client has")
        return _VARIABLE.sub(self._variable, text)

    def _variable(self, found: re.Match[str]) -> str:
        value = self._environ.get(found[1], found[2])
        if value is None:
            raise Invalid(f"needs the variable {found[1]}, which is not set")
        if found[1] in self._environ:
            # Reported, because the table may come from a stranger and the variable may be a secret.
            self.notes.append(f"{self.name}: is given the variable {found[1]} of this environment")
        return value


def _env_file(folder: str, name: str) -> dict[str, str]:
    """Read an env file of the project. A malicious table could hand any other file to its own server."""
    inner = os.path.relpath(os.path.join(folder, name), folder)
    try:
        with open_as_user(folder) as tree:
            lines = tree.read(inner, most=MAX_FILE_BYTES).decode().splitlines()
    except (FileMissing, FileTooLarge, Refused, UnicodeDecodeError) as error:
        raise Invalid(f"has an envFile that cannot be read: {error}") from error
    pairs = (line.removeprefix("export ").partition("=") for line in map(str.strip, lines) if line[:1] not in ("", "#"))
    return {name.strip(): value.strip().strip("\"'") for name, sign, value in pairs if sign}


def without_comments(text: str) -> str:
    """Return plain JSON from JSON with comments and trailing commas. Strings are not changed."""
    pieces = re.split(r'("(?:[^"\\]|\\.)*")', text)
    if not any("//" in piece or "/*" in piece for piece in pieces[::2]):
        return _without_commas(pieces)
    # A quote inside a comment would open a string in that split, so comments are removed first.
    cleaned = re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', lambda found: found[1] or " ", text, flags=re.DOTALL)
    return _without_commas(re.split(r'("(?:[^"\\]|\\.)*")', cleaned))


def _without_commas(pieces: list[str]) -> str:
    joined = "".join(pieces)
    return re.sub(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', lambda found: found[1] or "", joined)
