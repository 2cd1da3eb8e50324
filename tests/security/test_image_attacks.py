"""Attacks through what boxes are made of and leave behind: images, archives, kept stores, set-user-id files."""

import io
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from tests.security.attacks import Arena, Sentinel

from hutch.errors import HutchError, Unsupported


def listing(top: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.lstat().st_mode, path.lstat().st_mtime_ns) for path in (top, *top.rglob("*")))


def test_writes_never_reach_the_image(arena: Arena, image: Path) -> None:
    """Threat: a writable root writes the image that all boxes share."""
    before = listing(image)
    change = "echo changed > /etc/note; rm -rf /var; mkdir /made; ln -s x /bin/y; echo done"
    with arena.box(image=f"dir:{image}") as box:
        box.exec(change)
        assert box.files.read("/etc/note") == b"image", "a read-only root is not changed even inside"
    assert listing(image) == before
    with arena.box(mounts=[f"{image}:/mnt:rw"]) as box:
        box.exec("echo changed > /mnt/etc/note")
    after = listing(image)
    assert after != before, "control: the comparison notices a change"
    try:
        with arena.box(image=f"dir:{image}", read_only_root=False) as box:
            assert "done" in box.exec(change).stdout
            assert box.files.read("/etc/note") == b"changed\n", "control: inside, the change is there"
    except Unsupported as error:
        pytest.skip(f"needs a writable root: {error}")
    assert listing(image) == after


def test_a_kept_store_leads_nowhere(arena: Arena, image: Path, scratch: Path, rootless: bool) -> None:
    """Threat: a persistent box puts links to host directories where the engine will make directories next time.

    Followed while the root is built, before the pivot, they would lead to the host's own files.
    """
    victim = scratch / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    with arena.opened(state="kept") as hutch:
        try:
            box = hutch.create(image=f"dir:{image}", read_only_root=False, retention="persistent")
        except Unsupported as error:
            pytest.skip(f"needs a writable root: {error}")
        links = f"rm -rf /home /var; ln -s {victim} /home && ln -s {victim} /var && echo done"
        done = box.exec(links, user=None if rootless else "root")
        assert done.stdout == "done\n", done.stderr
        name = box.id
    with arena.opened(state="kept") as hutch:
        try:
            hutch.attach(name, takeover=True).exec("true")
        except HutchError as error:
            assert "symbolic link" in str(error)
        assert list(victim.iterdir()) == []
        hutch.destroy(name)
    assert list(victim.iterdir()) == []
    link = scratch / "link"
    link.symlink_to(victim)
    (link / "user").mkdir()  # control: a program that follows the link makes a directory of the host
    assert [path.name for path in victim.iterdir()] == ["user"]


def test_destroying_a_store_follows_no_link(arena: Arena, sentinel: Sentinel) -> None:
    """Threat: the host removes a tree that the box has filled, and follows a link out of it."""
    with arena.opened(state="kept") as hutch:
        box = hutch.create(retention="persistent")
        box.exec(["ln", "-s", str(sentinel.directory), "link"])
        box.exec(f"mkdir -p deep/down && ln -s {sentinel.file} deep/down/file && chmod 000 deep/down deep")
        place = next((arena.place / "kept").rglob(box.id), None)
        assert place is not None
        links = [path for path in place.rglob("link") if path.is_symlink()]
        assert [link.resolve() for link in links] == [sentinel.directory], "control: on the host the link leads there"
        stores = list((arena.place / "kept").rglob(box.id))
        box.destroy()
        assert not any(path.exists() for path in stores)
    assert sentinel.unchanged()


