"""One server for the tests that do not end it."""

from collections.abc import Iterator

import pytest

from tests.server.serving import Client, Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture
def client(server: Server) -> Client:
    """This user, on the Unix socket."""
    return server.unix()
