"""What the command line says when something is refused: words that a newcomer knows, and what to do about it."""

import io
import tarfile
from pathlib import Path

import pytest

from tests.cli.cli_process import hutch

pytestmark = pytest.mark.slow


def test_a_refusal_of_the_box_is_explained() -> None:
    """The command's own complaint names neither the box nor a way out; the line after it does."""
    done = hutch("run", "--profile", "default", "--", "touch", "/usr/new")
    assert done.returncode == 1
    assert b"the system of this box is read-only: write below /workspace" in done.stderr
    assert b"read_only_root" not in done.stderr
    lookup = "import socket; socket.getaddrinfo('example.org', 80)"
    done = hutch("run", "--", "python3", "-c", lookup)
    assert b"this box has no network: use one with network on" in done.stderr


def test_a_name_that_dns_does_not_know_is_called_that() -> None:
    done = hutch("image", "pull", "nosuch.invalid/image")
    assert done.returncode == 125
    assert b"DNS knows no such host, or does not answer here" in done.stderr


def test_a_clamped_timeout_is_reported_before_the_command_runs(tmp_path: Path) -> None:
    """The note stands before the command's first output, and what it offers is possible."""
    done = hutch("run", "--timeout", "600", "--", "sh", "-c", "echo begun >&2")
    note, begun = done.stderr.decode().splitlines()
    assert note == "hutch: timeout_sec 600 → 120: maximum of the box's profile (--timeout 0 sets none)"
    assert begun == "begun"
    done = hutch("run", "--timeout", "0", "--", "sh", "-c", "echo begun >&2")
    assert (done.returncode, done.stderr) == (0, b"begun\n")


def test_a_full_disk_is_reported_in_megabytes() -> None:
    done = hutch("run", "--disk", "16", "--", "sh", "-c", "head -c 40000000 /dev/zero > /workspace/full")
    assert b"all 16 MB are used (remove files, or raise limits.disk_mb)" in done.stderr
    assert b"16777216" not in done.stderr


def test_a_changed_archive_is_called_damaged(tmp_path: Path) -> None:
    """A layer whose bytes were changed after the archive was written."""
    root, packed = tmp_path / "root.tar", tmp_path / "image.tar"
    with tarfile.open(root, "w") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = 4096
        tar.addfile(entry, io.BytesIO(b"original" * 512))
    assert hutch("image", "import", str(root), "plain/words:1").returncode == 0
    try:
        assert hutch("image", "export", "plain/words:1", "-o", str(packed)).returncode == 0
    finally:
        hutch("image", "remove", "plain/words:1")
    content = bytearray(packed.read_bytes())
    with tarfile.open(packed) as tar:
        layer = max(tar.getmembers(), key=lambda member: member.size)
    content[layer.offset_data + layer.size // 2] ^= 0xFF
    packed.write_bytes(content)
    done = hutch("image", "import", str(packed))
    assert done.returncode == 125
    assert b"the archive is damaged" in done.stderr, done.stderr
