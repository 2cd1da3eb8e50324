"""The image that container engines run: a minimal Debian, made once and kept in the user's cache."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.peers.errors import PeerMissing

NAME = "hutch-bench"


def tarball() -> Path:
    """The root file system as one tar file."""
    suite = _suite()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hutch-bench"
    kept = cache / f"{suite}-minbase.tar"
    if kept.exists():
        return kept
    debootstrap = shutil.which("debootstrap")
    if debootstrap is None or os.geteuid() != 0:
        raise PeerMissing("no image: debootstrap, run as root, makes it (make setup-bench)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hutch-bench-", dir="/var/tmp") as scratch:
        root, packed = Path(scratch, "root"), Path(scratch, "root.tar")
        made = subprocess.run([debootstrap, "--variant=minbase", suite, root], capture_output=True, text=True)
        if made.returncode != 0:
            raise PeerMissing(f"no image: debootstrap failed: {made.stdout.strip()[-300:]}")
        subprocess.run(["tar", "-C", root, "-cf", packed, "."], check=True)
        shutil.move(packed, kept)
    return kept


def _suite() -> str:
    """This machine's own release if debootstrap knows it, so that peers run the libraries that our boxes run."""
    for line in Path("/etc/os-release").read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "VERSION_CODENAME" and Path("/usr/share/debootstrap/scripts", value.strip('"')).exists():
            return value.strip('"')
    return "bookworm"
