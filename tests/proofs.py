"""Records of full-count runs: what they have shown, and on which commit."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write(name: str, **facts: object) -> None:
    """Write proof/NAME.json. The commit is marked if the tree had changes outside proof/: it proves nothing then."""
    record = {
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "root": os.geteuid() == 0,
        "seed": "derandomized" if "hypothesis" in sys.modules else None,
        **facts,
    }
    path = ROOT / "proof" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!proof")
    return git("rev-parse", "HEAD") + (" with changes" if changed else "")
