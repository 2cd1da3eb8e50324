"""The kit on container engines: a class for each way to reach a box.

Their boxes take a few tenths of a second, so that checks which need no more than a plain box share one; `make prove`
runs the kit with a box for each check (test_whole_engines).
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hutch.conformance.kit import perform
from hutch.conformance.pytest_class import ProviderConformance
from hutch.conformance.registry import Check, chosen
from hutch.conformance.workbench import Workbench
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


def running(start: Callable[[], AbstractContextManager[daemons.Daemon]]) -> Any:
    """A module's fixture: one engine for all of its classes."""

    @pytest.fixture(scope="module", autouse=True)
    def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with start() as daemon:
            OnEngine.running.append((daemon, tmp_path_factory.mktemp("state")))
            yield
            OnEngine.running.pop()

    return engine


def part(*themes: str) -> Any:
    """Decorates a class: of the kit only these themes and checks."""

    def narrow(kind: type[ProviderConformance]) -> type[ProviderConformance]:
        @pytest.mark.parametrize("check", chosen(themes), ids=lambda check: check.name)
        def test_contract(
            self: ProviderConformance, check: Check, bench: Workbench, event_loop_of_class: asyncio.Runner
        ) -> None:
            event_loop_of_class.run(perform(check, bench))

        kind.test_contract = test_contract  # type: ignore[method-assign]
        return kind

    return narrow
