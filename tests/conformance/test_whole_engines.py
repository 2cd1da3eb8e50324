"""The whole kit on every container engine and lane, counted and written down (`make prove`)."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from hutch.conformance import kit
from tests.proofs import write
from tests.providers import daemons, rootfs

Engine = Callable[[], AbstractContextManager[daemons.Daemon]]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "engine", "image", "settings"),
    [
        ("docker-fast", daemons.docker, rootfs.NAME, {"lane": "fast"}),
        ("docker-api", daemons.docker, rootfs.NAME, {"lane": "api"}),
        ("docker-gvisor", daemons.docker, rootfs.SMALL, {"runtime": "runsc"}),
        ("podman-fast", daemons.podman, rootfs.NAME, {"lane": "fast"}),
        ("podman-api", daemons.podman, rootfs.NAME, {"lane": "api"}),
    ],
)
def test_every_check(name: str, engine: Engine, image: str, settings: dict[str, Any], tmp_path: Path) -> None:
    if "runtime" in settings and shutil.which(settings["runtime"]) is None:
        pytest.skip(f"{settings['runtime']} is not installed (tools/setup.sh)")
    with engine() as daemon:
        report = asyncio.run(
            kit.run(lambda: daemons.provider(daemon, tmp_path, image=image, **settings), image=f"oci:{image}")
        )
    write(f"conformance-{name}", outcomes=Counter(str(each.outcome) for each in report.findings),
          failed=[each.name for each in report.failed])  # fmt: skip
    assert report.ok, [(each.name, each.message) for each in report.failed]
