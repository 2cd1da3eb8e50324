"""`hutch backup` and `hutch restore` carry a state directory from one place to another."""

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from hutch.errors import Invalid
from hutch.keeper.archives.backup import read_backup
from hutch.keeper.archives.backup import write_backup as write
from hutch.model.boxes import State
from hutch.sync import Hutch
from tests.cli.cli_process import HUTCH
from tests.server.serving import serving

pytestmark = pytest.mark.slow


def run_hutch(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HUTCH, *words], env={**os.environ, **environ}, capture_output=True, text=True, timeout=120)


def _fill(state: Path, run: Path) -> str:
    """A persistent box with odd files, a volume with one, a skill, and receipts."""
    with Hutch(state_dir=state, run_dir=run) as hutch:
        hutch.volumes.create("team")
        with hutch.box(workspace="volume:team") as writer:
            writer.files.write("report.md", "in the volume")
        hutch.skills.create("greet", "says hello")
        box = hutch.create(name="keep", retention="persistent", env={"TOKEN": "sealed-value"})
        box.exec("echo kept > f; ln -s f link; ln f hard; mkdir -p locked/in; echo x > locked/in/y; chmod 500 locked")
        box.exec("mkdir sealed; echo z > sealed/z; chmod 000 sealed/z sealed")
        box.files.write("bytes", bytes(range(256)) * 500)
        box.stop()
        return box.id


def _check(state: Path, run: Path, box_id: str) -> None:
    with Hutch(state_dir=state, run_dir=run) as hutch:
        assert hutch.find("keep").state is State.STOPPED
        box = hutch.attach(box_id)
        said = box.exec("cat link hard locked/in/y; stat -c '%a %h' locked f; echo $TOKEN").stdout
        assert said == "kept\nkept\nx\n500 3\n644 2\nsealed-value\n", said
        assert box.exec("stat -c %a sealed; chmod 700 sealed; stat -c %a sealed/z").stdout == "0\n0\n"
        assert box.exec("chmod 600 sealed/z; cat sealed/z").stdout == "z\n"
        assert box.files.read("bytes") == bytes(range(256)) * 500
        with hutch.box(workspace="volume:team") as reader:
            assert reader.files.read_text("report.md") == "in the volume"
        assert [each.name for each in hutch.skills.all()] == ["greet"]
        assert all(check.ok for check in hutch.receipts.verify())
        box.destroy()


def test_a_state_directory_is_backed_up_and_restored_elsewhere(tmp_path: Path) -> None:
    """Files with their modes and links, volumes, skills, receipts that verify, sealed environments, in another
    directory than before; the file is private, and nothing is overwritten."""
    box_id = _fill(tmp_path / "s", tmp_path / "r")
    file = tmp_path / "backup.tar.gz"
    done = run_hutch("backup", str(file), HUTCH_STATE_DIR=str(tmp_path / "s"), HUTCH_RUN_DIR=str(tmp_path / "r"))
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    again = run_hutch("backup", str(file), HUTCH_STATE_DIR=str(tmp_path / "s"), HUTCH_RUN_DIR=str(tmp_path / "r"))
    assert again.returncode != 0 and "exists already" in again.stderr
    refused = run_hutch("restore", str(file), HUTCH_STATE_DIR=str(tmp_path / "s"), HUTCH_RUN_DIR=str(tmp_path / "r"))
    assert refused.returncode != 0 and "is not empty" in refused.stderr
    there = {"HUTCH_STATE_DIR": str(tmp_path / "elsewhere"), "HUTCH_RUN_DIR": str(tmp_path / "r2")}
    restored = run_hutch("restore", str(file), **there)
    assert restored.returncode == 0, restored.stderr
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o700
    _check(tmp_path / "elsewhere", tmp_path / "r2", box_id)
    _check(tmp_path / "s", tmp_path / "r", box_id)


def test_beside_a_running_server(tmp_path: Path) -> None:
    """A server works on while its directory is written; what it had committed is in the file."""
    file = tmp_path / "live.tar.gz"
    with serving() as server:
        user = server.tcp(key := server.key("user", "owner"))
        user.good("POST", "/v1/volumes", {"name": "team"})
        box = user.good("POST", "/v1/boxes", {"retention": "persistent"})["id"]
        user.good("PUT", f"/v1/boxes/{box}/files/content?path=f", b"written before")
        done = run_hutch("backup", str(file), HUTCH_STATE_DIR=str(server.state), HUTCH_RUN_DIR=str(server.run))
        assert done.returncode == 0, done.stderr
        assert user.good("GET", f"/v1/boxes/{box}")["state"] == "running"
        user.good("DELETE", f"/v1/boxes/{box}?force=true")
    with serving() as second:
        second.end()
        shutil.rmtree(second.state)
        done = run_hutch("restore", str(file), HUTCH_STATE_DIR=str(second.state), HUTCH_RUN_DIR=str(second.run))
        assert done.returncode == 0, done.stderr
        second.start()
        again = second.tcp(key)
        assert [each["name"] for each in again.good("GET", "/v1/volumes")["volumes"]] == ["team"]
        again.good("POST", f"/v1/boxes/{box}/resume")
        assert again.call("GET", f"/v1/boxes/{box}/files/content?path=f").body == b"written before"
        again.good("DELETE", f"/v1/boxes/{box}?force=true")


@pytest.mark.parametrize(
    "hostile", ["/etc/harm", "../harm", "link/harm", "device", "hard"], ids=lambda name: name.strip("/.")
)
def test_a_hostile_file_is_refused(tmp_path: Path, hostile: str) -> None:
    """Names that lead out, also through a link of the file's own, and devices: nothing of it stays."""
    with Hutch(state_dir=tmp_path / "s", run_dir=tmp_path / "r"):
        pass
    write(tmp_path / "s", tmp_path / "good.tar.gz")
    with tarfile.open(tmp_path / "good.tar.gz") as good, tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as bad:
        first = good.next()
        assert first is not None
        bad.addfile(first, good.extractfile(first))
        if hostile == "link/harm":
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
            bad.addfile(link)
        member = tarfile.TarInfo(hostile)
        if hostile == "device":
            member.type, member.devmajor, member.devminor = tarfile.CHRTYPE, 1, 3
        elif hostile == "hard":
            member.type, member.linkname = tarfile.LNKTYPE, "../good.tar.gz"
        else:
            member.size = 4
        bad.addfile(member, io.BytesIO(b"harm"))
    with pytest.raises(Invalid):
        read_backup(tmp_path / "bad.tar.gz", tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["bad.tar.gz", "good.tar.gz", "r", "s"]
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "good.tar.gz").read_bytes()[:-200])
    with pytest.raises(Invalid):
        read_backup(tmp_path / "cut.tar.gz", tmp_path / "new")
    assert not (tmp_path / "new").exists()
