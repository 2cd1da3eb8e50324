"""The native provider keeps the contract, every sentence of it."""

from hutch.conformance.pytest_class import ProviderConformance
from hutch.providers.base import Provider
from hutch.providers.native.provider import NativeProvider


class TestNative(ProviderConformance):
    def make_provider(self) -> Provider:
        return NativeProvider()
