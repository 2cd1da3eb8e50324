"""A stage for whole programs: they run on the machine of a small world, with a name server, and real boxes in it.

`python -m tests.providers.native.network.stage FORWARDING PASTA PROGRAM...`. As an ordinary user the world lies in a
user namespace of that user's own, and the program, which is exec'd, has no power over it: it is as any ordinary user's
on any machine.
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
from tests.providers.native.network.world import OUTSIDE, World

from hutch.linux import kernel
from hutch.providers.native.network.availability import TUN
from hutch.providers.native.network.firewall import find_program
from hutch.providers.native.network.namespaces import unshare_mapped

RESOLVER = "127.0.0.53"
ROOT = Path(__file__).parents[4]


def play(scene: str, *, forwarding: str, mute: bool = False) -> None:
    """Run a scene of `played.py`, and fail with what it said. `mute`: pasta carries no TCP there."""
    for program, package in (("nft", "nftables"), ("pasta", "passt")):
        if find_program(program) is None:
            pytest.skip(f"needs {program} (package {package})")
    if os.geteuid() and not os.access(TUN, os.R_OK | os.W_OK):
        pytest.skip(f"needs a {TUN} that ordinary users may open")
    stage = [sys.executable, "-m", "tests.providers.native.network.stage", forwarding, "mute" if mute else "sound"]
    done = subprocess.run(
        [*stage, sys.executable, "-m", "tests.providers.native.network.played", scene],
        cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("played\n")


def _mute_pasta(directory: Path) -> None:
    """As one with a defect: it gives a route, and connections over it hang. In this mount namespace only."""
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
        world = World(stack)
        world.set_forwarding(forwarding)
        stack.enter_context(NameServer(world.machine, RESOLVER))
        stack.enter_context(TlsServer(world.outside, OUTSIDE, directory))
        return subprocess.run(
            program, check=False, preexec_fn=lambda: kernel.setns(world.machine, kernel.CLONE_NEWNET)
        ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
