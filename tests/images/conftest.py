"""One registry for each test process, and a store of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch.images.settings import ImageSettings
from hutch.images.store import Store
from tests.conftest import remove
from tests.images.registries import Server, serving


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    yield Store(tmp_path / "images", ImageSettings(tries=3))
    remove(tmp_path / "images")
