"""MCP servers that Hutch hosts: what a server is defined as, and what is known of it while it runs."""

from enum import StrEnum
from typing import Any

import msgspec

from hutch.model.record import Record
from hutch.model.spec import MountMode, NetworkMode

SECRETS_AT = "/run/secrets"
"""Where a server finds its `secret_files`: outside of every workspace, volume and mount."""


class Transport(StrEnum):
    """How a server is spoken to."""

    STDIO = "stdio"
    """A process of ours, in a box."""
    HTTP = "http"
    """Streamable HTTP, somewhere else."""
    SSE = "sse"
    """The older HTTP transport, somewhere else."""


class Start(StrEnum):
    LAZY = "lazy"
    """At its first use."""
    EAGER = "eager"
    """As soon as Hutch serves."""


class Share(StrEnum):
    """Whose box a server runs in (B10)."""

    OWN = "own"
    PIPELINE = "pipeline"
    """One box for all servers of the same group."""
    SCOPE = "scope"
    """The box of the conversation that uses it."""


class Phase(StrEnum):
    """How far a server has come; an error names the one it happened in (B36)."""

    SESSION_CREATE = "session_create"
    DEP_INSTALL = "dep_install"
    PROCESS_START = "process_start"
    RELAY_CONNECT = "relay_connect"
    MCP_INIT = "mcp_init"
    RUNTIME = "runtime"
    TOOL_CALL = "tool_call"


class ServerState(StrEnum):
    DISABLED = "disabled"
    """Switched off by its definition, or Hutch itself is."""
    STOPPED = "stopped"
    STARTING = "starting"
    WAITING = "waiting"
    """It failed, and is tried again after a pause."""
    READY = "ready"
    FAILED = "failed"
    """It was tried as often as it is; `error` says why it failed last."""


class McpServer(Record, frozen=True, kw_only=True):
    """A server as `mcpServers` tables define it, and the options of its box (B33)."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Given to the process as its environment. Values are taken for secrets: nothing shows them."""
    secret_files: dict[str, str] = msgspec.field(default_factory=dict)
    """What files of these names hold, in SECRETS_AT of its box, readable by its user only: for servers that take a
    secret by a file. Secrets like `env`."""
    cwd: str = ""
    url: str = ""
    """Of a server somewhere else; then there is no command."""
    type: Transport | None = None
    """None: stdio for a command, http for a url."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Sent to `url`; secrets like `env`."""
    disabled: bool = False
    description: str = ""
    start: Start = Start.LAZY
    share: Share = Share.OWN
    group: str = "default"
    """Which pipeline, where `share` is pipeline."""
    profile: str = "mcp"
    image: str | None = None
    network: NetworkMode | None = None
    mount: MountMode = MountMode.RO
    """How its host files are shown in its box; none: not at all."""
    host_path: str = ""
    """The project's directory on this machine, where command and args do not tell."""
    read_only_root: bool | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    pids: int | None = None
    disk_mb: int | None = None
    startup_timeout_sec: float = 120.0
    """From the start of the process until it has answered `initialize`."""
    install_timeout_sec: float = 600.0
    tool_timeout_sec: float = 600.0
    """For one request; 0: no end."""
    allow: tuple[str, ...] = ()
    """Patterns of the tools that are shown; empty: all."""
    deny: tuple[str, ...] = ()
    """Patterns of the tools that are not, even if allowed."""

    @property
    def transport(self) -> Transport:
        return self.type or (Transport.HTTP if self.url else Transport.STDIO)


class McpFailure(Record, frozen=True, kw_only=True):
    """Why a server failed last."""

    phase: Phase
    code: str
    message: str
    remedy: str
    at: float


class McpServerInfo(Record, frozen=True, kw_only=True):
    """A server as everybody may see it: no secret is in it (B37)."""

    name: str
    transport: Transport
    state: ServerState
    phase: Phase | None
    """The one it is in, or in which it failed."""
    boxed: bool
    box: str
    """Id of the box it runs in; empty: none."""
    job: str
    retries: int
    """Tries since it was last well."""
    starts: int
    since: float
    """When it came into this state."""
    error: McpFailure | None
    start: Start
    share: Share
    command: tuple[str, ...]
    """With arguments; those that hold a secret are hidden."""
    url: str
    env: tuple[str, ...]
    """Names only."""
    secret_files: tuple[str, ...]
    """Names only."""
    files: dict[str, str]
    """Host paths that its box shows, and where."""
    tools: int | None
    """None: not asked yet."""
    origin: str
    """Where it was defined: `registry`, or a place in hutch.toml."""
    description: str = ""


class McpTool(Record, frozen=True, kw_only=True):
    """One tool of a server."""

    server: str
    name: str
    description: str
    schema: dict[str, Any]
