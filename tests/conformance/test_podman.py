"""Podman keeps the same contract behind the same API, on a real service; `make prove` runs the whole kit."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.conformance.engines import OnEngine, part
from tests.providers import daemons


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with daemons.podman() as daemon:
        OnEngine.running.append((daemon, tmp_path_factory.mktemp("state")))
        yield
        OnEngine.running.pop()


@part("capabilities", "life", "exec.argv", "exec.timeout", "streams.apart", "terminal.echo", "limits", "mounts",
      "network", "isolation.ordinary_user", "isolation.read_only_root", "isolation.writable_root")  # fmt: skip
class TestPodman(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "auto"}
