"""The file in a state directory by which a server announces itself, and whether that server is there now.

The file is small because only a program that looks for a server needs `json`.
"""

import json
import socket
from pathlib import Path
from typing import Any

SOCKET = "server.sock"
ANNOUNCEMENT = "server.json"


def read(state_dir: Path) -> dict[str, Any]:
    """Read what the last server wrote about itself; empty if there is nothing that can be read."""
    try:
        content = json.loads((state_dir / ANNOUNCEMENT).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def owner_of(state_dir: Path) -> str:
    """Return the socket of the live server that owns this state directory; empty if no server answers.

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


def browser_url(url: str) -> str:
    """Return the URL for a browser on this machine: a server that listens on every address is at the loopback one."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
