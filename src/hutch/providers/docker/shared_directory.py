"""Proves that the engine sees a directory of ours: a probe file with random content is written there and looked for."""

import contextlib
import os
import secrets

from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.http import EngineRefused
from hutch.providers.docker.helper_containers import helper_container


async def obstacle(engine: Engine, directory: str, source: str) -> str:
    """Return why `directory` is not what the engine has at `source`; "" if it is."""
    name, content = f".hutch-probe-{secrets.token_hex(8)}", secrets.token_hex(16)
    path = os.path.join(directory, name)
    try:
        _write(path, content)
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


def _write(path: str, content: str) -> None:
    with open(path, "x") as file:
        file.write(content)
