"""Options that describe a box, from the command line to the box itself."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.cli.cli_process import hutch
from tests.providers import rootfs
from tests.providers.native.network.scenario_runner import run_scenario

pytestmark = pytest.mark.slow

PROFILE = """\
[profiles.mine]
inherits = "offline_readonly"
[profiles.mine.env]
FROM = "mine"
[profiles.mine.limits]
open_files = 77
"""


def good(*words: str, cwd: Path) -> list[str]:
    """The words that the command of `hutch run` printed."""
    done = hutch("run", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split()


def test_the_profile_makes_the_box(tmp_path: Path) -> None:
    """A built-in one, and one of hutch.toml that inherits from it, with a limit and a variable more."""
    (tmp_path / "hutch.toml").write_text(PROFILE)
    script = "touch /workspace/x 2>/dev/null && echo writable || echo read-only; ulimit -n; echo $FROM"
    assert good("--profile", "default", "--", "sh", "-c", script, cwd=tmp_path)[0] == "writable"
    assert good("--profile", "offline_readonly", "--", "sh", "-c", script, cwd=tmp_path)[0] == "read-only"
    mine = ("--config", "hutch.toml", "--profile", "mine")
    assert good(*mine, "--", "sh", "-c", script, cwd=tmp_path) == ["read-only", "77", "mine"]


def test_the_user_runs_the_command(rootless: bool, tmp_path: Path) -> None:
    """The box's ordinary user, its root, or a number of its own range."""
    assert good("--user", "user", "--", "id", "-u", cwd=tmp_path) == ["1000"]
    if rootless:
        done = hutch("run", "--user", "root", "--", "id", "-u")
        assert done.returncode == 125 and b"single id" in done.stderr, done
        pytest.skip("other users need root: an ordinary user has a single id to give")
    assert good("--user", "root", "--", "id", "-u", cwd=tmp_path) == ["0"]
    assert good("-u", "1234", "--", "id", "-u", cwd=tmp_path) == ["1234"]


@pytest.mark.parametrize("kind", ["dir", "tar"])
def test_the_image_is_the_root(kind: str, tmp_path: Path) -> None:
    """A directory or an archive beside us, named as people write it; the host's files are not there."""
    archive = tmp_path / "image.tar"
    archive.write_bytes(rootfs.small())
    with tarfile.open(archive, "a") as tar:
        mark = tarfile.TarInfo("etc/mark")
        mark.size = 4
        tar.addfile(mark, io.BytesIO(b"mine"))
    os.chmod(tmp_path, 0o755)
    if kind == "dir":
        (tmp_path / "image").mkdir(0o755)
        subprocess.run(["tar", "-xf", str(archive), "-C", str(tmp_path / "image")], check=True)
    reference = "dir:image" if kind == "dir" else "tar:./image.tar"
    script = "cat /etc/mark; echo; id -un; test -e /usr/lib/os-release || echo apart; echo x > /tmp/y"
    assert good("--image", reference, "--", "sh", "-c", script, cwd=tmp_path) == ["mine", "user", "apart"]


def test_the_network_is_on_where_it_is_asked_for(rootless: bool) -> None:
    """Only then; a test topology of network namespaces keeps all traffic on this machine (B16)."""
    run_scenario("run_by_the_command_line", forwarding="0" if rootless else "1")
