"""MCP servers that Hutch hosts: their definitions, and what is known of them while they run."""

from enum import StrEnum
from typing import Any

import msgspec

from hutch.model.record import Record
from hutch.model.spec import MountMode, NetworkMode

SECRETS_AT = "/run/secrets"
"""Directory of a server's `secret_files`, outside of every workspace, volume and mount."""


class Transport(StrEnum):
    """The transport to a server."""

    STDIO = "stdio"
    """A process in a box of ours."""
    HTTP = "http"
    """Streamable HTTP, somewhere else."""
    SSE = "sse"
    """The older HTTP transport, somewhere else."""


class Start(StrEnum):
    LAZY = "lazy"
    """Start it at its first use."""
    EAGER = "eager"
    """Start it as soon as Hutch serves."""


class Share(StrEnum):
    """Whose box a server runs in."""

    OWN = "own"
    PIPELINE = "pipeline"
    """One box for all servers of the same group."""
    SCOPE = "scope"
    """The box of the conversation that uses it."""


class Phase(StrEnum):
    """The phase of a server; an error names the phase in which it happened."""

    SESSION_CREATE = "session_create"
    DEP_INSTALL = "dep_install"
    PROCESS_START = "process_start"
    RELAY_CONNECT = "relay_connect"
    MCP_INIT = "mcp_init"
    RUNTIME = "runtime"
    TOOL_CALL = "tool_call"


class ServerState(StrEnum):
    DISABLED = "disabled"
    """It is switched off by its definition, or Hutch itself is."""
    STOPPED = "stopped"
    STARTING = "starting"
    WAITING = "waiting"
    """It failed, and is tried again after a pause."""
    READY = "ready"
    FAILED = "failed"
    """All attempts to start it failed; `error` says why the last one did."""


class McpServer(Record, frozen=True, kw_only=True):
    """A server as `mcpServers` tables define it, and the options of its box."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment of the process. Values are secrets, which are never shown."""
    secret_files: dict[str, str] = msgspec.field(default_factory=dict)
    """Names and content of files in SECRETS_AT of its box, readable by its user only, for servers that read a secret
    from a file. Secrets like `env`."""
    cwd: str = ""
    url: str = ""
    """Address of a server somewhere else, which then has no command."""
    type: Transport | None = None
    """None for stdio with a command and http with a url."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Sent to `url`; secrets like `env`."""
    disabled: bool = False
    description: str = ""
    start: Start = Start.LAZY
    share: Share = Share.OWN
    group: str = "default"
    """The pipeline, if `share` is pipeline."""
    profile: str = "mcp"
    image: str | None = None
    network: NetworkMode | None = None
    mount: MountMode = MountMode.RO
    """How its host files are shown in its box; `none` for not at all."""
    host_path: str = ""
    """The project's directory on this machine, if command and args do not name it."""
    read_only_root: bool | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    pids: int | None = None
    disk_mb: int | None = None
    startup_timeout_sec: float = 120.0
    """Seconds from the start of the process to its answer to `initialize`."""
    install_timeout_sec: float = 600.0
    tool_timeout_sec: float = 600.0
    """Seconds for one request; 0 for no end."""
    allow: tuple[str, ...] = ()
    """Patterns of the tools that are shown; all if empty."""
    deny: tuple[str, ...] = ()
    """Patterns of tools that are not shown, even if allowed."""

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
    """What is shown of a server, without secrets."""

    name: str
    transport: Transport
    state: ServerState
    phase: Phase | None
    """The phase it is in, or in which it failed."""
    boxed: bool
    box: str
    """Id of the box it runs in, if any."""
    job: str
    retries: int
    """Failed starts since it was last ready."""
    starts: int
    since: float
    """When it entered this state."""
    error: McpFailure | None
    start: Start
    share: Share
    command: tuple[str, ...]
    """Program and arguments; those that hold a secret are hidden."""
    url: str
    env: tuple[str, ...]
    """Names only."""
    secret_files: tuple[str, ...]
    """Names only."""
    files: dict[str, str]
    """Host paths that its box shows, and their targets."""
    tools: int | None
    """Number of its tools; None if they were not listed yet."""
    origin: str
    """Where it was defined: `registry`, or a place in hutch.toml."""
    description: str = ""


class McpTool(Record, frozen=True, kw_only=True):
    """One tool of a server."""

    server: str
    name: str
    description: str
    schema: dict[str, Any]
