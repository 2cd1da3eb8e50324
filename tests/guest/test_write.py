"""Writing, appending and editing: atomically and byte for byte."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guest.run_operation import run

from hutch.guest.files.driver import OPERATIONS
from hutch.guest.files.write import Write
from hutch.guest.operations import BLOCK, Failure


def edit(workdir: Path, old: bytes, new: bytes, **fields: Any) -> dict[str, Any]:
    return run("edit", workdir, old + new, old_size=len(old), **fields)[0]


def refused(workdir: Path, old: bytes, new: bytes, **fields: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        edit(workdir, old, new, **fields)
    return caught.value


FULL_DISK = """
import json, os, sys
from pathlib import Path
from hutch.guest.operations import Failure
from tests.guest.run_operation import run
disk = Path(sys.argv[1])
(disk / "file").write_bytes(b"old")
failures = []
for op, content, fields in (
    ("write", bytes(1 << 20), {}),
    ("edit", b"old" + bytes(1 << 20), {"old_size": 3}),
    ("write", bytes(1 << 20), {"append": True}),
):
    try:
        run(op, disk, content, path="appended" if "append" in fields else "file", **fields)
    except Failure as failure:
        failures.append([failure.code, failure.details["name"], failure.remedy])
print(json.dumps([failures, sorted(os.listdir(disk)), (disk / "file").read_text()]))
"""


def on_a_small_disk(script: str, directory: Path) -> Any:
    """Run the code with a disk of 256 kB mounted at `directory`, visible to that process only."""
    mount = f"mount -t tmpfs -o size=256k none {directory}"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets no user mount a tmpfs in a namespace")
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [*command, sys.executable, "-c", script, directory], check=False, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_reader_sees_the_old_content_or_the_new(tmp_path: Path) -> None:
    """Nothing is visible under the name before the last byte is written (lesson 21)."""
    (tmp_path / "file").write_bytes(b"old")
    writer = Write({"path": "file"}, str(tmp_path))
    writer.data(b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    writer.end()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_caller_that_disconnects_leaves_no_file(tmp_path: Path) -> None:
    """A lost connection in the middle of a write changes nothing (lesson 21)."""
    (tmp_path / "file").write_bytes(b"old")
    descriptors = os.listdir("/proc/self/fd")
    for name in ("file", "new"):
        writer = Write({"path": name}, str(tmp_path))
        writer.data(b"half")
        writer.abort()
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A full disk in the middle of a write or an edit changes nothing (lesson 21)."""
    failures, names, content = on_a_small_disk(FULL_DISK, tmp_path)
    assert failures == [["file_failed", "ENOSPC", "remove files, or ask for a larger disk_mb"]] * 3
    assert names == ["appended", "file"]
    assert content == "old"


def test_mode_is_kept_or_given(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"")
    (tmp_path / "kept").chmod(0o750)
    assert run("write", tmp_path, b"x", path="kept")[0]["mode"] == 0o750
    assert run("write", tmp_path, b"x", path="kept", mode=0o600, sync=True)[0]["mode"] == 0o600
    edit(tmp_path, b"x", b"y", path="kept")
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o600
    umask = os.umask(0o027)
    try:
        assert run("write", tmp_path, b"x", path="new")[0]["mode"] == 0o640
    finally:
        os.umask(umask)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may own a file of another user")
def test_owner_is_kept_by_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.chown(tmp_path / "file", 1234, 4321)
    run("write", tmp_path, b"x", path="file")
    info = (tmp_path / "file").stat()
    assert (info.st_uid, info.st_gid) == (1234, 4321)


def test_symlinks_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/file").write_bytes(b"old")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("sub/file")
    run("write", tmp_path, b"new", path="first")
    edit(tmp_path, b"new", b"newer", path="first")
    run("write", tmp_path, b"!", path="first", append=True)
    assert (tmp_path / "sub/file").read_bytes() == b"newer!"
    assert (tmp_path / "first").is_symlink()
    (tmp_path / "dangling").symlink_to("sub/made")
    run("write", tmp_path, b"made", path="dangling")
    assert (tmp_path / "sub/made").read_bytes() == b"made"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Failure, match="loop"):
        run("write", tmp_path, b"", path="loop")


