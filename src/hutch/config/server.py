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
    "max_connections_per_box",
)
_LISTS = ("hosts", "origins", "langbot_shared_roots")
LEAST_HELD_MB = 16
"""A smaller value would refuse ordinary results."""


class ServerTable(Record, frozen=True, kw_only=True):
    """Every setting of the server, with its default."""

    host: str = "127.0.0.1"
    """TCP address; empty for the Unix socket only."""
    port: int = 7300
    """0 for any free port, which `server.json` then names."""
    socket: str = ""
    """Path of the Unix socket; by default `server.sock` in the run directory."""
    advertise: str = ""
    """The URL at which clients reach this very server, where several share a store: others redirect to it."""
    tls_cert: str = ""
    tls_key: str = ""
    hosts: tuple[str, ...] = ()
    """Host names by which clients may call over TCP, besides localhost and the address it listens on."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may call, such as https://bots.example.org; a server's own origin always may."""
    rate_per_sec: float = 1000.0
    """Requests per second of a key, or of an address without one; twice as many in a burst. 0 for no limit."""
    max_body_mb: int = 16
    """Largest body that is not a file."""
    max_upload_mb: int = 16384
    """Largest file that is written by one request."""
    body_timeout_sec: float = 60.0
    """Seconds after which a request is dropped if no more of its body comes, or if its headers are incomplete."""
    body_total_sec: float = 600.0
    """Seconds for a whole body, plus one for each 64 KB that have come; 0 for no limit."""
    held_mb_per_key: int = 128
    """Most memory for one key: unread answers and unused bodies. 0 for no limit."""
    held_mb: int = 512
    """Most memory for all keys together. 0 for no limit."""
    read_timeout_sec: float = 60.0
    """Seconds after which the connection of an unread answer is cut, plus one for each 16 KB that were read; 0 for
    never."""
    max_connections: int = 0
    """Most connections at once; a new one closes the oldest idle one. 0 for as many as there are descriptors."""
    max_connections_per_box: int = 256
    """Most connections to the ports of one box at once."""
    previews: str = ""
    """Where previews are reached, such as https://previews.example.org: each gets the name PORT-BOX below it, so that
    name needs a wildcard DNS entry (and certificate). By default http://localhost and the server's port."""
    answer_sec: float = 60.0
    """Seconds that an agent waits for the answer of a person to its question; 0 if nobody is asked."""
    pulls: str = "admin"
    """Who may have images pulled, by name or by a box that needs one: `admin`, or `user` (then everybody with a key
    makes this machine call any registry). `pull` of rights says otherwise for an owner or a key."""
    drain_sec: float = 10.0
    """Seconds that running requests have to finish when the server ends."""
    langbot_shared_roots: tuple[str, ...] = ()
    """Directories that this machine shares with LangBot, such as its data directory: everybody with a key may show what
    lies below them in a box of LangBot's. Without one, each LangBot workspace gets a volume of its own."""
    bots_profile: str = ""
    """The profile of the boxes of LangBot and AstrBot; by default `network_extended` where the key may use it."""

    def check(self, origin: str) -> None:
        """Raise ConfigError, which names `origin`, for a wrong value."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"{origin}: server.port = {self.port} is no port", details={"field": "server.port"})
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError(
                f"{origin}: server.tls_cert and server.tls_key belong together", details={"field": "server.tls_cert"}
            )
        if self.advertise and (fault := self._fault_of_address()):
            raise ConfigError(
                f"{origin}: server.advertise = {self.advertise!r} {fault}", details={"field": "server.advertise"}
            )
        if self.pulls not in ("admin", "user"):
            raise ConfigError(f"{origin}: server.pulls is neither admin nor user", details={"field": "server.pulls"})
        if wrong := [root for root in self.langbot_shared_roots if not root.startswith("/")]:
            raise ConfigError(
                f"{origin}: server.langbot_shared_roots names {wrong[0]!r}, which is no absolute path",
                details={"field": "server.langbot_shared_roots"},
            )
        for field in _NUMBERS:
            if getattr(self, field) < 0:
                raise ConfigError(f"{origin}: server.{field} is negative", details={"field": f"server.{field}"})
        for field in ("held_mb_per_key", "held_mb"):
            if 0 < getattr(self, field) < LEAST_HELD_MB:
                raise ConfigError(
                    f"{origin}: server.{field} is less than {LEAST_HELD_MB}", details={"field": f"server.{field}"}
                )

    def _fault_of_address(self) -> str:
        """Return why other servers could not send clients to the address that is advertised; "" if they can."""
        from urllib.parse import urlsplit  # it takes longer to load than the rest of this module

        try:
            parts = urlsplit(self.advertise)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
                return "is no URL"
        except ValueError:  # A port that is no number, or a bracket too many.
            return "is no URL"
        if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
            return "has more than scheme, host and port"
        if self.tls_cert and parts.scheme == "http":
            return "is not the https:// URL of a server with server.tls_cert"
        return ""


def from_text(key: str, text: str) -> str | list[str]:
    """Parse the text of an environment variable. Lists use commas, because an origin has colons."""
    return [each.strip() for each in text.split(",")] if key in _LISTS else text
