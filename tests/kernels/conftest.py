"""A prepared environment: the tests' own, which has IPython, pandas and matplotlib."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch.kernels import environment


@pytest.fixture
def prepared() -> Iterator[environment.Environment]:
    """Kernels of this test are forked from a prepared interpreter."""
    state = Path(os.environ["HUTCH_STATE_DIR"])
    yield environment.prepare(state, python=sys.executable)
    (state / "kernels" / "environment.json").unlink()
    (state / "kernels" / "environment").unlink()
