"""The kit on nsjail, wherever the program is installed."""

import os
import shutil

import pytest

from hutch.config import Config
from hutch.conformance.pytest_class import ProviderConformance
from hutch.providers.base import Provider
from hutch.providers.nsjail.provider import NsjailProvider

PROGRAM = os.environ.get("NSJAIL", "nsjail")


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason="nsjail is not on the PATH (NSJAIL=/path names one)")
class TestNsjail(ProviderConformance):
    @classmethod
    def make_provider(cls) -> Provider:
        config = Config.load()
        provider = NsjailProvider()
        provider.set_directories(str(config.state_dir), str(config.run_dir))
        provider.configure({"program": PROGRAM})
        return provider
