"""A whole distribution, made by debootstrap, pushed to a real registry, pulled and run: it equals its own root."""

import gzip
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hutch.images.pull import pull
from hutch.images.store import Store
from hutch.sync import Hutch
from tests import proofs
from tests.conftest import remove
from tests.images.registry_server import Made, Server, digest_of, image, tar_of
from tests.providers import daemons

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1500)]

LOOK = (
    "cat /etc/debian_version; dpkg-query -W | sha256sum; find /usr /etc -xdev -type f ! -path '/etc/passwd' "
    "! -path '/etc/group' ! -path '/etc/hosts' ! -path '/etc/resolv.conf' ! -path '/etc/hostname' -print0 "
    "| sort -z | xargs -0 sha256sum 2>/dev/null | sha256sum; "
    # The size of a directory depends on the file system.
    "find /usr /bin /sbin /lib /var /root -xdev \\( -type d -printf '%p %m %U %G d\\n' "
    "-o -printf '%p %m %U %G %y %l %s %T@\\n' \\) | sort | sha256sum; perl -e 'print 6*7'"
)


def bootstrapped(top: Path) -> Path:
    """The smallest Debian of this machine's own release."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip("needs debootstrap and root")
    facts = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    release = facts["VERSION_CODENAME"]
    listing = ["apt-get", "indextargets", "--format", "$(SITE)", f"Codename: {release}", "Component: main"]
    mirror = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()[0]
    command = ["debootstrap", "--variant=minbase", release, str(top), mirror]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"debootstrap failed: {done.stdout[-500:]}")
    return top


def _looked_at_on_docker(name: str, registry: Server, home: Path) -> str:
    """Return what a container of the same image shows, pulled by a real Docker daemon from the same registry."""
    with daemons.docker() as daemon, registry.also_inside(daemon.inside):
        table = {"host": daemon.host, "cgroup_parent": daemons.CGROUP}
        with Hutch(
            state_dir=str(home / "ds"), run_dir=str(home / "dr"), provider="docker", providers={"docker": table}
        ) as hutch:
            with hutch.box(image=f"oci:{name}", user="root", profile="code") as box:
                return box.exec(LOOK, timeout=120).stdout


def test_a_distribution_runs_as_in_its_own_root(tmp_path: Path, registry: Server, hutch_directories: Path) -> None:
    """Every file, mode, owner and link of the distribution arrives; a second image costs only its own layer (S8)."""
    top = bootstrapped(tmp_path / "root")
    archive = tmp_path / "root.tar"
    subprocess.run(["tar", "--format=posix", "--numeric-owner", "-C", str(top), "-cf", str(archive), "."], check=True)
    data = archive.read_bytes()
    made = Made([gzip.compress(data, 1, mtime=0)], [digest_of(data)], {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]})
    name = registry.push("debian/minbase", made)
    extra = image(tar_of(("opt/extra", {"data": b"extra"})))
    second = Made([*made.layers, *extra.layers], [*made.diff_ids, *extra.diff_ids], made.run)
    second_name = registry.push("debian/more", second)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    inside = ["chroot", str(top), "sh", "-c", LOOK]
    wanted = subprocess.run(inside, capture_output=True, text=True, env=environment, check=True).stdout
    home = hutch_directories / "dist"
    try:
        store = Store(home / "s/images")
        began = time.monotonic()
        pull(store, name)
        seconds = time.monotonic() - began
        before = sum(path.stat().st_size for path in Path(store.path("blobs")).iterdir())
        pull(store, second_name)
        cost = sum(path.stat().st_size for path in Path(store.path("blobs")).iterdir()) - before
        assert cost < 10_000
        with Hutch(state_dir=str(home / "s"), run_dir=str(home / "r")) as hutch:
            for reference in (name, second_name):
                with hutch.box(image=f"oci:{reference}", user="root", profile="code") as box:
                    found = box.exec(LOOK, timeout=120)
                    assert found.stdout == wanted, found.stderr
        on_docker = _looked_at_on_docker(name, registry, home)
        assert on_docker == wanted
        with Hutch(state_dir=str(home / "s"), run_dir=str(home / "r")) as hutch:
            began = time.monotonic()
            with hutch.box(image=f"oci:{name}") as box:
                box.exec("true")
                first = time.monotonic() - began
    finally:
        remove(home)
    proofs.write(
        "distribution", bytes=len(data), packed_bytes=len(made.layers[0]), pull_seconds=round(seconds, 2),
        second_image_bytes=cost, box_to_first_command_ms=round(first * 1000, 1), same_as_chroot=True,
        same_on_docker=True,
    )  # fmt: skip
