"""The root's builder against hostile names: links in images and in stores, sources that were exchanged."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.providers.native.boxes import box, engine, make, order, out, run
from tests.providers.native.test_images import minimal_root

from hutch.errors import EngineError, HutchError
from hutch.linux import identity
from hutch.model.spec import Mount, MountMode, Retention, Workspace
from hutch.providers.native.rootfs import root


def host_mount(path: Path, **changes: object) -> root.HostMount:
    facts = os.stat(path)
    values = {"source": str(path), "target": "/x", "writable": False, "device": facts.st_dev, "inode": facts.st_ino}
    return root.HostMount(**{**values, **changes})  # type: ignore[arg-type]


def test_a_source_that_was_exchanged_is_refused(tmp_path: Path) -> None:
    """Between the check of policy and the mount somebody puts another directory there."""
    (tmp_path / "allowed").mkdir()
    allowed = host_mount(tmp_path / "allowed")
    (tmp_path / "allowed").rename(tmp_path / "moved")
    (tmp_path / "allowed").mkdir()
    with pytest.raises(PermissionError, match="replaced"):
        root.detach_host_mount(allowed, None)


def test_a_source_that_became_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    allowed = host_mount(tmp_path / "allowed")
    (tmp_path / "allowed").rename(tmp_path / "moved")
    (tmp_path / "allowed").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="symbolic links"):
        root.detach_host_mount(allowed, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: an ordinary user's mounts keep their ids")
def test_the_owner_is_that_of_the_file_which_is_mounted(tmp_path: Path) -> None:
    """A user who may rename on the path must not choose another owner for it: root's id would come into the box."""
    place = tmp_path / "allowed"
    place.mkdir()
    os.chown(place, 4242, 4242)
    allowed = host_mount(place, writable=True)

    @contextmanager
    def exchanging(facts: os.stat_result) -> Iterator[int]:
        place.rename(tmp_path / "moved")
        place.symlink_to("/etc")
        with identity.owner_namespace(facts, slot=0) as userns:
            yield userns

    tree = root.detach_host_mount(allowed, exchanging)
    try:
        assert os.fstat(tree).st_ino == allowed.inode
        assert os.fstat(tree).st_uid == identity.base(0) + identity.USER, "the owner's id, and nobody else's, is mapped"
    finally:
        os.close(tree)


def test_layers_keep_their_ids_where_overlay_wants_it_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.19 overlay refuses idmapped layers: as root no box could be made. Binds are mapped as ever."""
    image, bound = tmp_path / "image", tmp_path / "bound"
    image.mkdir()
    bound.mkdir()
    template = root.BoxTemplate((str(image),), ((str(bound), "usr"),), (), True, True, "off", None)
    asked: list[int | None] = []
    monkeypatch.setattr(root, "LAYERS_TAKE_IDS", False)
    monkeypatch.setattr(root, "open_tree", lambda directory, path, flags: os.open(path, os.O_PATH))
    monkeypatch.setattr(root, "restrict", lambda tree, *, writable, userns: asked.append(userns) or tree)
    for source in root.template_sources(template):
        os.close(root.detach(source, 77))
    assert asked == [None, 77]


async def test_a_target_behind_a_link_stays_inside(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An image's absolute link means what it means inside."""
    top = minimal_root(tmp_path_factory.mktemp("image"))
    top.chmod(0o755)
    (top / "srv").mkdir()
    (top / "data").symlink_to("/srv")
    source = tmp_path_factory.mktemp("source")
    source.chmod(0o755)
    (source / "file").write_text("content")
    mounts = (Mount(source=str(source), target="/data/in"),)
    async with engine() as native, box(native, image=f"dir:{top}", mounts=mounts) as made:
        assert await out(made, "cat /srv/in/file") == "content"
    assert not Path("/srv/in").exists()


async def test_a_link_in_place_of_a_mount_point_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """An image whose /proc and /dev are links to the host's /etc: our skeleton lies above it."""
    top = minimal_root(tmp_path_factory.mktemp("image"))
    top.chmod(0o755)
    (top / "proc").symlink_to("/etc")
    (top / "dev").symlink_to("/../../etc")
    async with engine() as native, box(native, image=f"dir:{top}") as made:
        assert "self" in await out(made, "ls /proc")
        assert "null" in await out(made, "ls /dev")


