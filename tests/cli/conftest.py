"""A state directory for boxes that stay, and commands that work on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.cli.cli_process import answer, boxes, hutch


@dataclass(frozen=True)
class Home:
    """Where the boxes of one test file are. Tests share it, so each names its own boxes."""

    state: Path
    run: Path

    @property
    def env(self) -> dict[str, str]:
        return {"HUTCH_STATE_DIR": str(self.state), "HUTCH_RUN_DIR": str(self.run)}

    def hutch(self, *words: str, **options: Any) -> CompletedProcess[bytes]:
        return hutch(*words, env=self.env, **options)

    def good(self, *words: str, **options: Any) -> str:
        """Standard output of a command that must succeed."""
        done = self.hutch(*words, **options)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.decode()

    def answer(self, *words: str, **options: Any) -> tuple[int, dict[str, Any]]:
        return answer(*words, env=self.env, **options)

    def json(self, *words: str) -> dict[str, Any]:
        """The JSON object of a command that must succeed."""
        code, plain = self.answer(*words)
        assert code == 0, (words, plain)
        return plain


@pytest.fixture(scope="module")
def home(hutch_directories: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    short = request.module.__name__.rpartition("_")[2][:4]
    place = Home(hutch_directories / f"{short}s", hutch_directories / f"{short}r")
    yield place
    left = place.hutch("box", "destroy", "--all", "--force")
    assert left.returncode == 0, left
    assert not boxes(place.run)
