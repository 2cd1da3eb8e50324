"""`[mcp]`: MCP servers that Hutch hosts, and where their packages come from."""

from typing import Any

import msgspec

from hutch.errors import ConfigError, Invalid
from hutch.model.ids import is_name
from hutch.model.mcp import McpServer
from hutch.model.record import Record
from hutch.policy.mcp_servers import check


class McpTable(Record, frozen=True, kw_only=True):
    """Every setting of MCP hosting, with its default."""

    servers: dict[str, McpServer] = msgspec.field(default_factory=dict)
    """`[mcp.servers.NAME]`: what an `mcpServers` table of another client says, and the options of the box."""
    install_env: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment of every hosted server and of its installations, such as PIP_INDEX_URL or npm_config_registry."""
    install_paths: tuple[str, ...] = ()
    """Host directories shown read-only at the same place in those boxes: packages, mirrors, certificates."""
    npm_cache: str = ""
    """A host directory in npm's cache format that a server's own cache begins with."""
    gateway_wait_sec: float = 30.0
    """Seconds that a list of the gateway waits for servers that are still starting; later ones are announced."""
    retry_pauses_sec: tuple[float, ...] = (2.0, 4.0, 8.0)
    """Pauses before a failed server is tried again; after the last one it has failed."""
    health_sec: float = 5.0
    """Seconds between health checks of a server."""

    def check(self, origin: str) -> None:
        """Raise ConfigError, which names `origin`, for a wrong value."""
        for name, server in self.servers.items():
            if not is_name(name):
                raise ConfigError(f"{origin}: {name!r} is no name for an MCP server")
            try:
                check(name, server)
            except Invalid as error:
                raise ConfigError(f"{origin}: {error.message}", remedy=error.remedy, details=error.details) from error
        if self.health_sec <= 0 or self.gateway_wait_sec < 0 or any(pause < 0 for pause in self.retry_pauses_sec):
            raise ConfigError(f"{origin}: a time of [mcp] is negative, or health_sec is 0")

    def shown(self) -> dict[str, Any]:
        """Return the table with secrets hidden."""
        servers = {name: hidden(server).to_plain() for name, server in self.servers.items()}
        return self.but(install_env=dict.fromkeys(self.install_env, "***")).to_plain() | {"servers": servers}


def hidden(server: McpServer) -> McpServer:
    return server.but(
        env=dict.fromkeys(server.env, "***"), headers=dict.fromkeys(server.headers, "***"),
        secret_files=dict.fromkeys(server.secret_files, "***"),
    )  # fmt: skip
