"""The kit as a pytest class: subclass it and every check is a test.

class TestMyProvider(ProviderConformance):
    @classmethod
    def make_provider(cls) -> Provider:
        return MyProvider()
"""

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import pytest

from hutch.conformance.kit import perform, prepare
from hutch.conformance.registry import Check, checks
from hutch.conformance.workbench import Workbench
from hutch.providers.base import Provider


class ProviderConformance:
    """Runs all checks on one provider object, and tests that it refuses what it does not claim."""

    image: ClassVar[str] = ""
    """The image of its boxes. If empty, the provider's own default is used."""
    patience: ClassVar[float] = 30.0
    one_plain_box: ClassVar[bool] = False
    """Whether checks that need only a plain box share one, emptied after each, because boxes are expensive."""

    @classmethod
    def make_provider(cls) -> Provider:
        """Return a new provider object, which knows nothing of those before."""
        raise TypeError(f"{cls.__name__} does not say how its provider is made (make_provider)")

    @pytest.fixture(scope="class")
    @classmethod
    def event_loop_of_class(cls) -> Iterator[asyncio.Runner]:
        """Run one loop for the class, because a provider's connections belong to the loop they were opened in."""
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, event_loop_of_class: asyncio.Runner) -> Iterator[Workbench]:
        provider = cls.make_provider()
        try:
            bench = event_loop_of_class.run(
                prepare(
                    cls.make_provider,
                    provider,
                    image=cls.image,
                    patience=cls.patience,
                    one_plain_box=cls.one_plain_box,
                )
            )
            yield bench
            event_loop_of_class.run(bench.close())
        finally:
            event_loop_of_class.run(provider.close())

    @pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
    def test_contract(self, check: Check, bench: Workbench, event_loop_of_class: asyncio.Runner) -> None:
        event_loop_of_class.run(perform(check, bench))
