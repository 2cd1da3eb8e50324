"""Other people's programs, each in a virtual environment of its own, kept between runs outside the tree.

Their requirements conflict with ours and with each other's, so tests drive them by scripts in processes of their own.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

INSTALL_SECONDS = 1800.0


def python_of(*requirements: str, alone: str = "") -> Path:
    """The interpreter of an environment that has these packages; it is made at the first call.

    `alone` is installed last, without what it requires, and whatever Python it asks for.
    """
    wanted = [sys.version, sorted(requirements), *([alone] if alone else [])]
    digest = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:16]
    place = _cache() / digest
    python = place / "bin" / "python"
    with open(place.parent / f"{digest}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Test processes that run at once share one installation.
        if (place / "complete").exists():
            return python
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=False)
        # Our own pip installs there. Most of what it installs is never imported, so compiling it all would be in vain.
        install = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-compile", "--quiet"]
        for options in (requirements, ("--no-deps", "--ignore-requires-python", alone) if alone else ()):
            if options:
                command = [*install, "--disable-pip-version-check", *options]
                done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
                assert done.returncode == 0, done.stderr[-4000:]
        (place / "complete").touch()
    return python


def run_scenarios(python: Path, script: Path, *arguments: str, seconds: float = 600.0) -> dict[str, Any]:
    """Run a script that prints one JSON line for each of its scenarios: its name, and its traceback if it failed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HUTCH_", "PYTHON"))}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [str(python), str(script), *arguments], capture_output=True, text=True, timeout=seconds, cwd=directory,
            env=environ,
        )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {line["scenario"]: line for line in lines}


def _cache() -> Path:
    wanted = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "hutch-tests"
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK):
            return wanted
    except OSError:  # An ordinary user without a home, such as nobody.
        pass
    fallback = Path(tempfile.gettempdir()) / f"hutch-tests-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    return fallback
