"""Hutch's own kit on this provider: every behaviour that the contract names."""

import tempfile

from hutch.conformance.pytest_class import ProviderConformance
from hutch.providers import registry
from hutch.providers.base import Provider


class TestBubblewrap(ProviderConformance):
    @classmethod
    def make_provider(cls) -> Provider:
        provider = registry.find("bubblewrap")()
        provider.set_directories(
            f"{tempfile.gettempdir()}/hutch-sample/state", f"{tempfile.gettempdir()}/hutch-sample/run"
        )
        return provider
