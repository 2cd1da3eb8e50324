"""Hostile zip files: each is refused with its reason, and nothing of it stays."""

import io
import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hutch.errors import FileTooLarge, HutchError, Refused
from hutch.skills import content
from hutch.skills.sources import Zip
from hutch.skills.store import SkillStore
from tests.skills.make_skill import entry, good, manifest, zipped

pytestmark = pytest.mark.slow

LINK, DEVICE, PIPE = ((kind | 0o777) << 16 for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO))


def test_a_good_one(tmp_path: Path) -> None:
    store = SkillStore(tmp_path / "skills")
    program = entry("demo/run.sh", external_attr=0o100755 << 16)
    sent = zipped(good(), ("demo/", b""), (program, b"#!/bin/sh\n"), ("__MACOSX/demo/x", b"junk"))
    skill, before = store.install("me", Zip("sent.zip", sent))
    assert (skill.name, before, skill.origin) == ("demo", "", "upload:sent.zip")
    files = {file.path: file.executable for file in store.files("me", "demo")}
    assert files == {"SKILL.md": False, "run.sh": True}


def _patched(data: bytes, flag: int) -> bytes:
    """Set a flag bit in every local and central header."""
    out = bytearray(data)
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (found := data.find(mark, start)) >= 0:
            bits = struct.unpack_from("<H", data, found + at)[0]
            struct.pack_into("<H", out, found + at, bits | flag)
            start = found + 4
    return bytes(out)


def _overlapping() -> bytes:
    """Return two names for the same bytes, which is how a small file becomes terabytes."""
    data = zipped(good(), ("demo/one", b"x" * 100), ("demo/two", b"x" * 100))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        first = archive.getinfo("demo/one").header_offset
    out = bytearray(data)
    central = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", out, central + 42, first)
    return bytes(out)


def _lying() -> bytes:
    """Return an archive from which more comes out than its directory says."""
    data = zipped(good(), ("demo/big", b"\0" * 5000))
    out = bytearray(data)
    for mark, at in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        struct.pack_into("<I", out, data.rindex(mark) + at, 10)
    return bytes(out)


HOSTILE = {
    "slip": (lambda: zipped(good(), ("../escape", b"x")), "leads out"),
    "deep slip": (lambda: zipped(good(), ("demo/a/../../../escape", b"x")), "leads out"),
    "absolute": (lambda: zipped(good(), ("/tmp/escape", b"x")), "leads out"),
    "drive": (lambda: zipped(good(), ("C:evil", b"x")), "characters"),
    "backslash": (lambda: zipped(good(), (entry("demo/a"), b"1")).replace(b"demo/a", b"demo\\a"), "characters"),
    "control": (lambda: zipped(good(), ("demo/\x1b[2J", b"x")), "characters"),
    "link": (lambda: zipped(good(), (entry("demo/link", external_attr=LINK), b"/etc/passwd")), "symbolic link"),
    "device": (lambda: zipped(good(), (entry("demo/null", external_attr=DEVICE), b"")), "special"),
    "pipe": (lambda: zipped(good(), (entry("demo/p", external_attr=PIPE), b"")), "special"),
    "case": (lambda: zipped(good(), ("demo/Read.md", b"1"), ("demo/READ.md", b"2")), "differ"),
    "case of a directory": (lambda: zipped(good(), ("demo/Lib/a", b"1"), ("demo/lib/b", b"2")), "differ only"),
    "composition": (lambda: zipped(good(), ("demo/\u00e9", b"1"), ("demo/e\u0301", b"2")), "differ only"),
    "file and directory": (lambda: zipped(good(), ("demo/a", b"1"), ("demo/a/b", b"2")), "both a file"),
    "bomb": (lambda: zipped(good(), ("demo/zeros", b"\0" * (8 << 20))), "times its packed size"),
    "large file": (lambda: zipped(good(), ("demo/big", b"\0" * (content.MAX_FILE_BYTES + 1))), "may have"),
    "many": (lambda: zipped(good(), *((f"demo/{n}", b"") for n in range(content.MAX_FILES + 1))), "more than"),
    "entries": (lambda: zipped(good(), *((f"demo/d{n}/", b"") for n in range(2 * content.MAX_FILES + 1))), "entries"),
    "depth": (lambda: zipped(good(), ("demo/" + "d/" * 40 + "f", b"x")), "levels deep"),
    "long name": (lambda: zipped(good(), ("demo/" + "n" * 250, b"x")), "longer than"),
    "encrypted": (lambda: _patched(zipped(good()), 1), "encrypted"),
    "method": (lambda: zipped(good(), ("demo/b", b"x" * 50), method=zipfile.ZIP_BZIP2), "deflate"),
    "overlap": (_overlapping, "overlaps"),
    "lie": (_lying, "not a zip|larger than"),
    "no skill": (lambda: zipped(("demo/readme", b"x")), "no SKILL.md"),
    "two skills": (lambda: zipped(good(), ("other/SKILL.md", manifest("other").encode())), "2 skills"),
    "empty": (lambda: b"", "not a zip"),
    "no zip": (lambda: b"PK\x03\x04 nothing", "not a zip"),
    "cut": (lambda: zipped(good(), ("demo/x", os.urandom(5000)))[:-2000], "not a zip"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    make, reason = HOSTILE[name]
    store = SkillStore(tmp_path / "skills")
    with pytest.raises(HutchError, match=reason):
        store.install("me", Zip("sent.zip", make()))
    _nothing_is_left(tmp_path)
    assert store.all("me") == ()


def test_the_same_name_twice(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        data = zipped(good(), ("demo/a", b"1"), ("demo/a", b"2"))
    with pytest.raises(Refused, match="twice"):
        SkillStore(tmp_path / "skills").install("me", Zip("sent.zip", data))
    _nothing_is_left(tmp_path)


def test_a_zip_in_a_zip_stays_a_file(tmp_path: Path) -> None:
    store = SkillStore(tmp_path / "skills")
    inner = zipped(("../../escape", b"x"))
    store.install("me", Zip("sent.zip", zipped(good(), ("demo/inner.zip", inner))))
    assert store.read_file("me", "demo", "inner.zip") == inner


@settings(max_examples=60)
@given(at=st.integers(0, 10_000), bits=st.integers(1, 255))
def test_damaged_archives_are_typed_errors(tmp_path_factory: pytest.TempPathFactory, at: int, bits: int) -> None:
    top = tmp_path_factory.mktemp("damaged")
    data = bytearray(zipped(good(), ("demo/a/b.txt", b"text" * 50), (entry("demo/run"), b"x")))
    data[at % len(data)] ^= bits
    store = SkillStore(top / "skills")
    try:
        store.install("me", Zip("sent.zip", bytes(data)))
    except HutchError:
        _nothing_is_left(top)
    assert [path for path in top.rglob("*") if path.is_symlink()] == []
    assert {path.name for path in top.iterdir()} <= {"skills"}


def _nothing_is_left(top: Path) -> None:
    left = [path for path in top.rglob("*") if not path.is_dir() and path.name != "lock"]
    assert left == []
    assert not Path("/tmp/escape").exists()


def test_a_directory_of_a_million_entries_is_not_even_read(tmp_path: Path) -> None:
    """Each entry costs its sender 50 bytes and its reader an object."""
    many = zipped(*((f"{number}", b"") for number in range(4001)), method=zipfile.ZIP_STORED)
    with pytest.raises(FileTooLarge, match="4001 entries"):
        SkillStore(tmp_path / "skills").install("me", Zip("sent.zip", many))
