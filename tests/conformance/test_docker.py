"""Docker keeps the contract, every sentence of it, on a real daemon: through the fast lane, and through its API.

The whole kit runs on the fast lane. Through the API and under gVisor the same guest answers, so that here only those
themes run which the lane or the runtime can change; `make prove` runs all of it everywhere.
"""

import shutil
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.conformance.engines import OnEngine, part
from tests.providers import daemons, rootfs


@pytest.fixture(scope="module", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with daemons.docker() as daemon:
        OnEngine.running.append((daemon, tmp_path_factory.mktemp("state")))
        yield
        OnEngine.running.pop()


class TestFastLane(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "fast"}


@part("capabilities", "life.create", "life.attach", "life.broken", "life.death_during_command", "life.pause",
      "life.orphan_clock", "life.stop_and_restore", "exec.cancel", "exec.timeout", "streams", "terminal",
      "jobs.outlive_provider", "jobs.follow", "files.pieces", "limits.memory", "limits.innocent", "limits.pids",
      "mounts.read_only", "mounts.swapped_source")  # fmt: skip
class TestApiLane(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "api"}


needs_runsc = pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed (tools/setup.sh)")


@needs_runsc
@part("capabilities", "life.create", "life.attach", "life.broken", "life.destroy_from_record", "exec.argv",
      "exec.timeout", "exec.default_signals", "streams.apart", "jobs.outlive_provider", "terminal.echo", "search.grep",
      "limits.memory", "limits.innocent", "limits.pids", "limits.cpus", "limits.change", "isolation.ordinary_user",
      "isolation.read_only_root", "network.off", "network.on", "mounts.one_file", "mounts.missing_source")  # fmt: skip
class TestGvisor(OnEngine):
    # The small image: Debian 12's runsc does not know the statx(2) of newer tools.
    image = f"oci:{rootfs.SMALL}"
    settings: ClassVar[dict[str, Any]] = {"runtime": "runsc", "image": rootfs.SMALL}
