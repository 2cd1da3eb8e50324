"""What `import hutch` promises: few names, cheap, on every platform."""

import subprocess
import sys

import pytest

import hutch


def test_the_public_names() -> None:
    for name in hutch.__all__:
        assert getattr(hutch, name) is not None
    with pytest.raises(AttributeError):
        _ = hutch.nothing_of_the_kind


def test_importing_loads_nothing_heavy() -> None:
    """`import hutch` must work where the engine cannot: no asyncio, no ctypes, no Linux."""
    script = "import sys, hutch; print(sorted({'asyncio', 'ctypes', 'msgspec', 'sqlite3'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
