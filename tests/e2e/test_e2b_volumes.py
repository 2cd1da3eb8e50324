"""Volumes through the newest E2B SDK: made, filled, mounted in sandboxes, and removed (S13)."""

from collections.abc import Iterator

import e2b
import pytest

from tests.e2e.e2b_sdk import E2B


@pytest.fixture
def volume(hutch_e2b: E2B, monkeypatch: pytest.MonkeyPatch) -> Iterator[e2b.Volume]:
    """An empty volume; `E2B_VOLUME_API_URL` is the fourth variable, which only the content of volumes needs."""
    monkeypatch.setenv("E2B_VOLUME_API_URL", hutch_e2b.url)
    made = e2b.Volume.create("shared", **hutch_e2b.api_options)
    yield made
    e2b.Volume.destroy("shared", **hutch_e2b.api_options)


def test_sandboxes_share_a_volume_that_outlives_them(hutch_e2b: E2B, volume: e2b.Volume) -> None:
    """(S13) What one sandbox writes at a volume's mount point, the next one finds; a volume in use is not removed."""
    with hutch_e2b.sandbox(volume_mounts={"/mnt/shared": volume}) as first:
        first.commands.run("echo kept > /mnt/shared/note")
        assert first.get_info().volume_mounts == [{"name": "shared", "path": "/mnt/shared"}]
        with pytest.raises(e2b.VolumeException, match=r"409.*in use"):
            e2b.Volume.destroy("shared", **hutch_e2b.api_options)
    with hutch_e2b.sandbox(volume_mounts={"/home/user/data": "shared"}) as second:
        assert second.files.read("data/note") == "kept\n"
    assert volume.read_file("/note") == "kept\n"


def test_the_content_of_a_volume(volume: e2b.Volume) -> None:
    """(S13) A volume's files are written, read, listed, changed and removed without a sandbox."""
    volume.make_dir("/deep/er", force=True)
    written = volume.write_file("/deep/er/file", b"\x00bytes", mode=0o600)
    assert (written.size, written.mode, written.path) == (6, 0o600, "/deep/er/file")
    assert volume.read_file("/deep/er/file", format="bytes") == b"\x00bytes"
    assert [entry.path for entry in volume.list("/", depth=3)] == ["/deep", "/deep/er", "/deep/er/file"]
    assert volume.update_metadata("/deep/er/file", mode=0o640).mode == 0o640
    volume.remove("/deep")
    assert not volume.exists("/deep")


def test_wrong_uses_of_a_volume_are_refused(hutch_e2b: E2B, volume: e2b.Volume) -> None:
    """(S13) The SDK's own classes for what is missing, there already, or another's."""
    volume.write_file("/file", "1")
    with pytest.raises(e2b.VolumeException, match=r"409.*already exists"):
        volume.write_file("/file", "2", force=False)
    with pytest.raises(e2b.NotFoundException):
        volume.read_file("/none")
    with pytest.raises(e2b.NotFoundException):
        volume.write_file("/no/directory/file", "1")
    with pytest.raises(e2b.VolumeException, match="409"):
        e2b.Volume.create("shared", **hutch_e2b.api_options)
    with pytest.raises(e2b.VolumeException, match="400"):
        e2b.Volume.create("../up", **hutch_e2b.api_options)
    with pytest.raises(e2b.SandboxException, match="no volume nonesuch"):
        hutch_e2b.sandbox(volume_mounts={"/mnt/x": "nonesuch"}).__enter__()
    with pytest.raises(e2b.SandboxException, match="cover a part of the box"):
        hutch_e2b.sandbox(volume_mounts={"/proc": "shared"}).__enter__()
    other = E2B(hutch_e2b.server, owner="another")
    assert e2b.Volume.list(**other.api_options) == []
    assert not e2b.Volume.destroy("shared", **other.api_options)
    forged = e2b.Volume("shared", "shared", token=str(volume.token)[:-1] + "x")
    with pytest.raises(e2b.AuthenticationException):
        forged.read_file("/file")


def test_links_in_a_volume_lead_nowhere_on_the_machine(hutch_e2b: E2B, volume: e2b.Volume) -> None:
    """(S13) Links that a sandbox leaves in a volume are followed in a box, where the machine's secrets are not."""
    with hutch_e2b.sandbox(volume_mounts={"/mnt/shared": volume}) as sandbox:
        sandbox.commands.run(f"ln -s {hutch_e2b.server.state}/first-key /mnt/shared/key")
    assert volume.get_info("/key").type == "symlink"
    with pytest.raises(e2b.NotFoundException):
        volume.read_file("/key")
    with pytest.raises(e2b.NotFoundException):
        volume.read_file("/../../.." + str(hutch_e2b.server.state / "first-key"))
