"""`[server]`: where `hutch serve` listens, who may come, and how much each may ask for.

The environment has the same as `HUTCH_SERVER_HOST`, `HUTCH_SERVER_PORT`, and so on.
"""

from hutch.errors import ConfigError
from hutch.model.record import Record

_NUMBERS = (
    "rate_per_sec",
    "max_body_mb",
    "max_upload_mb",
    "body_timeout_sec",
    "body_total_sec",
    "answer_sec",
    "drain_sec",
    "held_mb_per_key",
    "held_mb",
    "read_timeout_sec",
    "max_connections",
)
LEAST_HELD_MB = 16
"""Less would refuse ordinary results."""


class ServerTable(Record, frozen=True, kw_only=True):
    """Every setting of the server, with its default."""

    host: str = "127.0.0.1"
    """Address of the TCP door; empty: only the Unix socket."""
    port: int = 7300
    """0: any free one, told in `server.json`."""
    socket: str = ""
    """Path of the Unix socket; empty: `server.sock` in the run directory."""
    tls_cert: str = ""
    tls_key: str = ""
    hosts: tuple[str, ...] = ()
    """Host names by which clients may call the TCP door, besides localhost and the address it listens on."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may call, such as https://bots.example.org; a server's own origin always may."""
    rate_per_sec: float = 1000.0
    """Requests each second of a key, or of an address without one; twice as many at once. 0: no limit."""
    max_body_mb: int = 16
    """Largest body that is not a file."""
    max_upload_mb: int = 16384
    """Largest file that is written by one request."""
    body_timeout_sec: float = 60.0
    """How long a body may stand still, and how long the headers before it may take, until the request is given up."""
    body_total_sec: float = 600.0
    """How long a whole body may take, and one second more for each 64 KB of it that have come; 0: no limit."""
    held_mb_per_key: int = 128
    """What the server holds for one key at most: answers that were not read, bodies that were not used. 0: no limit."""
    held_mb: int = 512
    """The same for all keys together. 0: no limit."""
    read_timeout_sec: float = 60.0
    """How long an answer may stand unread until its connection is cut, and one second more for each 16 KB that were
    read; 0: for ever."""
    max_connections: int = 0
    """Connections at once; the oldest idle ones make room for new ones. 0: as many as there are descriptors for."""
    answer_sec: float = 60.0
    """How long an agent waits until one of its owner's people has answered its question; 0: nobody is asked."""
    pulls: str = "admin"
    """Who may have images pulled, by name or by a box that needs one: `admin`, or `user` (then whoever has a key makes
    this machine call any registry). `pull` of rights says otherwise for an owner or a key."""
    drain_sec: float = 10.0
    """How long requests may take to finish when the server is told to end."""

    def check(self, origin: str) -> None:
        """Raises ConfigError, which names `origin`."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"{origin}: server.port = {self.port} is no port", details={"field": "server.port"})
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError(
                f"{origin}: server.tls_cert and server.tls_key belong together", details={"field": "server.tls_cert"}
            )
        if self.pulls not in ("admin", "user"):
            raise ConfigError(f"{origin}: server.pulls is neither admin nor user", details={"field": "server.pulls"})
        for field in _NUMBERS:
            if getattr(self, field) < 0:
                raise ConfigError(f"{origin}: server.{field} is negative", details={"field": f"server.{field}"})
        for field in ("held_mb_per_key", "held_mb"):
            if 0 < getattr(self, field) < LEAST_HELD_MB:
                raise ConfigError(
                    f"{origin}: server.{field} is less than {LEAST_HELD_MB}", details={"field": f"server.{field}"}
                )


def from_text(key: str, text: str) -> str | list[str]:
    """As an environment variable has it: lists with commas, because an origin has colons."""
    return [each.strip() for each in text.split(",")] if key in ("hosts", "origins") else text
