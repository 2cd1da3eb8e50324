"""Ports of a box: what listens, and the addresses at which people see it."""

from hutch.model.ids import BoxId
from hutch.model.record import Record


class PortInfo(Record, frozen=True, kw_only=True):
    """One TCP port on which a program in the box listens."""

    port: int
    address: str = ""
    """The address that the program bound: 127.0.0.1, 0.0.0.0, ::, ..."""
    process: str = ""
    """The name of the program; empty if the box's user may not see whose it is."""
    pid: int = 0
    """The process id within the box; 0 if unknown."""


class Preview(Record, frozen=True, kw_only=True):
    """Access to one port of a box by HTTP and WebSocket, at an origin of its own."""

    id: str
    box_id: BoxId
    port: int
    """0 for every port of the box."""
    url: str
    """Opens in a browser: its first visit turns the token into a cookie of that origin alone. Empty if the server has
    no host names for previews."""
    path_url: str
    """The same on the server's own host name, for places without wildcard names. Pages get an opaque origin there,
    without cookies and storage."""
    token: str
    """For programs, in the header `Hutch-Preview`. Empty if the preview is public."""
    public: bool
    created_at: float
    expires_at: float
    """Unix time; 0 if it lasts as long as the box."""
