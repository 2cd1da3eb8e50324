"""Images: what a reference becomes, and that no archive can write anywhere but into its own directory."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.providers.native.boxes import box, engine, out

from hutch.errors import HutchError, Invalid, NotFound
from hutch.providers.native.rootfs import skeleton, unpack
from hutch.providers.native.rootfs.images import Images
from hutch.providers.native.rootfs.root import HOME, WORKSPACE

pytestmark = pytest.mark.slow


def archive(path: Path, *members: tuple[str, dict[str, object]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, facts in members:
            info = tarfile.TarInfo(name)
            data = facts.pop("data", b"")
            assert isinstance(data, bytes)
            info.size = len(data)
            info.mode = 0o755
            for field, value in facts.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    tar = archive(
        tmp_path / "image.tar",
        ("etc", {"type": tarfile.DIRTYPE}),
        ("etc/name", {"data": b"value", "mode": 0o640}),
        ("usr/lib/deep/file", {"data": b"x"}),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc/name"}),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "etc/name"}),
        ("dev/null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("pipe", {"type": tarfile.FIFOTYPE}),
    )
    first = Path(unpack.unpack(str(tar), str(tmp_path / "cache")))
    assert (first / "etc/name").read_text() == "value"
    assert (first / "etc/name").stat().st_mode & 0o777 == 0o640
    assert (first / "hard").stat().st_ino == (first / "etc/name").stat().st_ino
    assert os.readlink(first / "link") == "/etc/name"
    assert (first / "usr/lib/deep/file").exists()
    assert not (first / "dev/null").exists()
    assert unpack.unpack(str(tar), str(tmp_path / "cache")) == str(first)
    assert os.listdir(tmp_path / "cache") == [first.name]


FILLING = """
import sys
sys.path[:0] = {path!r}
from hutch.providers.native.rootfs.prepared import prepared
with prepared({final!r}) as draft:
    open(draft + "/half", "w").close()
    print(draft, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_keeper_was_unpacking_is_swept_and_a_live_ones_is_not(tmp_path: Path) -> None:
    """Kill -9 leaves a draft; `prune` and the next unpacking remove it, never one being filled (lesson 10)."""
    roots = tmp_path / "images"
    roots.mkdir()
    images = Images(str(tmp_path))
    tar = archive(tmp_path / "image.tar", ("file", {"data": b"x"}))
    for clear in (images.sweep, lambda: unpack.unpack(str(tar), str(roots))):
        code = FILLING.format(path=sys.path, final=str(roots / "final"))
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as filling:
            assert filling.stdout is not None
            draft = Path(filling.stdout.readline().decode().strip())
            assert images.sweep() == () and (draft / "half").exists()
            filling.kill()
        assert images.sweep(dry_run=True) == (str(draft),) and (draft / "half").exists()
        clear()
        assert not draft.exists()
    assert len(os.listdir(roots)) == 1, "the one that was unpacked whole"


@pytest.mark.parametrize(
    "members",
    [
        [("../outside", {"data": b"x"})],
        [("a/../../outside", {"data": b"x"})],
        [("out", {"type": tarfile.SYMTYPE, "linkname": ".."}), ("out/outside", {"data": b"x"})],
        [("out", {"type": tarfile.SYMTYPE, "linkname": "/tmp"}), ("out/hutch-outside", {"data": b"x"})],
        [("hard", {"type": tarfile.LNKTYPE, "linkname": "../../secret"})],
        [("d", {"type": tarfile.DIRTYPE}), ("d", {"data": b"file over directory"})],
    ],
)
def test_an_archive_cannot_leave_its_directory(tmp_path: Path, members: list[tuple[str, dict[str, object]]]) -> None:
    """No name, link or hard link leads out; what was unpacked so far is removed."""
    (tmp_path / "secret").write_text("secret")
    tar = archive(tmp_path / "evil.tar", *((name, dict(facts)) for name, facts in members))
    with pytest.raises(HutchError):
        unpack.unpack(str(tar), str(tmp_path / "cache" / "images"))
    assert list((tmp_path / "cache" / "images").iterdir()) == []
    assert not (tmp_path / "cache" / "outside").exists()
    assert not (tmp_path / "outside").exists()
    assert not Path("/tmp/hutch-outside").exists()


def test_absolute_names_land_inside(tmp_path: Path) -> None:
    tar = archive(tmp_path / "image.tar", ("/etc/name", {"data": b"x"}))
    top = Path(unpack.unpack(str(tar), str(tmp_path / "cache")))
    assert (top / "etc/name").read_bytes() == b"x"


def test_what_is_no_archive_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"noise" * 1000)
    with pytest.raises(Invalid, match="not a readable archive"):
        unpack.unpack(str(tmp_path / "noise"), str(tmp_path / "cache"))


