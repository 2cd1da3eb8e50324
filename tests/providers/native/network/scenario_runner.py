"""Runs a whole program on the machine of a test topology, with a name server and real boxes.

`python -m tests.providers.native.network.scenario_runner FORWARDING PASTA PROGRAM...`. For an ordinary user the
topology lies in a user namespace of that user, and the program, which is exec'd, has no power over it, as on any
machine.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.providers.native.network.name_server import NameServer
from tests.providers.native.network.tls_server import TlsServer
from tests.providers.native.network.topology import OUTSIDE, Topology

from hutch.linux import kernel
from hutch.providers.native.network.availability import TUN, find_program
from hutch.providers.native.network.namespaces import unshare_mapped

RESOLVER = "127.0.0.53"
ROOT = Path(__file__).parents[4]


def run_scenario(name: str, *, forwarding: str, mute: bool = False) -> None:
    """Run a scenario of `scenarios.py`, and fail with its errors. With `mute`, pasta carries no TCP."""
    for program, package in (("nft", "nftables"), ("pasta", "passt")):
        if find_program(program) is None:
            pytest.skip(f"needs {program} (package {package})")
    if os.geteuid() and not os.access(TUN, os.R_OK | os.W_OK):
        pytest.skip(f"needs a {TUN} that ordinary users may open")
    here = "tests.providers.native.network"
    runner = [sys.executable, "-m", f"{here}.scenario_runner", forwarding, "mute" if mute else "sound"]
    done = subprocess.run(
        [*runner, sys.executable, "-m", f"{here}.scenarios", name],
        cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


def _mute_pasta(directory: Path) -> None:
    """Replace pasta, in this mount namespace only, by one that gives a route over which connections hang."""
    real = find_program("pasta")
    assert real is not None
    shutil.copy(real, directory / "pasta")
    wrapper = directory / "mute"
    wrapper.write_text(f'#!/bin/sh\nexec {directory}/pasta --no-tcp "$@"\n')
    wrapper.chmod(0o755)
    kernel.mount(str(wrapper), os.path.realpath(real), None, kernel.MS_BIND)


def main(forwarding: str, pasta: str, *program: str) -> int:
    if os.geteuid():
        unshare_mapped(os.geteuid(), os.getegid())
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        directory.chmod(0o755)
        (directory / "resolv.conf").write_text(f"nameserver {RESOLVER}\n")
        kernel.mount(str(directory / "resolv.conf"), os.path.realpath("/etc/resolv.conf"), None, kernel.MS_BIND)
        stack.callback(kernel.syscall, "umount2", os.fsencode(os.path.realpath("/etc/resolv.conf")), 0)
        if pasta == "mute":
            _mute_pasta(directory)
        topology = Topology(stack)
        topology.set_forwarding(forwarding)
        stack.enter_context(NameServer(topology.machine, RESOLVER))
        stack.enter_context(TlsServer(topology.outside, OUTSIDE, directory))
        return subprocess.run(
            program, check=False, preexec_fn=lambda: kernel.setns(topology.machine, kernel.CLONE_NEWNET)
        ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
