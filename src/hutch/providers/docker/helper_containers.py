"""Helper containers: an empty image, and containers of it that are never started and serve one request each."""

import io
import secrets
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hutch.providers.docker import labels
from hutch.providers.docker.engine.api import Engine

BASE = "hutch-base-1:latest"
"""The name of an empty image, for containers in which nothing runs but our own guest."""


async def ensure_base_image(engine: Engine) -> None:
    if await engine.image(BASE) is None:
        await engine.load_image(BASE, _empty_root())


@asynccontextmanager
async def helper_container(engine: Engine, mounts: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Create a helper container, which is never started, and remove it at the end."""
    name = f"hutch-throwaway-{secrets.token_hex(8)}"
    body = {
        "Image": BASE,
        "Entrypoint": ["/nothing"],
        "Labels": {labels.THROWAWAY: str(int(time.time()))},
        "HostConfig": {"NetworkMode": "none", "Mounts": mounts},
    }
    try:
        await engine.create(name, body)
        yield name
    finally:
        await engine.remove(name)


def _empty_root() -> bytes:
    """Return a root with one empty directory, because engines refuse an archive without entries."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("etc")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    return packed.getvalue()
