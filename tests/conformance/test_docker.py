"""Docker keeps the contract, every sentence of it, on a real daemon: through the fast lane, and through its API.

The whole kit runs on the fast lane. Through the API, under gVisor and on Podman the same guest answers, so that here
those themes run which the lane, the runtime or the engine can change; `make prove` runs all of them everywhere.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch.conformance.pytest_class import ProviderConformance
from hutch.providers.base import Provider
from tests.providers import daemons, rootfs

running: list[tuple[daemons.Daemon, Path]] = []


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with daemons.docker() as daemon:
        running.append((daemon, tmp_path_factory.mktemp("state")))
        yield
        running.clear()


class TestFastLane(ProviderConformance):
    image = f"oci:{rootfs.NAME}"

    @classmethod
    def make_provider(cls) -> Provider:
        daemon, state = running[0]
        return daemons.provider(daemon, state, lane="fast")
