"""The topology that the network tests run in."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.providers.native.network.topology import Topology

from hutch.providers.native.network.availability import find_program


@pytest.fixture
def topology() -> Iterator[Topology]:
    if os.geteuid() != 0:
        pytest.skip("needs root: makes network namespaces")
    if find_program("nft") is None:
        pytest.skip("needs nft (package nftables)")
    with ExitStack() as stack:
        made = Topology(stack)
        made.set_forwarding("1")
        yield made


@pytest.fixture
def resolv_conf() -> Iterator[Path]:
    """A file to write name servers into, where the helper, which runs as nobody, can read it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory) / "resolv.conf"
