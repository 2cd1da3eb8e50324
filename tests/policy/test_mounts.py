"""The allow-list of mounts, against real directories, links, sockets and bind mounts (B11, B18) (lesson 27)."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch.errors import FileMissing, HutchError, Invalid, Refused
from hutch.model.spec import CheckedMounts, Mount, MountMode, Workspace
from hutch.policy.mounts import check, windows_refusal

OWN = Workspace()


@pytest.fixture
def root() -> Iterator[Path]:
    """An allowed root; in a short path, because a test binds sockets in it."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as directory:
        yield Path(directory).resolve()


def look(source: str | Path, root: Path | None, *refused: Path) -> CheckedMounts:
    mount = Mount(source=str(source), target="/data")
    return check((mount,), OWN, roots=() if root is None else (root,), refused=refused)


def test_a_directory_under_a_root_is_shown_with_its_inode(root: Path) -> None:
    (root / "data").mkdir()
    found = (root / "data").stat()
    [mount] = look(root / "data", root).mounts
    assert (mount.real, mount.target, mount.mode) == (str(root / "data"), "/data", MountMode.RO)
    assert (mount.dev, mount.ino) == (found.st_dev, found.st_ino)


def test_a_file_and_the_root_itself_may_be_shown(root: Path) -> None:
    (root / "file").write_text("x")
    assert look(root / "file", root).mounts[0].real == str(root / "file")
    assert look(root, root).mounts[0].real == str(root)


def test_what_lies_under_no_root_is_refused_and_the_remedy_names_the_root(root: Path) -> None:
    (root / "data").mkdir()
    (root / "data-2").mkdir()
    with pytest.raises(Refused, match="does not lie under an allowed root") as caught:
        look(root / "data-2", root / "data")
    assert f"{root}/data-2" in caught.value.remedy
    with pytest.raises(Refused, match="roots: none"):
        look(root / "data", None)


def test_every_mount_is_checked_and_the_workspace_and_the_image_too(root: Path) -> None:
    """Extra mounts were not checked at all (lesson 27)."""
    (root / "in").mkdir()
    good, bad = Mount(source=str(root / "in"), target="/a"), Mount(source="/usr", target="/b")
    with pytest.raises(Refused, match="/usr"):
        check((good, bad), OWN, roots=(root,))
    with pytest.raises(Refused, match="/etc"):
        check((), Workspace(source="/etc"), roots=(root,))
    with pytest.raises(Refused, match="whole machine"):
        check((), OWN, "dir:/", roots=(root,))
    with pytest.raises(FileMissing):
        check((), OWN, f"tar:{root}/none.tar", roots=(root,))
    answer = check((good,), Workspace(source=str(root), mode=MountMode.RO), f"dir:{root}/in", roots=(root,))
    assert answer.workspace is not None
    assert (answer.workspace.real, answer.workspace.target, answer.workspace.mode) == (str(root), "/workspace", "ro")
    assert answer.image is not None
    assert answer.image.real == str(root / "in")
    assert CheckedMounts.from_json(answer.to_json()) == answer


def test_own_volume_and_none_show_nothing_of_the_host() -> None:
    assert check((), OWN, roots=()) == CheckedMounts()
    assert check((), Workspace(source="volume:notes"), "oci:alpine", roots=()) == CheckedMounts()
    assert check((), Workspace(source="/nowhere", mode=MountMode.NONE), roots=()) == CheckedMounts()
    hidden = Mount(source="/nowhere", target="/x", mode=MountMode.NONE)
    assert check((hidden,), OWN, roots=()) == CheckedMounts()


def test_a_missing_source_is_an_error_that_names_it(root: Path) -> None:
    """A clear error before anything starts; it is also the builtin one (B11)."""
    (root / "file").write_text("x")
    (root / "dangling").symlink_to(root / "gone")
    for source in (root / "gone", root / "file" / "below", root / "dangling"):
        with pytest.raises(FileNotFoundError, match=f"mount source {source} does not exist"):
            look(source, root)