async def test_references_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    images = Images(str(tmp_path))
    for reference, kind in (
        ("dir:/nowhere", NotFound), ("dir:relative", NotFound), ("tar:/nowhere", NotFound), ("dir:/", Invalid),
        ("nonsense", Invalid),
    ):  # fmt: skip
        with pytest.raises(kind):
            await images.resolve(reference)
    with pytest.raises(NotFound, match="hutch image pull debian"):
        await images.hold_for_box("oci:debian", "b" * 20, ())


def test_the_machine_s_etc_holds_nothing_secret() -> None:
    content = skeleton.of_machine()
    names = {*content.files, *content.copies, *content.links, *content.copied_links}
    assert all(line.split(b":")[1] == b"*" for line in content.files["etc/shadow"].splitlines())
    for secret in (
        "etc/sudoers",
        "etc/ssh",
        "etc/machine-id",
        "etc/ssl/private",
        "etc/fstab",
    ):
        assert not any(name == secret or name.startswith(f"{secret}/") for name in names), secret
    assert b"user:x:1000:" in content.files["etc/passwd"]
    for line in content.files["etc/passwd"].decode().splitlines():
        _, _, number, _, description, home, _ = line.split(":")
        assert int(number) < 1000 or number in ("1000", "65534")  # the machine's accounts are not shown
        assert description in ("", "root", "user", "nobody")
        assert home in ("/", "/root", "/home/user")


def test_package_sources_with_a_password_are_not_shown(tmp_path: Path) -> None:
    sources = tmp_path / "etc/apt/sources.list.d"
    sources.mkdir(parents=True)
    (sources / "public.list").write_text("deb https://example.org/debian stable main\n")
    (sources / "private.list").write_text("deb https://bob:secret@example.org/debian stable main\n")
    copies = skeleton.of_machine(str(tmp_path)).copies
    assert "etc/apt/sources.list.d/public.list" in copies
    assert "etc/apt/sources.list.d/private.list" not in copies


def test_nothing_lies_below_what_boxes_write_to() -> None:
    """Else no directory in /workspace can be renamed before Linux 6.6: overlay would have to mark it, on a tmpfs."""
    for content in (skeleton.plain(), skeleton.of_machine()):
        assert not {"tmp", "run", "var/tmp", HOME, WORKSPACE}.intersection(content.directories)


def test_a_skeleton_is_made_once_and_named_by_its_content(tmp_path: Path) -> None:
    first = skeleton.make(skeleton.plain(), str(tmp_path))
    assert skeleton.make(skeleton.plain(), str(tmp_path)) == first
    other = skeleton.plain()
    other.files["etc/motd"] = b"hello"
    assert skeleton.make(other, str(tmp_path)) != first


