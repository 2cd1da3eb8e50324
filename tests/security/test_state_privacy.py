"""What Hutch keeps on disk is for its own user alone, whatever the umask and whichever release made it (P8)."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.conftest import remove
from tests.server.serving import Server

from hutch import Hutch
from hutch.config import directories
from hutch.errors import ConfigError
from hutch.keeper.store.sqlite_files import open_database
from hutch.logs import configure


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def readable_by_others(top: Path) -> list[str]:
    """Files and directories below `top`, and itself, that another user could reach."""
    if not mode(top) & 0o077:
        return []
    found = [str(top)]
    for path in top.iterdir():
        if path.is_dir() and not path.is_symlink():
            found += readable_by_others(path)
        elif mode(path) & 0o077:
            found.append(str(path))
    return found


def test_a_state_directory_that_others_could_read_is_closed_at_the_start() -> None:
    """Class: permissions of an earlier day are trusted. A state directory of mode 0755 with databases of mode 0644, as
    an operator may have made it, is private before the first request; the log says so."""
    server = Server()
    try:
        before = os.umask(0o022)
        try:
            server.start()
        finally:
            os.umask(before)
        assert [mode(server.state / name) for name in ("hutch.db", "receipts.db", "first-key")] == [0o600] * 3
        assert server.end() == 0
        for path in (server.state, server.run):
            path.chmod(0o755)
        for name in ("hutch.db", "receipts.db"):
            (server.state / name).chmod(0o644)
        above = mode(server.top)
        assert len(readable_by_others(server.state)) > 2, "the control: others could read it"
        server.start()
        with server.unix().box(memory_mb=64) as box:
            server.unix().good("POST", f"{box}/exec", {"command": "true"})
            server.unix().good("GET", "/v1/receipts")
            assert readable_by_others(server.state) == readable_by_others(server.run) == []
            beside = [path for path in server.state.iterdir() if path.name.endswith(("db", "-wal", "-shm"))]
            assert len(beside) >= 4 and {mode(path) for path in beside} == {0o600}
            assert mode(server.run / "server.sock") == 0o600
        assert mode(server.top) == above == 0o755, "what is above it is somebody else's"
        assert server.log.read_text().count("others could look into a directory") == 2
    finally:
        server.close()


@pytest.mark.parametrize("name", ["photos", "hutch.toml"])
def test_a_directory_that_serves_others_too_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    """Nobody wants his home closed because a setting names it."""
    tmp_path.chmod(0o755)
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match="not its only user") as refused:
        directories.make(tmp_path)
    assert "chmod 700" in refused.value.remedy and mode(tmp_path) == 0o755
    tmp_path.chmod(0o700)
    directories.make(tmp_path)


@pytest.mark.parametrize("entry", ["", "lost+found", "keepers", "hutch.db"])
def test_a_directory_of_our_own_is_closed(tmp_path: Path, entry: str) -> None:
    """New, a volume's top, or used before."""
    tmp_path.chmod(0o755)
    if entry:
        (tmp_path / entry).mkdir()
    directories.make(tmp_path)
    assert mode(tmp_path) == 0o700


def test_a_directory_of_another_user_is_refused(tmp_path: Path, rootless: bool) -> None:
    if rootless:
        pytest.skip("giving a directory away needs root")
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        directories.make(tmp_path)


VALUE = "orchard-west-71-of-env"


def answer(server: Server) -> list[str]:
    """Files of the state directory that show the value; what boxes wrote themselves is theirs."""
    own = [path for path in server.state.rglob("*") if path.is_file() and "boxes" not in path.parts]
    return [str(path) for path in own if VALUE.encode() in path.read_bytes()]


def test_environments_are_not_in_the_databases() -> None:
    """Class: what people take for private is kept in the open. Values of `env` are sealed in records: no file shows
    one. Its owner sees them, and the box starts again with them; without the key it is not started without them."""
    server = Server()
    try:
        server.start()
        client = server.unix()
        spec = {"retention": "persistent", "env": {"REGION": VALUE}, "limits": {"memory_mb": 64, "disk_mb": 16}}
        made = client.good("POST", "/v1/boxes", spec)
        box = f"/v1/boxes/{made['id']}"
        assert made["spec"]["env"] == {"REGION": VALUE}
        client.good("POST", f"{box}/exec", {"command": "true"})
        client.good("PATCH", box, {"name": "sealed"})
        client.good("POST", f"{box}/stop")
        assert answer(server) == []
        assert server.end() == 0
        assert answer(server) == []
        server.start()
        assert client.good("GET", box)["spec"]["env"] == {"REGION": VALUE}
        client.good("POST", f"{box}/lease", {"takeover": True})
        assert client.good("POST", f"{box}/exec", {"command": "echo $REGION"})["stdout"].strip() == VALUE
        client.good("POST", f"{box}/stop")
        assert server.end() == 0

        key = server.state / "state.key"
        away = key.rename(server.top / "state.key")
        server.start()
        refused = client.call("POST", f"{box}/lease", {"takeover": True})
        assert refused.status == 503 and b"state.key" in refused.body, refused
        assert "environment not opened" in server.log.read_text()
        assert server.end() == 0
        away.rename(key)
        server.start()
        client.good("POST", f"{box}/lease", {"takeover": True})
        assert client.good("POST", f"{box}/exec", {"command": "echo $REGION"})["stdout"].strip() == VALUE
    finally:
        server.close()


async def test_a_restored_box_gets_no_mask_for_its_secret(tmp_path: Path, log_lines: list[str]) -> None:
    """Values of secrets are not on disk, so a box that was stopped comes back without them: with no variable, not with
    one that says `***`, which a program would send as its password."""
    top = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    try:
        async with Hutch(state_dir=str(top / "s"), run_dir=str(top / "r"), log_level="warning") as hutch:
            configure(write=log_lines.append)
            spec = {"memory_mb": 64, "disk_mb": 16, "retention": "persistent", "secrets": {"TOKEN": VALUE}}
            box = await hutch.create(**spec)
            assert (await box.exec('echo "[$TOKEN]"')).stdout == f"[{VALUE}]\n"
            await box.stop()
            box = await hutch.attach(box.id)
            assert (await box.exec('echo "[$TOKEN]"')).stdout == "[]\n"
            assert "a restored box has no secrets" in "".join(log_lines)
            await box.destroy()
    finally:
        remove(top)


def test_a_database_is_private_from_its_first_moment(tmp_path: Path) -> None:
    """Whatever the umask leaves to others."""
    for mask in (0o000, 0o022, 0o077):
        path = tmp_path / f"{mask:o}.db"
        before = os.umask(mask)
        try:
            open_database(path, timeout=1.0).close()
        finally:
            os.umask(before)
        assert mode(path) & ~0o600 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.db", "22.db", "77.db"]


def test_making_a_database_does_not_drop_the_locks_of_others(tmp_path: Path) -> None:
    """POSIX drops a process's locks with any descriptor of the file: one connection's opening must not cost another its
    lock, seen from a second process."""
    path = tmp_path / "a.db"
    held = open_database(path, timeout=1.0)
    held.execute("CREATE TABLE t (x)")
    held.execute("BEGIN IMMEDIATE")
    open_database(path, timeout=1.0).close()
    script = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    held.execute("COMMIT")
    assert "database is locked" in other.stderr
    held.close()
