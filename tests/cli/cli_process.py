"""Calling the installed `hutch` as a shell would: real processes, real pipes, real terminals."""

import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from hutch.model.ids import is_box_id

HUTCH = (sys.executable, "-m", "hutch.cli.main")
TIMEOUT = 60.0
"""Seconds after which a test gives up waiting; nothing here takes long on a quiet machine."""


def hutch(
    *words: str,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = TIMEOUT,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*HUTCH, *words], input=stdin, capture_output=True, env={**os.environ, **(env or {})}, cwd=cwd, timeout=timeout
    )


def answer(*words: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and the one JSON object of a call with --json."""
    done = hutch(words[0], "--json", *words[1:], **options)
    lines = done.stdout.splitlines()
    assert len(lines) == 1, (done.stdout, done.stderr)
    return done.returncode, json.loads(lines[0])


def started(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    """A command that keeps running; use it as a context manager, in which it is killed if it is still there at the
    end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = {**os.environ, **options.pop("env", {})}
    return Killed([*HUTCH, *words], bufsize=0, env=env, **{**pipes, **options})


class Killed(subprocess.Popen[bytes]):
    def __exit__(self, *reply: Any) -> None:
        if self.poll() is None:
            self.kill()
        super().__exit__(*reply)


def boxes(run: Path) -> set[str]:
    """The boxes that have a directory in this run directory."""
    return {path.name for path in run.iterdir() if is_box_id(path.name)} if run.exists() else set()


def read_until(fd: int, wanted: bytes) -> bytes:
    """What comes until `wanted` has come."""
    got = b""
    end = time.monotonic() + TIMEOUT
    while wanted not in got:
        if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
            raise AssertionError(f"{wanted!r} did not come, only {got!r}")
        try:
            data = os.read(fd, 65536)
        except OSError:  # EIO: nobody has the other end of the terminal open
            data = b""
        if not data:
            raise AssertionError(f"the end came before {wanted!r}: {got!r}")
        got += data
    return got


def set_size(fd: int, rows: int, cols: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
