"""Where a server announces itself in its state directory, and whether one is there now."""

import json
import socket
from pathlib import Path
from typing import Any

SOCKET = "server.sock"
ANNOUNCEMENT = "server.json"


def read(state_dir: Path) -> dict[str, Any]:
    """What the last server there told of itself; empty: nothing that could be read."""
    try:
        told = json.loads((state_dir / ANNOUNCEMENT).read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def owner_of(state_dir: Path) -> str:
    """The socket of the live server that owns this state directory; empty: there is none that would talk to us.

    A killed server leaves its announcement behind, so only a socket that takes a connection counts.
    """
    path = read(state_dir).get("socket")
    if not isinstance(path, str) or not path or not hasattr(socket, "AF_UNIX"):
        return ""
    trial = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        trial.settimeout(1.0)
        trial.connect(path)
    except OSError:
        return ""
    finally:
        trial.close()
    return path
