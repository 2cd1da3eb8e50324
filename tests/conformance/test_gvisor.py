"""Docker keeps the same contract when gVisor is its runtime, on a real daemon.

In a file of its own: it takes longer than the kit on any other engine, and the tests of one file run one after another.
"""

import shutil
from typing import Any, ClassVar

import pytest

from hutch.conformance.registry import THEMES
from tests.conformance.engines import OnEngine, part, running
from tests.providers import daemons, rootfs

pytestmark = pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed (tools/setup.sh)")
engine = running(daemons.docker)


@part(*(theme for theme in THEMES if theme != "ports"))
class TestGvisor(OnEngine):
    # The small image: Debian 12's runsc does not know the statx(2) of newer tools. It has no program for the checks of
    # ports to listen with.
    image = f"oci:{rootfs.SMALL}"
    settings: ClassVar[dict[str, Any]] = {"runtime": "runsc", "image": rootfs.SMALL}
