"""The kit on the host provider: all that a box does without a wall, and nothing that would try a wall."""

import asyncio

import pytest

from hutch.config import Config
from hutch.conformance.kit import Outcome, run
from hutch.conformance.pytest_class import ProviderConformance
from hutch.conformance.registry import checks
from hutch.providers.base import Provider
from hutch.providers.host.provider import HostProvider
from tests.conformance.engines import part


def host() -> Provider:
    config = Config.load()
    provider = HostProvider()
    provider.set_directories(str(config.state_dir), str(config.run_dir))
    return provider


@pytest.mark.alone  # it pauses boxes by signals, which a busy machine delays
@part("capabilities", "life", "exec", "streams", "jobs", "terminal", "trees")
class TestHost(ProviderConformance):
    @classmethod
    def make_provider(cls) -> Provider:
        return host()


def test_checks_that_try_the_wall_are_not_run_where_there_is_none() -> None:
    """As root they would write the machine's own files: each of them needs `isolation`."""
    walls = [check.name for check in checks() if "isolation" in check.needs.split()]
    assert {"files.rights", "files.links_stay_inside", "isolation.kernel_knobs", "network.off"} <= set(walls)
    assert {check.name for check in checks() if check.theme in ("isolation", "network")} <= {
        *walls, "isolation.writable_root"
    }  # fmt: skip
    report = asyncio.run(run(host, tuple(walls)))
    assert {finding.outcome for finding in report.findings} == {Outcome.REFUSED}
