"""Docker keeps the contract, every sentence of it, on a real daemon: by the fast lane, by its API, and under gVisor."""

import shutil
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.conformance.engines import OnEngine
from tests.providers import daemons, rootfs


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with daemons.docker() as daemon:
        OnEngine.running.append((daemon, tmp_path_factory.mktemp("state")))
        yield
        OnEngine.running.pop()


class TestFastLane(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "fast"}


class TestApiLane(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "api"}


@pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed (tools/setup.sh)")
class TestGvisor(OnEngine):
    # The small image: Debian 12's runsc does not know the statx(2) of newer tools.
    image = f"oci:{rootfs.SMALL}"
    settings: ClassVar[dict[str, Any]] = {"runtime": "runsc", "image": rootfs.SMALL}
