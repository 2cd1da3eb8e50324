"""bubblewrap: the command line that makes a box nearest to ours. It has no limits, no sessions and no API."""

import shutil
import subprocess

from bench.peers.errors import PeerFailed, PeerMissing


def bwrap() -> list[str]:
    """What runs `true` in a sandbox of its own."""
    program = shutil.which("bwrap")
    if program is None:
        raise PeerMissing("bwrap is not installed (make setup-bench)")
    argv = [
        program, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr",
        "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "--chdir", "/workspace", "true",
    ]  # fmt: skip
    tried = subprocess.run(argv, capture_output=True, text=True)
    if tried.returncode != 0:
        raise PeerFailed(f"bwrap: {tried.stderr.strip()[-300:]}")
    return argv


def bwrap_version() -> str:
    return subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.split()[-1]
