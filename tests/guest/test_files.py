"""File operations of the guest: stat, list, read, mkdir, move and remove."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.guest.run_operation import rows, run

from hutch.guest.files.basic import OPERATIONS
from hutch.guest.files.removal import remove_tree
from hutch.guest.operations import Failure

ODD_NAMES = [
    "with space", "new\nline", "-rf", "tab\there", "quote'\"", "ünïcödé", "🐇", "x" * 255, "\udcff\udc80bytes", "*",
    "[a]", "back\\slash", "...", "{a,b}",
]  # fmt: skip


def fails(code: str, op: str, workdir: Path, **fields: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        run(op, workdir, **fields)
    assert caught.value.code == code, caught.value
    return caught.value


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_odd_names_survive_every_operation(tmp_path: Path, name: str) -> None:
    """File names of the box may be any bytes (lesson 18)."""
    run("write", tmp_path, b"content", path=name)
    assert (tmp_path / name).read_bytes() == b"content"
    assert run("read", tmp_path, path=name) == ({"sent": 7, "size": 7}, b"content")
    assert run("stat", tmp_path, path=name)[0]["path"] == name
    assert [row["path"] for row in rows(run("list", tmp_path, path=".")[1])] == [name]
    run("move", tmp_path, source=name, target="d/" + name)
    assert run("exists", tmp_path, path=name)[0] == {"exists": False}
    run("remove", tmp_path, path="d/" + name)
    assert os.listdir(tmp_path / "d") == []


def test_stat_does_not_follow(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    info = run("stat", tmp_path, path="file")[0]
    assert (info["kind"], info["size"], info["mode"], info["target"]) == ("file", 5, 0o640, None)
    assert run("stat", tmp_path, path="link")[0]["target"] == "file"
    assert run("stat", tmp_path, path=".")[0]["kind"] == "directory"
    assert run("stat", tmp_path, path="/")[0]["kind"] == "directory"
    assert run("exists", tmp_path, path="link")[0]["exists"] is True
    assert run("exists", tmp_path, path="dangling")[0]["exists"] is False
    assert run("exists", tmp_path, path="file/below")[0]["exists"] is False


def test_failures_say_what_and_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    missing = fails("file_not_found", "read", tmp_path, path="no/such")
    assert "no/such" in missing.message
    assert missing.details["name"] == "ENOENT"
    fails("is_directory", "read", tmp_path, path=".")
    fails("not_directory", "list", tmp_path, path="file")
    fails("file_exists", "mkdir", tmp_path, path="file", exist_ok=False)
    fails("invalid", "read", tmp_path, path="a\0b")
    fails("invalid", "read", tmp_path, path="")
    fails("invalid", "read", tmp_path, path=7)
    fails("invalid", "read", tmp_path, path="\ud800")
    fails("invalid", "read", tmp_path, path="file", offset=-1)
    assert fails("file_failed", "read", tmp_path, path="loop").details["name"] == "ELOOP"
    assert fails("file_failed", "read", tmp_path, path="x" * 256).details["errno"] == errno.ENAMETOOLONG


def test_ranges(tmp_path: Path) -> None:
    content = os.urandom(700_000)
    (tmp_path / "file").write_bytes(content)
    for offset, limit in ((0, None), (0, 0), (5, 10), (262_143, 262_146), (699_999, 5), (700_000, 5), (900_000, None)):
        wanted = content[offset:] if limit is None else content[offset : offset + limit]
        assert run("read", tmp_path, path="file", offset=offset, limit=limit)[1] == wanted
    assert fails("too_large", "read", tmp_path, path="file", bound=699_999).details["size"] == 700_000
    assert run("digest", tmp_path, path="file")[0] == {"digest": hashlib.sha256(content).hexdigest()}


def test_files_without_a_size_are_read_to_their_end_and_bounded(tmp_path: Path) -> None:
    assert run("read", tmp_path, path="/proc/self/status")[1].startswith(b"Name:")
    fails("too_large", "read", tmp_path, path="/proc/self/status", bound=10)


def test_lines(tmp_path: Path) -> None:
    wide = b"".join(b"%d%s\r\n" % (number, b"y" * 3000) for number in range(300)) + b"last"
    (tmp_path / "file").write_bytes(wide)
    every = wide.split(b"\n")
    for start, count in ((1, 5), (1, 301), (1, 300), (100, 150), (301, 1), (302, 5), (280, 2000)):
        reply, content = run("lines", tmp_path, path="file", start=start, count=count)
        assert content == wide[len(b"\n".join(every[: start - 1])) + (start > 1) :][: len(content)]
        assert [line.rstrip(b"\n") for line in content.splitlines(keepends=True)] == [
            line + b"" for line in every[start - 1 : start - 1 + count]
        ]
        assert reply["eof"] is (start - 1 + count >= 301)
    (tmp_path / "ended").write_bytes(b"a\nb\n")
    assert run("lines", tmp_path, path="ended", start=1, count=2) == ({"eof": True}, b"a\nb\n")
    assert run("lines", tmp_path, path="ended", start=1, count=1) == ({"eof": False}, b"a\n")
    (tmp_path / "empty").write_bytes(b"")
    assert run("lines", tmp_path, path="empty", start=1, count=1) == ({"eof": True}, b"")


def test_special_files_never_hang_the_guest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for op in ("read", "digest", "lines", "write", "pack"):
        failure = fails("file_failed", op, tmp_path, path="fifo")
        assert "fifo" in failure.message
    fails("file_failed", "write", tmp_path, path="fifo", append=True)
    fails("file_failed", "read", tmp_path, path="/dev/zero")
    assert run("stat", tmp_path, path="fifo")[0]["kind"] == "other"


@pytest.mark.parametrize(
    "path", ["/proc/self/root/etc/passwd", "/proc/self/cwd/file", "/proc/self/exe", "/proc/self/fd/0"]
)
def test_magic_links_are_refused(tmp_path: Path, path: str) -> None:
    """A path of the box must not lead through another process's root, directory or open files."""
    assert fails("file_failed", "read", tmp_path, path=path).details["name"] == "ELOOP"
    if path.count("/") > 3:
        with pytest.raises(Failure):
            run("write", tmp_path, b"x", path=path)


