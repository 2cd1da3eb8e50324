"""The kit on container engines: a class for each way to reach a box. Every check runs on each of them.

Their boxes take a few tenths of a second, so that checks which need no more than a plain box share one; `make prove`
runs the kit with a box for each check (test_whole_engines).
"""

from pathlib import Path
from typing import Any, ClassVar

from hutch.conformance.pytest_class import ProviderConformance
from hutch.providers.base import Provider
from tests.providers import daemons, rootfs


class OnEngine(ProviderConformance):
    """The engine is the module's, started by its own fixture."""

    image = f"oci:{rootfs.NAME}"
    one_plain_box = True
    running: ClassVar[list[tuple[daemons.Daemon, Path]]] = []
    settings: ClassVar[dict[str, Any]] = {}

    @classmethod
    def make_provider(cls) -> Provider:
        daemon, state = OnEngine.running[-1]
        return daemons.provider(daemon, state, **cls.settings)
