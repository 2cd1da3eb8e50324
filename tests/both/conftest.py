"""One suite for every form of Hutch: embedded, over a Unix socket, over TCP. The same tests, the same types, the same
errors."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hutch import Hutch
from tests.both.forms import Open
from tests.server.serving import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its keys may what a process may with its own boxes; what keys may not is `tests/server/test_rights.py`'s."""
    config = tmp_path_factory.mktemp("both") / "hutch.toml"
    config.write_text('[rights."*"]\nroot = true\n')
    with serving(HUTCH_CONFIG=str(config)) as started:
        yield started


@pytest.fixture(params=["embedded", "unix", "tcp"])
def open_hutch(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a Hutch of the form in question; several are several sessions of one owner."""
    form: str = request.param
    server: Server | None = request.getfixturevalue("server") if form != "embedded" else None
    key = server.key("user", f"owner-{os.urandom(4).hex()}") if server is not None and form == "tcp" else ""

    @asynccontextmanager
    async def opened(**options: str) -> AsyncIterator[Hutch]:
        if server is None:
            hutch = Hutch(**options)
        elif form == "unix":
            hutch = Hutch(f"unix:{server.run}/server.sock", **options)
        else:
            hutch = Hutch(server.announcement["url"], key=key, **options)
        async with hutch:
            yield hutch

    return opened
