"""Packages for the boxes: fetched once by this machine's own pip and npm, and given to boxes as an operator would.

Where a box has no way to a package index, `[mcp] install_paths` and `npm_cache` stand in for it. Installers in the
boxes are the real ones and install for real.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hutch.config.mcp import McpTable

EVERYTHING = "@modelcontextprotocol/server-everything"
FILESYSTEM = "@modelcontextprotocol/server-filesystem"


def wheels(place: Path, *names: str) -> Path:
    """A directory that pip and uv can install from. The box's Python is this machine's."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(place), *names]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    return place


def npm_cache(place: Path, *commands: list[str]) -> Path:
    """What npx needs to install these programs again without an index; not the installed programs themselves."""
    scratch = place.parent / "npx"
    scratch.mkdir(exist_ok=True)
    for command in commands:
        # Each ends by itself when its input has ended.
        words = ["npx", "--cache", str(place), "-y", *command]
        subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, cwd=scratch, timeout=300)
    shutil.rmtree(place / "_npx", ignore_errors=True)
    for top, folders, names in os.walk(place):
        for name in (*folders, *names):
            path = Path(top, name)
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    return place


def settings(found: Path | None, cache: Path | None = None) -> McpTable:
    """As hutch.toml would say it."""
    environment = {"npm_config_offline": "true"}
    if found is not None:
        environment |= {
            "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(found), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(found),
            "UV_OFFLINE": "1",
        }  # fmt: skip
    return McpTable(
        install_env=environment, install_paths=(str(found),) if found else (), npm_cache=str(cache) if cache else "",
        gateway_wait_sec=240.0,
    )  # fmt: skip
