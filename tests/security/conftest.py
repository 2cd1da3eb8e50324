"""What every attack needs: an arena with a sound engine, and a sentinel that is still whole afterwards."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import remove
from tests.security.attacks import Arena, Sentinel


@pytest.fixture(scope="session")
def arena() -> Iterator[Arena]:
    # Right under /tmp and open to everybody: what keeps a box out must be the box, not the host's permissions.
    place = Path(tempfile.mkdtemp(prefix="ha-", dir="/tmp"))
    place.chmod(0o755)
    arena = Arena(place)
    yield arena
    arena.close()
    remove(place)


@pytest.fixture
def sentinel() -> Iterator[Sentinel]:
    """Checked at the end of each test: the host is unchanged."""
    directory = Path(tempfile.mkdtemp(prefix="hs-", dir="/tmp"))
    sentinel = Sentinel(directory)
    yield sentinel
    whole = sentinel.unchanged()
    shutil.rmtree(directory)
    assert whole, "the attack changed the host"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory on the host that boxes of this test may use: images, mounts."""
    directory = Path(tempfile.mkdtemp(prefix="hx-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    remove(directory)
