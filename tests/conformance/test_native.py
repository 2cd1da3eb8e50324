"""The native provider keeps the contract, every sentence of it."""

from hutch.config import Config
from hutch.conformance.pytest_class import ProviderConformance
from hutch.providers.base import Provider
from hutch.providers.native.provider import NativeProvider


def native() -> Provider:
    """A native provider on the directories of these tests."""
    provider = NativeProvider()
    provider.configure(Config.load().for_provider("native"))
    return provider


class TestNative(ProviderConformance):
    @classmethod
    def make_provider(cls) -> Provider:
        return native()
