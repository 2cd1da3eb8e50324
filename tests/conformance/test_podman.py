"""Podman keeps the same contract behind the same API, on a real service."""

from typing import Any, ClassVar

from tests.conformance.engines import OnEngine, running
from tests.providers import daemons

engine = running(daemons.podman)


class TestPodman(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "auto"}