def test_a_source_must_be_absolute(root: Path) -> None:
    for source in ("data", "", "./data", "~/data"):
        with pytest.raises(Invalid, match="not an absolute path"):
            look(source, root)


@pytest.mark.parametrize(
    "source",
    ["/", "//", "/.", "/usr/..", "/etc", "/etc/", "/etc/passwd", "/usr", "/usr/bin", "/bin", "/dev", "/dev/shm",
     "/proc", "/proc/self/root", "/proc/self/cwd/..", "/sys", "/run", "/var", "/var/run", "/var/lib", "/home", "/root"],
)  # fmt: skip
def test_system_directories_are_refused_whatever_the_roots(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/`, `/home` and `/var/lib/docker` went through a deny-list (B18) (lesson 27)."""
    if not os.path.exists(source):
        pytest.skip(f"this machine has no {source}")
    monkeypatch.chdir("/usr/bin")
    # An ordinary user may not look into some of them, and that is a refusal as well.
    with pytest.raises(Refused):
        look(source, Path("/"))


def test_a_symlink_counts_as_what_it_leads_to(root: Path) -> None:
    (root / "in").mkdir()
    (root / "out").symlink_to("/etc")
    (root / "step").symlink_to(root / "in")
    assert look(root / "step", root).mounts[0].real == str(root / "in")
    with pytest.raises(Refused, match="/etc"):
        look(root / "out", root)
    with pytest.raises(Refused, match="/etc"):
        look(root / "out" / "passwd", root)
    # A symlink elsewhere that leads into the root is fine: only the end counts.
    with tempfile.TemporaryDirectory(dir="/tmp") as elsewhere:
        link = Path(elsewhere) / "link"
        link.symlink_to(root / "in")
        assert look(link, root).mounts[0].real == str(root / "in")


def test_a_root_that_is_a_symlink_works(root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to(root / "real")
    assert look(root / "real", root / "link").mounts[0].real == str(root / "real")
    assert look(root / "link", root / "link").mounts[0].real == str(root / "real")


def test_our_own_directories_are_refused_and_all_above_them(root: Path) -> None:
    """The state directory, and so other boxes; `above` would show it."""
    state = root / "above" / "state"
    (state / "boxes" / "abc").mkdir(parents=True)
    (root / "beside").mkdir()
    for source in (state, state / "boxes" / "abc"):
        with pytest.raises(Refused, match="closed to every box"):
            look(source, root, state)
    with pytest.raises(Refused, match="contains"):
        look(root / "above", root, state)
    assert look(root / "beside", root, state).mounts


def test_a_refused_tree_that_is_a_symlink_is_refused_at_both_ends(root: Path) -> None:
    (root / "real").mkdir()
    (root / "state").symlink_to(root / "real")
    for source in (root / "state", root / "real"):
        with pytest.raises(Refused, match="closed to every box"):
            look(source, root, root / "state")


def test_a_refused_tree_is_refused_before_it_is_there(root: Path) -> None:
    (root / "above").mkdir()
    with pytest.raises(Refused, match="contains"):
        look(root / "above", root, root / "above" / "later")


def test_homes_are_refused_as_a_whole_and_their_keys_always(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = root / "alice"
    (home / ".ssh").mkdir(parents=True)
    (home / "project").mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert look(home / "project", root).mounts
    with pytest.raises(Refused, match="whole home"):
        look(home, root)
    with pytest.raises(Refused, match="contains"):
        look(root, root)
    with pytest.raises(Refused, match="closed to every box"):
        look(home / ".ssh", root)


def test_sockets_pipes_and_devices_are_refused(root: Path) -> None:
    """A read-only mount does not keep anybody from connecting to a socket."""
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "any"))
        for source in (root / "any", root / "pipe"):
            with pytest.raises(Refused, match="neither a directory nor a regular file"):
                look(source, root)


@pytest.mark.parametrize("name", ["docker.sock", "podman.sock", "containerd.sock"])
def test_a_directory_with_the_socket_of_an_engine_is_refused(root: Path, name: str) -> None:
    """Engine sockets (B18)."""
    (root / "d").mkdir()
    (root / "d" / name).write_text("a file of that name is harmless")
    assert look(root / "d", root).mounts
    (root / "d" / name).unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "d" / name))
        with pytest.raises(Refused, match=f"socket of a container engine, {name}"):
            look(root / "d", root)


def test_the_engine_that_the_environment_names_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "engine").mkdir()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{root}/engine/odd-name")
    with pytest.raises(Refused, match="contains"):
        look(root / "engine", root)


def test_a_bind_mount_of_a_closed_tree_is_found_by_its_inode(root: Path, rootless: bool) -> None:
    """In a mount namespace of its own, so nothing of it is seen elsewhere."""
    if rootless:
        pytest.skip("binding needs root")
    for name in ("etc", "whole"):
        (root / name).mkdir()
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from hutch.errors import Refused
from hutch.model.spec import Mount, Workspace
from hutch.policy.mounts import check
for source in ("etc", "etc/ssl", "whole", "whole/etc"):
    try:
        check((Mount(source="{root}/" + source, target="/x"),), Workspace(), roots=("{root}",))
    except Refused as error:
        print(error.message)
"""
    script = 'mount --bind /etc "$0/etc" && mount --bind / "$0/whole" && exec "$1" -c "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, str(root), sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip(f"cannot bind here: {done.stderr.strip()}")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stdout
    assert all("under another name" in line or "whole machine" in line for line in lines)


def test_a_place_in_another_mount_namespace_is_not_taken_for_one_here(root: Path, rootless: bool) -> None:
    """/proc/PID/root/… shows paths that mean something else here: the inode tells."""
    if rootless:
        pytest.skip("another mount namespace needs root")
    (root / "data").mkdir()
    script = 'mount -t tmpfs none "$0/data" && mkdir "$0/data/inner" && echo ready && read _'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout and other.stdin and other.stderr
        if other.stdout.readline() != "ready\n":
            pytest.skip(f"cannot mount here: {other.stderr.read().strip()}")
        try:
            (root / "data" / "inner").mkdir()
            with pytest.raises(Refused):
                look(f"/proc/{other.pid}/root{root}/data/inner", root)
        finally:
            other.stdin.write("\n")
            other.stdin.flush()


def test_names_that_cannot_be_printed_are_refused(root: Path) -> None:
    (root / "a\nb").mkdir()
    with pytest.raises(Refused, match="cannot be printed"):
        look(root / "a\nb", root)


def test_no_descriptor_is_left_behind(root: Path) -> None:
    (root / "data").mkdir()
    (root / "link").symlink_to("/etc")
    before = set(os.listdir("/proc/self/fd"))
    for source in (root / "data", root / "link", root / "gone", "/", "x"):
        try:
            look(source, root)
        except HutchError:
            continue
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (r"C:\Users\me\project", True),
        ("D:/work", True),
        ("C:\\", False),
        (r"C:\Windows", False),
        (r"c:/windows/system32", False),
        (r"C:\WINDOWS. \System32", False),
        (r"\\?\C:\Windows", False),
        (r"C:\Program Files\x", False),
        (r"C:\PROGRA~1", False),
        (r"C:\ProgramData", False),
        (r"C:\Users", False),
        (r"C:\Users\me", False),
        (r"C:\work\..\Windows", False),
        (r"C:\work::$DATA", False),
        (r"\\.\pipe\docker_engine", False),
        (r"//./pipe/docker_engine", False),
        (r"\\server\share", False),
        (r"C:relative", False),
        ("work", False),
    ],
)
def test_windows_paths(path: str, allowed: bool) -> None:
    """Windows system paths where relevant (B18)."""
    assert (windows_refusal(path) is None) == allowed


def test_a_windows_path_is_refused_on_linux(root: Path) -> None:
    for source in (r"C:\Windows", r"C:\Users\me\project", r"\\.\pipe\docker_engine"):
        with pytest.raises(Refused):
            look(source, root)
