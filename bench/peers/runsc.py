"""gVisor: `runsc` as a runtime of the bench's Docker daemon."""

import shutil
import subprocess

from bench.peers.engine import Engine
from bench.peers.errors import PeerMissing


def runsc(docker: Engine | None) -> Engine:
    if shutil.which("runsc") is None:
        raise PeerMissing("runsc is not installed (make setup-bench)")
    if docker is None:
        raise PeerMissing("measured as a runtime of Docker, which is missing")
    return Engine("runsc", docker.path, {"Runtime": "runsc"})


def runsc_version() -> str:
    return subprocess.run(["runsc", "--version"], capture_output=True, text=True).stdout.splitlines()[0].split()[-1]
