"""One server for the tests that do not end it, and short intervals so that outages pass quickly."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch.client.transport.heartbeat import Rhythm
from tests.server.serving import Server, serving

QUICK = Rhythm(
    interval_sec=0.2,
    answer_timeout_sec=2.0,
    retry_sec=0.05,
    max_retry_sec=0.2,
    outage_timeout_sec=60.0,
    first_delay_sec=0.0,
)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture
def wire(hutch_directories: Path, request: pytest.FixtureRequest) -> Path:
    """Where a proxy may listen; short, because it is a socket's path."""
    return hutch_directories / f"p{abs(hash(request.node.nodeid)) % 10**8}"
