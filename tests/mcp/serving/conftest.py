"""A short directory for each test: sockets of boxes are in it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import remove
from tests.mcp.serving.clients import end_boxes


@pytest.fixture
def top() -> Iterator[Path]:
    """Where `hutch mcp` has its state and run directories, `s` and `r`; its boxes end with the test."""
    made = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    end_boxes(made)
    remove(made)
    shutil.rmtree(made, ignore_errors=True)