def test_list_is_sorted_and_spelled_like_the_request(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / "sub" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "sub" / name).touch()
    assert [row["path"] for row in rows(run("list", tmp_path, path="sub/")[1])] == ["sub/.hidden", "sub/a", "sub/b"]
    whole = str(tmp_path / "sub")
    assert rows(run("list", Path("/"), path=whole)[1])[1]["path"] == whole + "/a"


def test_mkdir(tmp_path: Path) -> None:
    run("mkdir", tmp_path, path="a/b/c", parents=True, exist_ok=True)
    run("mkdir", tmp_path, path="a/b/c", parents=True, exist_ok=True)
    assert (tmp_path / "a/b/c").is_dir()
    fails("file_exists", "mkdir", tmp_path, path="a", exist_ok=False)
    fails("file_not_found", "mkdir", tmp_path, path="x/y", parents=False)
    (tmp_path / "file").touch()
    fails("not_directory", "mkdir", tmp_path, path="file", parents=True, exist_ok=True)
    fails("not_directory", "mkdir", tmp_path, path="file/x", parents=True)
    deep = "/".join(["d"] * 1500)
    run("mkdir", tmp_path, path=deep, parents=True, exist_ok=True)
    run("remove", tmp_path, path="d", recursive=True)
    assert not (tmp_path / "d").exists()


