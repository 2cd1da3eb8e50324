"""Helper containers: an empty image, and containers of it that are never started and serve one request each.

One of them proves that the engine sees a directory of ours.
"""

import contextlib
import io
import os
import secrets
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hutch.providers.docker import labels
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.http import EngineRefused

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


async def why_not_shared(engine: Engine, directory: str, source: str) -> str:
    """Return why `directory` is not what the engine has at `source`; "" if it is.

    A probe file with random content is written there, and the engine has to find it.
    """
    name, content = f".hutch-probe-{secrets.token_hex(8)}", secrets.token_hex(16)
    path = os.path.join(directory, name)
    try:
        _write_probe(path, content)
    except OSError as error:
        return f"it could not be proven: {error.strerror}"
    mount = {"Type": "bind", "Source": source, "Target": "/probe", "ReadOnly": True}
    try:
        async with helper_container(engine, [mount]) as container:
            found = await engine.get_archive(container, f"/probe/{name}")
    except EngineRefused as refused:
        return refused.message
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return "" if content.encode() in found else "another file was found there"


def _write_probe(path: str, content: str) -> None:
    with open(path, "x") as file:
        file.write(content)


def _empty_root() -> bytes:
    """Return a root with one empty directory, because engines refuse an archive without entries."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("etc")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    return packed.getvalue()
