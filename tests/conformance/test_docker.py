"""Docker keeps the contract, every sentence of it, on a real daemon: by the fast lane and by its API."""

from typing import Any, ClassVar

from tests.conformance.engines import OnEngine, running
from tests.providers import daemons

engine = running(daemons.docker)


class TestFastLane(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "fast"}


class TestApiLane(OnEngine):
    settings: ClassVar[dict[str, Any]] = {"lane": "api"}
