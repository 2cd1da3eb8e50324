"""One Docker daemon for each file of container tests that asks for it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import remove
from tests.providers import daemons


@pytest.fixture(scope="module")
def docker() -> Iterator[daemons.Daemon]:
    with daemons.docker() as daemon:
        yield daemon


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """Right under /tmp: the sockets of a whole Hutch lie below it, and a socket's path has 108 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="hd-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    remove(directory)
