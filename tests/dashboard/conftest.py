"""One server with something to look at, and one browser, for all tests of the dashboard that do not end either."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from hutch.server.dashboard.pages import BUILT
from tests.dashboard.sample import Sample, sample_server
from tests.dashboard.visitor import CHROMIUM, Visitor, chromium, visiting
from tests.server.serving import Server


@pytest.fixture(scope="session")
def sample() -> Iterator[Sample]:
    if not (BUILT / "index.html").is_file():
        pytest.skip("the dashboard is not built (tools/dashboard.sh)")
    with sample_server() as made:
        yield made


@pytest.fixture(scope="session")
def server(sample: Sample) -> Server:
    return sample.server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one module at most: while it is open, Playwright's event loop runs, and no coroutine test could."""
    if CHROMIUM is None:
        pytest.skip("needs chromium (tools/setup.sh)")
    with chromium() as started:
        yield started


@pytest.fixture
def visitor(browser: Browser, sample: Sample) -> Iterator[Visitor]:
    """A browser profile of its own; the page it leaves behind has no error and asked nobody but the server."""
    with visiting(browser, sample.server) as made:
        yield made
        made.check()
