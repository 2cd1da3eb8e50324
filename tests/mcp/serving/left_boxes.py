"""Lists and destroys the boxes that `hutch mcp` keeps for its client's return."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.mcp.serving.clients import environ
from tests.server.serving import TIMEOUT_SECONDS


def hutch(top: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "hutch.cli.main", *words, "--json"], env=environ(top), capture_output=True,
        stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def boxes(top: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hutch(top, "box", "list")["boxes"]
    return found


def end_boxes(top: Path) -> None:
    if (top / "s").exists():
        for box in boxes(top):
            hutch(top, "box", "destroy", "--force", box["id"])
