"""Checks of an MCP server's definition. Nothing here looks at the machine."""

from fnmatch import fnmatchcase

from hutch.errors import Invalid
from hutch.model.ids import is_name
from hutch.model.mcp import McpServer, Share, Transport
from hutch.policy import values

SEPARATOR = "__"
"""Separates the server's name from the tool's in the gateway."""
LONGEST_NAME = 40
MOST_SECRET = 64 << 10


def read(server: McpServer) -> McpServer:
    """Convert the choices of a definition to enums, because every decision compares enums and the constructor of
    `McpServer(share="pipeline")` checks no types."""
    return McpServer.from_plain(server.to_plain())


def check(name: str, server: McpServer) -> None:
    """Raise Invalid, which names the field, for a wrong definition."""
    if not is_name(name) or len(name) > LONGEST_NAME or SEPARATOR in name:
        raise Invalid(
            f"{name!r} is no name for an MCP server",
            remedy=f"letters, digits, dot, dash and single underscores; at most {LONGEST_NAME}",
            details={"field": "name"},
        )
    if bool(server.command) == bool(server.url):
        raise _wrong(name, "command", "has both a command and a url" if server.url else "has no command and no url")
    if (server.transport is Transport.STDIO) != bool(server.command):
        raise _wrong(name, "type", f"is of type {server.transport}, which does not go with what it has")
    if server.url:
        _check_url(name, server.url)
    for text in (server.command, *server.args, server.cwd, server.host_path):
        if "\0" in text:
            raise _wrong(name, "args", "holds a NUL character")
    for field in ("cwd", "host_path"):
        path = getattr(server, field)
        if path and not path.startswith("/") and "\\" not in path:
            raise _wrong(name, field, f"has the {field} {path!r}, which is not an absolute path")
    values.check_environment("env", server.env)
    _check_secret_files(name, server)
    for key, value in server.headers.items():
        if not key or not (key + value).isprintable() or ":" in key or not key.isascii():
            raise _wrong(name, "headers", f"has a header {key!r} that cannot be sent")
    if server.share is Share.PIPELINE and not is_name(server.group):
        raise _wrong(name, "group", f"names the group {server.group!r}, which is no name")
    for field in ("startup_timeout_sec", "install_timeout_sec"):
        if not 0 < getattr(server, field) <= 86400:
            raise _wrong(name, field, f"has a {field} that is not above 0 and up to a day")
    if not 0 <= server.tool_timeout_sec <= 86400:
        raise _wrong(name, "tool_timeout_sec", "has a tool_timeout_sec that is not from 0 to a day")


def _check_secret_files(name: str, server: McpServer) -> None:
    if not server.secret_files:
        return
    if server.url:
        raise _wrong(name, "secret_files", "has secret_files, and runs somewhere else")
    if server.share is not Share.OWN:
        # Every process of a shared box has the same user, so all of its servers could read the file.
        raise _wrong(name, "secret_files", f"has secret_files, and shares a box ({server.share})")
    for file, text in server.secret_files.items():
        if not is_name(file):
            raise _wrong(name, "secret_files", f"has a secret file {file[:80]!r}, which is no name")
        if not text or len(text.encode()) > MOST_SECRET:
            raise _wrong(name, "secret_files", f"has a secret file {file} that is empty or past {MOST_SECRET} bytes")


def offers(server: McpServer, tool: str) -> bool:
    """Return whether clients may see this tool. Denied wins over allowed."""
    if any(fnmatchcase(tool, pattern) for pattern in server.deny):
        return False
    return not server.allow or any(fnmatchcase(tool, pattern) for pattern in server.allow)


def _check_url(name: str, url: str) -> None:
    from urllib.parse import urlsplit  # it takes longer to load than the rest of this module

    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good:
        raise _wrong(name, "url", f"has the url {url[:200]!r}, which is no http(s) address")


def _wrong(name: str, field: str, why: str) -> Invalid:
    return Invalid(f"MCP server {name} {why}", details={"field": field, "server": name})
