"""One server for the tests that do not end it, and one sandbox for those that leave it as it was."""

from collections.abc import Iterator

import e2b
import pytest

from tests.e2e.e2b_sdk import E2B
from tests.e2e.e2b_tls import TlsServer, serving_tls
from tests.server.serving import serving


@pytest.fixture(scope="session")
def hutch_e2b() -> Iterator[E2B]:
    with serving() as server:
        yield E2B(server)


@pytest.fixture(scope="session")
def sandbox(hutch_e2b: E2B) -> Iterator[e2b.Sandbox]:
    with hutch_e2b.sandbox(timeout=3600) as created:
        yield created


@pytest.fixture(scope="session")
def tls() -> Iterator[TlsServer]:
    with serving_tls() as server:
        yield server