def test_move(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    fails("file_exists", "move", tmp_path, source="a", target="b")
    assert (tmp_path / "b").read_text() == "b"
    run("move", tmp_path, source="a", target="b", overwrite=True)
    assert (tmp_path / "b").read_text() == "a"
    fails("file_not_found", "move", tmp_path, source="a", target="c")
    run("move", tmp_path, source="b", target="new/dir/b")
    assert (tmp_path / "new/dir/b").read_text() == "a"
    (tmp_path / "link").symlink_to("new")
    run("move", tmp_path, source="link", target="other")
    assert os.readlink(tmp_path / "other") == "new"


def test_move_between_filesystems(tmp_path: Path) -> None:
    """Overlay returns EXDEV for a lower directory, as two filesystems always do."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second filesystem at /dev/shm")
    target = shm / f"hutch-move-{os.getpid()}"
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/file").write_bytes(b"content")
    (tmp_path / "tree/sub/file").chmod(0o751)
    (tmp_path / "tree/link").symlink_to("sub/file")
    try:
        run("move", tmp_path, source="tree", target=str(target))
        assert not (tmp_path / "tree").exists()
        assert (target / "sub/file").read_bytes() == b"content"
        assert (target / "sub/file").stat().st_mode & 0o777 == 0o751
        assert os.readlink(target / "link") == "sub/file"
        (tmp_path / "tree").mkdir()
        fails("file_exists", "move", tmp_path, source="tree", target=str(target))
        os.mkfifo(target / "fifo")
        fails("file_failed", "move", tmp_path, source=str(target), target="back")
        assert (target / "sub/file").exists()
        assert sorted(os.listdir(tmp_path)) == ["tree"]
        os.unlink(target / "fifo")
        run("move", tmp_path, source=str(target / "sub/file"), target="tree/file")
        run("move", tmp_path, source=str(target / "link"), target="tree/link")
        assert (tmp_path / "tree/file").read_bytes() == b"content"
        assert os.readlink(tmp_path / "tree/link") == "sub/file"
    finally:
        for _ in remove_tree(os.open(shm, os.O_RDONLY), target.name):
            pass


def test_remove(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/sentinel").touch()
    (tmp_path / "tree/a/b").mkdir(parents=True)
    (tmp_path / "tree/a/link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree/file").touch()
    (tmp_path / "empty").mkdir()
    run("remove", tmp_path, path="empty")
    assert fails("file_failed", "remove", tmp_path, path="tree").details["name"] == "ENOTEMPTY"
    run("remove", tmp_path, path="tree/a/link", recursive=True)
    (tmp_path / "tree/a/link").symlink_to(tmp_path / "outside")
    run("remove", tmp_path, path="tree", recursive=True)
    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(tmp_path / "outside") == ["sentinel"]
    fails("file_not_found", "remove", tmp_path, path="tree")
    run("remove", tmp_path, path="tree", missing_ok=True)
    run("remove", tmp_path, path="no/where", missing_ok=True)
    fails("invalid", "remove", tmp_path, path="outside/.", recursive=True)


def test_remove_with_many_entries_and_levels(tmp_path: Path) -> None:
    top = tmp_path / "tree"
    for number in range(40):
        (top / f"d{number}/x/y").mkdir(parents=True)
    for number in range(5000):
        (top / f"f{number}").touch()
    run("remove", tmp_path, path="tree", recursive=True)
    assert os.listdir(tmp_path) == []


def _attack(tmp_path: Path, step: int, swap: Callable[[Path, Path], None]) -> None:
    """Remove a tree, call `swap(tree, outside)` after `step` steps, and check that nothing outside has changed."""
    outside, box = tmp_path / f"outside{step}", tmp_path / f"box{step}"
    (outside / "d/keep").mkdir(parents=True)
    (outside / "d/keep/sentinel").touch()
    (outside / "file").touch()
    (box / "tree/d/keep").mkdir(parents=True)
    for name in ("a", "d/b", "d/c", "d/keep/sentinel"):
        (box / "tree" / name).touch()
    parent = os.open(box, os.O_RDONLY)
    try:
        for number, _ in enumerate(remove_tree(parent, "tree")):
            if number == step:
                swap(box / "tree", outside)
    except OSError as error:
        assert error.errno in (errno.ESTALE, errno.ENOTEMPTY, errno.ENOENT, errno.ENOTDIR), error
    finally:
        os.close(parent)
    assert (outside / "file").exists()
    assert (outside / "d/keep/sentinel").exists()


@pytest.mark.parametrize("step", range(8))
def test_a_directory_swapped_for_a_symlink_is_not_followed(tmp_path: Path, step: int) -> None:
    """Test the race of every recursive removal at each of its steps: a link to the outside replaces a directory."""

    def swap(tree: Path, outside: Path) -> None:
        for name in ("d/keep", "d"):
            if (tree / name).is_dir():
                os.rename(tree / name, tree.parent / "away")
                (tree / name).symlink_to(outside / name)
                return

    def swap_top(tree: Path, outside: Path) -> None:
        if (tree / "d").is_dir():
            os.rename(tree / "d", tree.parent / "away")
            (tree / "d").symlink_to(outside / "d")

    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    _attack(tmp_path / "1", step, swap)
    _attack(tmp_path / "2", step, swap_top)


@pytest.mark.parametrize("step", range(8))
def test_a_directory_moved_outside_does_not_lead_there(tmp_path: Path, step: int) -> None:
    """The way back up is `..`, but the directory was moved below another one meanwhile."""

    def swap(tree: Path, outside: Path) -> None:
        if (tree / "d/keep").is_dir():
            os.rename(tree / "d/keep", outside / "moved")

    def swap_top(tree: Path, outside: Path) -> None:
        if (tree / "d").is_dir():
            os.rename(tree / "d", outside / "moved")

    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    _attack(tmp_path / "1", step, swap)
    _attack(tmp_path / "2", step, swap_top)


def test_every_operation_is_closed_without_a_leak(tmp_path: Path) -> None:
    """A caller that disconnects in the middle leaves no descriptor open."""
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    before = set(os.listdir("/proc/self/fd"))
    for op in ("read", "digest", "list"):
        steps: Any = OPERATIONS[f"files.{op}"]({"path": "." if op == "list" else "file"}, str(tmp_path))
        next(steps)
        steps.close()
    assert set(os.listdir("/proc/self/fd")) == before
