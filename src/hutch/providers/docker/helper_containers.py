"""Containers of nothing: an empty image, and containers of it that are never started, for one request of ours each."""

import io
import secrets
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hutch.providers.docker import labels
from hutch.providers.docker.engine_api import Engine

BASE = "hutch-base-1:latest"
"""An image with nothing in it, for containers of which nothing is run but our own guest."""


async def ensure_base_image(engine: Engine) -> None:
    if await engine.image(BASE) is None:
        await engine.load_image(BASE, _nothing())


@asynccontextmanager
async def helper_container(engine: Engine, mounts: list[dict[str, Any]]) -> AsyncIterator[str]:
    """The name of a container of nothing, for one request of ours. It is not started: nothing of it runs."""
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


def _nothing() -> bytes:
    """A root with one empty directory: engines do not take an archive without an entry."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("etc")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    return packed.getvalue()