def test_append_and_parents(tmp_path: Path) -> None:
    run("write", tmp_path, b"one", path="a/b/log", append=True, parents=True)
    info = run("write", tmp_path, b"two", path="a/b/log", append=True, mode=0o600)[0]
    assert (tmp_path / "a/b/log").read_bytes() == b"onetwo"
    assert (info["size"], info["mode"]) == (6, 0o600)
    for fields in ({}, {"append": True}):
        with pytest.raises(Failure) as caught:
            run("write", tmp_path, b"", path="no/such", **fields)
        assert caught.value.code == "file_not_found"
        with pytest.raises(Failure) as caught:
            run("write", tmp_path, b"", path="a", **fields)
        assert caught.value.code == "is_directory"


def test_edit_leaves_every_other_byte_alone(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, and line ends, stay what they are (lesson 19)."""
    (tmp_path / "file").write_bytes(b"\xff\xfeline\r\nname = 1\r\n\x00\x80tail")
    reply = edit(tmp_path, b"name = 1", b"name = 2", path="file")
    wanted = b"\xff\xfeline\r\nname = 2\r\n\x00\x80tail"
    assert (tmp_path / "file").read_bytes() == wanted
    assert reply == {"path": "file", "replaced": 1, "size": len(wanted), "digest": hashlib.sha256(wanted).hexdigest()}


def test_edit_counts_exactly(tmp_path: Path) -> None:
    """Without exactly one match or `replace_all`, nothing changes and the count is reported (lesson 19)."""
    (tmp_path / "file").write_bytes(b"a b a b a")
    assert refused(tmp_path, b"a", b"x", path="file").details == {"count": 3}
    assert refused(tmp_path, b"c", b"x", path="file").details == {"count": 0}
    assert refused(tmp_path, b"c", b"x", path="file", replace_all=True).code == "no_match"
    assert (tmp_path / "file").read_bytes() == b"a b a b a"
    assert edit(tmp_path, b"a", b"", path="file", replace_all=True)["replaced"] == 3
    assert (tmp_path / "file").read_bytes() == b" b  b "
    assert os.listdir(tmp_path) == ["file"]
    assert refused(tmp_path, b"", b"x", path="file").code == "invalid"
    assert refused(tmp_path, b"x", b"", path="missing").code == "file_not_found"


def test_edit_notices_a_concurrent_change(tmp_path: Path) -> None:
    """An edit requires a read; the digest of an earlier edit guards the next one (lesson 19)."""
    (tmp_path / "file").write_bytes(b"one two")
    digest = run("digest", tmp_path, path="file")[0]["digest"]
    digest = edit(tmp_path, b"one", b"1", path="file", expect=digest)["digest"]
    edit(tmp_path, b"two", b"2", path="file", expect=digest)
    assert refused(tmp_path, b"1", b"3", path="file", expect=digest).code == "file_changed"
    assert (tmp_path / "file").read_bytes() == b"1 2"


def test_edit_notices_a_change_while_it_works(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one" + bytes(3 * BLOCK))
    work: Any = OPERATIONS["files.edit"]({"path": "file", "old_size": 3}, str(tmp_path))
    work.data(b"onetwo")
    steps = work.end()
    next(steps)
    with open(tmp_path / "file", "ab") as file:
        file.write(b"more")
    with pytest.raises(Failure) as caught:
        for _ in steps:
            pass
    assert caught.value.code == "file_changed"
    assert os.listdir(tmp_path) == ["file"]


def test_edit_is_bounded(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.truncate((64 << 20) + 1)
    assert refused(tmp_path, b"a", b"b", path="file").code == "too_large"


@given(
    content=st.lists(st.sampled_from([b"a", b"ab", b"b", b"\r\n", b"\xff"]), max_size=60).map(b"".join),
    old=st.lists(st.sampled_from([b"a", b"b", b"\r\n", b"\xff"]), min_size=1, max_size=4).map(b"".join),
    new=st.binary(max_size=5),
    padding=st.integers(0, 6),
)
def test_edit_is_bytes_replace(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, old: bytes, new: bytes, padding: int
) -> None:
    """This also holds where a match crosses two blocks: the padding moves the content over the border."""
    workdir = tmp_path_factory.getbasetemp()
    whole = b"." * (BLOCK - padding) + content
    (workdir / "edited").write_bytes(whole)
    count = whole.count(old)
    if count == 0:
        assert refused(workdir, old, new, path="edited", replace_all=True).details == {"count": 0}
        return
    if count > 1:
        assert refused(workdir, old, new, path="edited").details == {"count": count}
    assert edit(workdir, old, new, path="edited", replace_all=True)["replaced"] == count
    assert (workdir / "edited").read_bytes() == whole.replace(old, new)