def test_a_skeleton_has_the_machine_s_links_and_notices_a_new_one(tmp_path: Path) -> None:
    """They are not read for its name: there are hundreds, and every keeper asks for it before its first box."""
    place = tmp_path / "machine/etc/alternatives"
    place.mkdir(parents=True)
    (place / "awk").symlink_to("/usr/bin/mawk")
    (place / os.fsdecode(b"odd\xff")).symlink_to("/usr/bin/odd")
    os.utime(place, (0, 0))  # the kernel's clock has ticks, and this test may be done within one
    first = skeleton.make(skeleton.of_machine(str(tmp_path / "machine")), str(tmp_path / "cache"))
    assert os.readlink(f"{first}/etc/alternatives/awk") == "/usr/bin/mawk"
    assert skeleton.make(skeleton.of_machine(str(tmp_path / "machine")), str(tmp_path / "cache")) == first
    (place / "awk").unlink()
    (place / "awk").symlink_to("/usr/bin/gawk")
    second = skeleton.make(skeleton.of_machine(str(tmp_path / "machine")), str(tmp_path / "cache"))
    assert os.readlink(f"{second}/etc/alternatives/awk") == "/usr/bin/gawk"
    assert os.readlink(os.fsencode(second) + b"/etc/alternatives/odd\xff") == b"/usr/bin/odd"


def test_an_image_learns_of_the_box_s_user(tmp_path: Path) -> None:
    """The image's own users stay; its files are read inside it, whatever its links say."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nwww:x:33:33::/:/bin/sh\n")
    (tmp_path / "etc/group").symlink_to("/etc/shadow")
    content = skeleton.over(str(tmp_path))
    assert content.files["etc/passwd"].startswith(b"root:x:0:0::/:/bin/sh\nwww:x:33:")
    assert b"\nuser:x:1000:1000:" in content.files["etc/passwd"]
    assert content.files["etc/group"].decode().count("root:x:0:") == 1


def minimal_root(top: Path) -> Path:
    """A root with one dynamic program and what it needs, as an image somebody unpacked."""
    for name in ("bin", "etc"):
        (top / name).mkdir(parents=True)
    for program in ("/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/touch", "/usr/bin/id", "/usr/bin/stat"):
        _copy(top, program, "bin")
    (top / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    (top / "etc/marker").write_text("of the image")
    return top


def _copy(top: Path, program: str, place: str) -> None:
    shutil.copy(os.path.realpath(program), top / place / os.path.basename(program))
    for word in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split():
        if word.startswith("/"):
            (top / os.path.dirname(word).lstrip("/")).mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(word), top / word.lstrip("/"))


async def test_a_directory_is_an_image(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The image needs no Python: the guest is in memory already. Nothing of the machine's own files is there."""
    top = minimal_root(tmp_path_factory.mktemp("image"))
    top.chmod(0o755)
    async with engine() as native, box(native, image=f"dir:{top}") as made:
        assert await out(made, "cat /etc/marker") == "of the image"
        assert await out(made, "id -un; ls /usr/bin 2>/dev/null") == "user"
        assert await out(made, "touch /workspace/x /tmp/y && ls /workspace") == "x"
        assert "Read-only" in await out(made, "touch /etc/z")


async def test_a_writable_image_is_not_written_to(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Changes go to the box's own layer, as root of the box and, rootless, as the image's owner."""
    top = minimal_root(tmp_path_factory.mktemp("image"))
    top.chmod(0o755)
    user = "root" if os.geteuid() == 0 else "user"
    async with engine() as native:
        async with box(native, image=f"dir:{top}", read_only_root=False) as made:
            assert await out(made, "touch /etc/new /bin/new && ls /etc/new", user=user) == "/etc/new"
        async with box(native, image=f"dir:{top}", read_only_root=False) as made:
            assert "No such file" in await out(made, "ls /etc/new")
    assert not (top / "etc/new").exists()


async def test_an_archive_is_an_image(tmp_path: Path) -> None:
    top = minimal_root(tmp_path / "root")
    with tarfile.open(tmp_path / "image.tar.gz", "w:gz") as tar:
        tar.add(top, arcname=".")
    async with engine() as native, box(native, image=f"tar:{tmp_path}/image.tar.gz") as made:
        owner = 0 if os.geteuid() == 0 else 1000
        assert await out(made, "cat /etc/marker; stat -c :%u /etc/marker") == f"of the image:{owner}"
