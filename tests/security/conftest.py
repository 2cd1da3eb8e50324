"""What every attack needs: an arena with a sound engine, and a sentinel that is still whole afterwards."""

import os
import shutil
import subprocess
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


@pytest.fixture
def image(scratch: Path) -> Path:
    """An unpacked root that belongs to the box's user inside, who so may change every name in it."""
    top = scratch / "image"
    for name in ("bin", "etc", "home", "var", "usr"):
        (top / name).mkdir(parents=True)
    for name in ("sh", "rm", "ln", "mkdir"):
        add_program(top, name)
    (top / "etc/note").write_text("image")
    if os.geteuid() == 0:
        for path in (top, *top.rglob("*")):
            os.chown(path, 1000, 1000)
    return top


def add_program(image: Path, name: str) -> None:
    """A program of the host and the libraries it names, at the same places in the image."""
    source = shutil.which(name)
    assert source is not None
    shutil.copy(source, image / "bin" / name)
    listed = subprocess.run(["ldd", source], capture_output=True, text=True, check=True, timeout=60).stdout
    for word in listed.split():
        if word.startswith("/"):
            (image / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, image / word[1:])
