"""Paths of Windows and macOS, as an engine in a Linux virtual machine beside them names them (B31)."""

import subprocess
import sys

import pytest

from hutch.errors import Invalid, Refused
from hutch.providers.docker.objects.path_rules import engine_path


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("C:\\Users\\me\\work", "/c/Users/me/work"),
        ("c:/Users/me/my work", "/c/Users/me/my work"),
        ("D:\\data", "/d/data"),
        ("C:\\Users\\me\\", "/c/Users/me"),
        ("C:\\Users\\me\\.\\a", "/c/Users/me/a"),
        ("E:\\Ünï\\cøde", "/e/Ünï/cøde"),
        ("C:\\windows-of-ours", "/c/windows-of-ours"),
    ],
)
def test_drives_of_windows(path: str, wanted: str) -> None:
    assert engine_path(path, "win32") == wanted


@pytest.mark.parametrize(
    "path",
    [
        "\\\\server\\share\\x", "//server/share", "\\\\?\\C:\\Users\\me", "\\\\.\\PhysicalDrive0", "C:\\",
        "C:\\Windows", "c:/WINDOWS/System32", "C:\\Windows.", "C:\\Windows \\x",
        "C:\\Program Files\\x", "C:\\ProgramData",
        "C:\\Users",
        "C:\\Users\\me\\nul", "C:\\Users\\me\\COM1.txt", "C:\\Users\\me\\a:stream", "C:\\$Recycle.Bin\\x",
    ],
)  # fmt: skip
def test_what_is_refused_on_windows(path: str) -> None:
    """Lesson 27: shares, devices, streams, drive roots and the system's own."""
    with pytest.raises(Refused):
        engine_path(path, "win32")


@pytest.mark.parametrize(
    "path", ["", "work", "\\work", "C:work", "/home/me", "C:\\Users\\me\\..\\x", "C:\\a\0b", "é:\\x"]
)
def test_what_is_no_path_on_windows(path: str) -> None:
    with pytest.raises(Invalid):
        engine_path(path, "win32")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/Users/me/work", "/Users/me/work"),
        ("/Users/me//work/", "/Users/me/work"),
        ("/Volumes/Disk/x", "/Volumes/Disk/x"),
        ("/private/var/folders/ab/T/x", "/private/var/folders/ab/T/x"),
        ("/private/tmp/x", "/private/tmp/x"),
    ],
)
def test_directories_of_a_mac(path: str, wanted: str) -> None:
    assert engine_path(path, "darwin") == wanted


@pytest.mark.parametrize(
    "path",
    ["/", "/Users", "/System/x", "/system", "/usr/local", "/private/etc", "/var/db", "/Library", "/private",
     "/Users/me/../../etc", "/Users/me/.docker/run", "/Users/me/docker.sock"],
)  # fmt: skip
def test_what_is_refused_on_a_mac(path: str) -> None:
    with pytest.raises(Refused):
        engine_path(path, "darwin")


def test_linux_is_left_alone() -> None:
    assert engine_path("/anything/at all", "linux") == "/anything/at all"


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_the_public_names_and_the_client_can_be_imported_elsewhere(platform: str) -> None:
    """DESIGN 13: `import hutch` and the client work there. The modules that only a POSIX system has are hidden."""
    script = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "termios", "grp", "pwd", "resource", "pty", "tty"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
for name in ("fcntl", "termios", "grp", "pwd", "resource", "pty", "tty"):
    sys.modules.pop(name, None)
import asyncio, subprocess, logging, socket, tempfile, ssl, json, msgspec  # theirs, as this machine has them
sys.platform = {platform!r}
import hutch
from hutch import Hutch
from hutch.client.remote import RemoteHutch
from hutch.providers.docker.objects.path_rules import engine_path
print(hutch.__version__)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