def test_set_user_id_files_on_the_host(arena: Arena, scratch: Path, rootless: bool) -> None:
    """Threat: a box leaves a set-user-id file on the host, where nosuid does not hold, for a local user to run.

    In a kept store it has a real owner but nobody else can get there; copied out it has lost the bit.
    """
    made = "cp /usr/bin/id copied && chmod 4755 copied && stat -c %a copied"
    with arena.opened(state="kept") as hutch:
        box = hutch.create(retention="persistent")
        assert box.exec(made).stdout == "4755\n"
        assert box.exec(f"cd; {made}").stdout == "4755\n"
        box.files.copy_out("copied", scratch / "copied")
        assert (scratch / "copied").stat().st_mode & 0o7000 == 0
        left = list((arena.place / "kept").rglob(f"{box.id}/**/copied"))
        assert [path.stat().st_mode & 0o7000 for path in left] == [0o4000] * 2, "control: there they are"
        if rootless:
            return  # nobody else to be
        for path in left:
            assert not reachable_by_others(path), path
        box.destroy()
    (scratch / "control").write_bytes(b"")
    assert reachable_by_others(scratch / "control")


def test_set_user_id_files_of_an_archive(arena: Arena, scratch: Path) -> None:
    """Threat: as above, from an archive that is unpacked as an image."""
    archive = scratch / "image.tar"
    with tarfile.open(archive, "w") as tar:
        add(tar, tarfile.TarInfo("bin/attack"), b"x", mode=0o4755)
    with arena.box(image=f"tar:{archive}") as box:
        assert box.files.read("/bin/attack") == b"x"
    unpacked = list((arena.place / "sound").rglob("bin/attack"))
    assert len(unpacked) == 1
    assert not reachable_by_others(unpacked[0])


def reachable_by_others(path: Path) -> bool:
    """Whether a user who owns nothing could open it. Judged by modes: these tests may have no second user."""
    while path.parent != path:
        if not path.stat().st_mode & 0o001 and path.is_dir():
            return False
        path = path.parent
    return True


def add(tar: tarfile.TarFile, member: tarfile.TarInfo, data: bytes = b"", mode: int = 0o644) -> None:
    member.size, member.mode = len(data), mode
    tar.addfile(member, io.BytesIO(data))


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_hostile_archives(arena: Arena, sentinel: Sentinel, scratch: Path) -> None:
    """Threat: an image whose names, links or hard links lead out of the directory it is unpacked into."""
    outside = str(sentinel.directory)
    climbing = "../" * 12 + outside.lstrip("/")
    members: dict[str, list[tarfile.TarInfo]] = {
        "absolute": [tarfile.TarInfo(str(sentinel.file))],
        "climbing": [tarfile.TarInfo(f"{climbing}/{sentinel.NAME}")],
        "through a link": [link("way", outside, tarfile.SYMTYPE), tarfile.TarInfo(f"way/{sentinel.NAME}")],
        "over a link": [link("file", str(sentinel.file), tarfile.SYMTYPE), tarfile.TarInfo("file")],
        "hard link": [link("file", str(sentinel.file), tarfile.LNKTYPE), tarfile.TarInfo("file")],
        "climbing hard link": [link("file", f"{climbing}/{sentinel.NAME}", tarfile.LNKTYPE)],
        "etc as a link": [link("etc", outside, tarfile.SYMTYPE)],
    }
    for number, (name, entries) in enumerate(members.items()):
        archive = scratch / f"{number}.tar"
        with tarfile.open(archive, "w") as tar:
            for entry in entries:
                add(tar, entry, b"changed" if entry.isreg() else b"")
        with suppress(HutchError), arena.box(image=f"tar:{archive}") as box:
            for path in ("file", "way", f"way/{sentinel.NAME}", str(sentinel.file), f"etc/{sentinel.NAME}"):
                with suppress(HutchError):
                    assert sentinel.secret.encode() not in box.files.read(f"/{path.lstrip('/')}"), name
        assert sentinel.unchanged(), name
    # Control: a program that trusts the archive's first name writes over the sentinel.
    with tarfile.open(scratch / "0.tar") as tar:
        Path("/", tar.getmembers()[0].name).write_bytes(b"changed")
    assert not sentinel.unchanged()
    sentinel.changed_on_purpose()
