"""Files that say they are exported boxes and are made to hurt: nothing outside is read or written, and memory is
bounded (lesson 30)."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hutch import Hutch
from hutch.errors import Invalid, QuotaExceeded, Refused
from hutch.keeper.archives import bundles, export

pytestmark = pytest.mark.slow

MANIFEST = {
    "version": 1, "box_id": "x", "provider": "native", "image": "host", "exported_at": 0, "spec": {}, "parts": [],
}  # fmt: skip


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"") -> tuple[Any, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode, made.size = kind, link, 0o755, len(content)
    return made, content


def packed(path: Path, *entries: tuple[Any, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for each, content in entries:
            tar.addfile(each, io.BytesIO(content))
    return path


def manifest(**changed: object) -> tuple[Any, bytes]:
    return entry("hutch.json", content=json.dumps(MANIFEST | changed).encode())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "outside").mkdir()
    return tmp_path


def test_no_link_is_made_through_a_link(place: Path) -> None:
    """The first leads out of the place, the second would be made where it leads."""
    through = entry("workspace/out", tarfile.SYMTYPE, str(place / "outside"))
    for name in ("workspace/out/link", "workspace/out/deep/link"):
        bad = packed(place / "bad", through, entry(name, tarfile.SYMTYPE, "x"))
        with pytest.raises(Invalid):
            bundles.unpack(bad, place / "in")
    assert not list((place / "outside").iterdir())


@pytest.mark.parametrize("name", ["workspace", "home", "hutch.json", "system.tar"])
def test_no_part_is_a_link(place: Path, name: str) -> None:
    """A reader of the part would read what it leads to."""
    bad = packed(place / "bad", entry(name, tarfile.SYMTYPE, str(place / "outside")))
    with pytest.raises(Invalid):
        bundles.unpack(bad, place / "in")


@pytest.mark.parametrize(
    "entries",
    [
        [entry("hutch.json", tarfile.DIRTYPE)],
        [entry("system.tar/deep", content=b"x")],
        [entry("workspace", content=b"x")],
        [entry("workspace/a", tarfile.DIRTYPE), entry("workspace/a", tarfile.SYMTYPE, "x")],
        [entry("workspace/a", tarfile.SYMTYPE, "x"), entry("workspace/a", tarfile.SYMTYPE, "y")],
    ],
)
def test_forms_that_no_export_has(place: Path, entries: Any) -> None:
    with pytest.raises(Invalid):
        bundles.unpack(packed(place / "bad", *entries), place / "in")


def test_sizes_that_lead_back_end(place: Path) -> None:
    """A negative size would make a reader go round for ever, and give more room instead of less."""
    made, _ = entry("workspace/a")
    head = bytearray(made.tobuf(tarfile.GNU_FORMAT))
    head[124:136] = (-1024).to_bytes(12, "big", signed=True)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (place / "bad").write_bytes(gzip.compress(bytes(head) + bytes(1024)))
    with pytest.raises(Invalid):
        bundles.unpack(place / "bad", place / "in")


def test_what_is_damaged_inside_is_refused(place: Path) -> None:
    """Also behind the last entry: the checksum is read."""
    good = packed(place / "good", entry("workspace/a", content=bytes(range(256)) * 4000)).read_bytes()
    for at in (len(good) // 2, len(good) - 6):
        damaged = bytearray(good)
        damaged[at] ^= 0xFF
        (place / "bad").write_bytes(damaged)
        with pytest.raises(Invalid):
            bundles.unpack(place / "bad", place / "in")
        for made in (place / "in/workspace").glob("*"):
            made.unlink()


def test_a_header_is_no_way_into_memory(place: Path) -> None:
    """A megabyte that unpacks to a header of one gigabyte, read by a process that has less."""
    made, _ = entry("././@PaxHeader", tarfile.XHDTYPE)
    made.size = 1 << 30
    with gzip.open(place / "bad", "wb", compresslevel=1) as out:
        out.write(made.tobuf(tarfile.GNU_FORMAT))
        for _ in range(1 << 6):
            out.write(bytes(1 << 24))
    assert _unpacked_by_a_small_process(place) == "Invalid"


def test_many_entries_are_not_all_held(place: Path) -> None:
    """Each needs little; together they must not need more than the process has."""
    made, _ = entry("workspace", tarfile.DIRTYPE)
    made.pax_headers = {"comment": "x" * 40_000}
    with gzip.open(place / "bad", "wb", compresslevel=1) as out:
        out.write(made.tobuf(tarfile.PAX_FORMAT) * 6_000 + bytes(1024))
    assert _unpacked_by_a_small_process(place) == "fine"


def _unpacked_by_a_small_process(place: Path) -> str:
    script = (
        "import resource, sys; from pathlib import Path; from hutch.errors import HutchError\n"
        "from hutch.keeper.archives import bundles\n"
        "resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))\n"
        "try: bundles.unpack(Path(sys.argv[1]), Path(sys.argv[2])); print('fine')\n"
        "except HutchError as error: print(type(error).__name__)\n"
    )
    command = [sys.executable, "-c", script, str(place / "bad"), str(place / "in")]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr[-300:]


def test_headers_count_for_what_it_may_become(place: Path) -> None:
    made, _ = entry("workspace", tarfile.DIRTYPE)
    with gzip.open(place / "bad", "wb") as out:
        out.write(made.tobuf(tarfile.GNU_FORMAT) * 16384 + bytes(1024))
    with pytest.raises(QuotaExceeded):
        bundles.unpack(place / "bad", place / "in", most=1 << 20)


@pytest.mark.parametrize("part", ["outside", "../outside", "{place}/outside", "hutch.json"])
async def test_a_part_names_nothing_of_the_machine(place: Path, part: str) -> None:
    """What a manifest calls a part is read into the box, where the caller sees it."""
    (place / "outside/secret").write_text("hush")
    bad = packed(place / "bad", manifest(parts=[part.format(place=place)]))
    async with Hutch() as hutch:
        with pytest.raises(Invalid):
            await export.import_box(hutch.create, bad)
        assert await hutch.boxes() == ()


@pytest.mark.parametrize(
    "content",
    [b'{"spec":' * 50_000, json.dumps(MANIFEST | {"notes": ["x" * (2 << 20)]}).encode()],
    ids=["deep", "long"],
)
async def test_a_manifest_is_short_and_shallow(place: Path, content: bytes) -> None:
    async with Hutch() as hutch:
        with pytest.raises(Invalid):
            await export.import_box(hutch.create, packed(place / "bad", entry("hutch.json", content=content)))


def test_a_list_of_segments_without_an_end(place: Path) -> None:
    """Class: a length that is read into memory before it is believed. A sparse file's list of segments is: 64 MB of
    it, from a few kilobytes, must not become lists of numbers."""
    listed = b"33554432\n" + b"1\n" * (32 << 20)
    made = tarfile.TarInfo("workspace/hollow")
    made.size = len(listed)
    made.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
    with pytest.raises(Invalid):
        bundles.unpack(packed(place / "bad", (made, listed)), place / "in")


@pytest.mark.parametrize("segments", ["2\n5\n5\n0\n5\n", "1\n8\n5\n", "1\n0\n-1\n"])
def test_segments_that_make_no_sense(place: Path, segments: str) -> None:
    """Out of order, beyond the end, negative."""
    listed = segments.encode().ljust(512, b"\0") + bytes(10)
    made = tarfile.TarInfo("workspace/hollow")
    made.size = len(listed)
    made.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "10"}
    with pytest.raises(Invalid):
        bundles.unpack(packed(place / "bad", (made, listed)), place / "in")


async def test_a_file_opens_nothing_of_the_host(place: Path) -> None:
    """A box may have written the file (lesson 44). Mounts, a host workspace and private networks are not carried, and a
    note says so; the control names the mount beside the same file."""
    (place / "outside" / "secret").write_text("of the host")
    mounts = [{"source": f"{place}/outside", "target": "/mnt/out", "mode": "rw"}]
    spec = {"mounts": mounts, "workspace": {"source": f"{place}/outside"}, "allow_private": ["10.0.0.0/8"]}
    bad = packed(place / "bad", manifest(spec=spec))
    async with Hutch(mount_roots=[str(place)], store="memory") as hutch:
        box = await hutch.import_box(bad)
        assert box.spec.mounts == () and box.spec.workspace.source == "own" and box.spec.allow_private == ()
        assert sum("not carried" in each for each in box.notes) == 3, box.notes
        assert not (await box.exec("ls /mnt/out/secret secret")).ok
        await box.destroy()
        box, _ = await export.import_box(hutch.create, bad, mounts=mounts)
        assert (await box.exec("cat /mnt/out/secret")).stdout == "of the host"
        await box.destroy()


async def test_a_file_does_not_choose_the_bare_host(place: Path) -> None:
    """The provider `host` is asked for by name, and a file's word is not that (lesson 44)."""
    bad = packed(place / "bad", manifest(provider="host"))
    async with Hutch(store="memory") as hutch:
        with pytest.raises(Refused, match="isolates nothing"):
            await hutch.import_box(bad)
