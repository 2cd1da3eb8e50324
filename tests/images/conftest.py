"""Fixtures: one registry for each test process, a store for each test, and a look at what is left in a store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch.images.settings import ImageSettings
from hutch.images.store import Store
from tests.conftest import remove
from tests.images.registry_server import Server, running_registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    yield Store(tmp_path / "images", ImageSettings(tries=3))
    remove(tmp_path / "images")


PARTS = ("blobs", "layers", "names", "steps", "partial", "drafts")


def content(store: Store) -> dict[str, list[str]]:
    """Return everything but locks; empty lists mean that nothing was left behind."""
    found = {}
    for part in PARTS:
        path = store.path(part)
        found[part] = sorted(os.listdir(path)) if os.path.isdir(path) else []
    return found


NOTHING: dict[str, list[str]] = {part: [] for part in PARTS}
