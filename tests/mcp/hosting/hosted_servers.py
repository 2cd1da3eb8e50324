"""Servers for the tests: a project on this machine, and a `Hosted` over real boxes."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hutch.config.mcp import McpTable
from hutch.keeper.embedded import Hutch
from hutch.mcp.hosting import Hosted
from hutch.model.mcp import McpServer

QUICK = McpTable(retry_pauses_sec=(0.2, 0.2, 0.2), health_sec=0.5)
"""Pauses that a test can wait for; the real ones are proven in `test_real.py`."""
SOURCE = Path(__file__).with_name("plain_server.py")


def project(place: Path) -> Path:
    """A directory with the plain server in it."""
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, place / "server.py")
    (place / "pyproject.toml").write_text("[tool.anything]\n")
    return place


def plain(place: Path, **options: Any) -> McpServer:
    """The plain server as people configure one."""
    return McpServer(command="python3", args=(str(project(place) / "server.py"),), **options)


@asynccontextmanager
async def hosting(place: Path, settings: McpTable = QUICK, **configuration: Any) -> AsyncIterator[Hosted]:
    async with Hutch(mount_roots=(), **configuration) as hutch:
        async with Hosted(hutch, directory=place / "registry", settings=settings) as hosted:
            yield hosted


def text_of(result: Any) -> str:
    """Of a result of the SDK, or its plain form."""
    return result["content"][0]["text"] if isinstance(result, dict) else result.content[0].text


def where(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text_of(result))
    return found
