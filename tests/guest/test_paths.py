"""Paths opened component by component where the kernel has no openat2: the kernel's results, and no magic link."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hutch.guest.files import paths

LINKS = {
    "file": "deep/file", "directory": "deep", "up": "deep/..", "absolute": "", "dangling": "nothing", "self": "self",
    "ping": "pong", "pong": "ping", "slashed": "deep/", "slashed-file": "deep/file/", "through": "directory/way",
}  # fmt: skip
NAMES = ["deep", "file", "way", "closed", "nothing", "new", ".", "..", "", *LINKS]
FLAGS = {
    "read": os.O_RDONLY, "path": os.O_PATH, "directory": os.O_PATH | os.O_DIRECTORY,
    "the link": os.O_PATH | os.O_NOFOLLOW, "not a link": os.O_RDONLY | os.O_NOFOLLOW, "make": os.O_WRONLY | os.O_CREAT,
    "make anew": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories, files, and links of every kind; `absolute` leads to the tree itself."""
    top = tmp_path_factory.mktemp("tree")
    (top / "deep" / "way").mkdir(parents=True)
    (top / "deep" / "file").write_text("content")
    (top / "deep" / "way" / "back").symlink_to("../../file")
    for name, target in LINKS.items():
        (top / name).symlink_to(target or top)
    return top


def kernel_opens(directory: int, path: str, flags: int, mode: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=directory)


def answer(top: Path, path: str, flags: int, *, walk: bool) -> object:
    """Return which file was opened, or the name of the error, and remove what was created."""
    directory = os.open(top, os.O_PATH | os.O_DIRECTORY)
    before = set(top.rglob("*"))
    opener = paths.open_by_name if walk else kernel_opens
    try:
        descriptor = opener(directory, path, flags, 0o600)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    finally:
        os.close(directory)
    info = os.fstat(descriptor)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    made = set(top.rglob("*")) - before
    for each in made:
        each.unlink()
    return sorted(map(str, made)) or (info.st_dev, info.st_ino, info.st_mode)


@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6),
    absolute=st.booleans(),
    slash=st.booleans(),
    flags=st.sampled_from(sorted(FLAGS)),
)
def test_it_answers_as_the_kernel_does(tree: Path, names: list[str], absolute: bool, slash: bool, flags: str) -> None:
    path = "/".join(names) + "/" * slash
    path = f"{tree}/{path}" if absolute else path.lstrip("/") or "."
    if path.count("..") > path.count("deep"):
        return  # outside the tree, where other tests create and remove files
    expected = answer(tree, path, FLAGS[flags], walk=False)
    found = answer(tree, path, FLAGS[flags], walk=True)
    if expected == "EISDIR" and found != expected:
        # For a new name with a trailing slash the kernel reports the slash first; the fallback looks the name up first.
        assert FLAGS[flags] & os.O_CREAT and path.endswith("/") and isinstance(found, str)
        return
    assert found == expected


def test_a_chain_of_links_has_the_kernels_length(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("end")
    for number in range(1, 42):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    for number in (40, 41):
        assert answer(tmp_path, str(number), os.O_RDONLY, walk=True) == answer(
            tmp_path, str(number), os.O_RDONLY, walk=False
        )
    assert answer(tmp_path, "41", os.O_RDONLY, walk=True) == "ELOOP"


@pytest.mark.parametrize("flags", [os.O_RDONLY, paths.DIRECTORY], ids=["read", "directory"])
def test_a_magic_link_is_text(tmp_path: Path, flags: int) -> None:
    """It leads to what its text names and not to what the process holds, where the kernel's own lookup leads."""
    held = held_without_a_name(tmp_path)
    try:
        for path in (f"/proc/self/fd/{held}", f"/proc/self/fd/{held}/.", f"/proc/thread-self/fd/{held}/"):
            os.close(os.open(path, flags))
            with pytest.raises(FileNotFoundError):
                paths.open_by_name(None, path, flags, 0)
    finally:
        os.close(held)


def held_without_a_name(place: Path) -> int:
    """Return a descriptor of a directory that no path leads to, as no path in a box leads to the host."""
    (place / "held").mkdir()
    held = os.open(place / "held", os.O_RDONLY)
    (place / "held").rmdir()
    return held


# A filter that answers ENOSYS to openat2 alone, like a kernel without that call.
WITHOUT_OPENAT2 = """
import struct, sys
from hutch.linux import kernel, seccomp
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7FFF0000)]
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
seccomp.Filter(b"".join(struct.pack("=HBBI", *step) for step in steps)).load()
"""


def without_openat2(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", WITHOUT_OPENAT2 + textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_operations_without_openat2(tmp_path: Path) -> None:
    """On a kernel without the call, operations work and a descriptor of the guest is not reachable."""
    code = """
        import os
        from pathlib import Path
        from hutch.guest.operations import Failure
        from tests.guest.run_operation import run
        from tests.guest.test_paths import held_without_a_name
        place = Path(sys.argv[1])
        run("write", place, b"content", path="a/b", parents=True)
        os.symlink("a", place / "link")
        print(run("read", place, path="link/b")[1].decode())
        path = f"/proc/self/fd/{held_without_a_name(place)}"
        print(os.listdir(path))
        try:
            run("list", place, path=path)
        except Failure as failure:
            print(failure.code)
    """
    assert without_openat2(code, str(tmp_path)).splitlines() == ["content", "[]", "file_not_found"]
