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
    """Write proof/NAME.json, or NAME-rootless.json as an ordinary user.

    The commit is marked if the tree had changes outside proof/: it proves nothing then.
    """
    is_root = os.geteuid() == 0
    record = {
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "root": is_root,
        "seed": "derandomized" if "hypothesis" in sys.modules else None,
        **facts,
    }
    path = ROOT / "proof" / f"{name}{'' if is_root else '-rootless'}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def _commit() -> str:
    """The commit of this tree; that of the clone if this is a copy for an ordinary user (tools/test-rootless.sh)."""
    if copied := os.environ.get("HUTCH_PROOF_COMMIT"):
        return copied

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!proof")
    return git("rev-parse", "HEAD") + (" with changes" if changed else "")
