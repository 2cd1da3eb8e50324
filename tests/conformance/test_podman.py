"""Podman keeps the same contract behind the same API, on a real service."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.conformance.engines import OnEngine
from tests.providers import daemons


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with daemons.podman() as daemon:
        OnEngine.running.append((daemon, tmp_path_factory.mktemp("state")))
        yield
        OnEngine.running.pop()


class TestPodman(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "auto"}