async def test_a_persistent_box_cannot_trick_its_next_life(rootless: bool) -> None:
    """Its root exchanges a directory that the builder mounts on for a link out of the box."""
    if rootless:
        pytest.skip("a writable root over the machine's files needs root")
    async with engine() as native:
        wanted = order(retention=Retention.PERSISTENT, read_only_root=False)
        made = await native.create(wanted, native.plan(wanted))
        trick = "rmdir /srv; ln -s /etc /srv; ln -sf /tmp/x /etc/hostname; rm -rf /mnt; ln -s / /mnt"
        await run(made, trick, user="root")
        await made.close()
        await native.stop(made.record)
        before = sorted(os.listdir("/etc"))
        made = await native.restore(wanted, made.record)
        assert await out(made, "readlink /srv") == "/etc"
        await made.close()
        await native.destroy(made.record)
        assert sorted(os.listdir("/etc")) == before


async def test_a_store_with_links_for_mount_points_is_refused() -> None:
    """What a former life could not do from inside (its /etc/hosts is a mount), a damaged store may hold."""
    async with engine() as native:
        wanted = order(retention=Retention.PERSISTENT)
        planned = native.plan(wanted)
        made = await native.create(wanted, planned)
        await made.close()
        await native.stop(made.record)
        store = Path(str(planned.data["store"]))
        (store / "0/workspace").rmdir()
        (store / "0/workspace").symlink_to("/etc")
        with pytest.raises(EngineError, match="symbolic link") as caught:
            await native.restore(wanted, made.record)
        assert caught.value.details["step"] == "build the root"
        assert (store / "0").exists()  # a failed restore keeps the files
        await native.destroy(made.record)
        assert not store.exists()


async def test_a_mount_below_a_mount_is_read_only_too(tmp_path_factory: pytest.TempPathFactory, rootless: bool) -> None:
    """Read-only means the whole tree, also what the host has mounted below."""
    async with engine() as native:
        async with box(native, mounts=(Mount(source="/dev", target="/mnt/dev"),)) as made:
            assert "Read-only" in await out(made, "touch /mnt/dev/shm/x")
            assert (await run(made, "echo x > /mnt/dev/null")).exit_code != 0  # nodev


async def test_a_nonsensical_target_is_refused() -> None:
    async with engine() as native:
        for target in ("/", "relative", "/sys", "/dev/x", "/../proc"):
            with pytest.raises(HutchError):
                await make(native, mounts=(Mount(source="/usr/share", target=target, mode=MountMode.RO),))


@pytest.mark.parametrize("owner", [0, 1000, 4321])
async def test_a_mount_inside_a_workspace_of_the_machine(tmp_path_factory: pytest.TempPathFactory, owner: int) -> None:
    """A directory and a single file below a workspace that is a directory of the host or a volume. Its owner alone
    is known in the box, so that the mount points have to be made as that one (B11)."""
    top = tmp_path_factory.mktemp("places")
    places = [top, top / "workspace", top / "data"]
    for place in places[1:]:
        place.mkdir()
    if os.geteuid() == 0:
        os.chown(top / "workspace", owner, owner)
    for place in places:
        place.chmod(0o755)
    (top / "data/file").write_text("content")
    mounts = (
        Mount(source=str(top / "data"), target="/workspace/deep/data"),
        Mount(source=str(top / "data/file"), target="/workspace/alone"),
    )
    workspace = Workspace(source=str(top / "workspace"), mode=MountMode.RW)
    async with engine() as native, box(native, workspace=workspace, mounts=mounts) as made:
        assert await out(made, "cat deep/data/file alone; touch deep/own; stat -c %U deep/own") == "contentcontentuser"
    found = {(top / "workspace" / name).stat().st_uid for name in ("deep", "deep/own", "alone")}
    assert found == {(top / "workspace").stat().st_uid}
