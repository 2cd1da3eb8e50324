"""The store: versions by content, exact names, pins, and recovery from failures."""

import asyncio
import io
import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from hutch.errors import Conflict, FileMissing, HutchError, Invalid, NotFound, Refused
from hutch.model.skills import EVERY_SKILL
from hutch.skills import content, sources
from hutch.skills.sources import Directory, Zip
from hutch.skills.store import SkillStore
from tests.skills.make_skill import manifest, skill

ME, OTHER = "me", "other"


@pytest.fixture
def store(tmp_path: Path) -> SkillStore:
    return SkillStore(tmp_path / "store")


def test_versions_by_content(store: SkillStore, tmp_path: Path) -> None:
    """The same content is the same version, whatever its owner, times or modes: no duplicates (lesson 40)."""
    place = skill(tmp_path, a="1", b__c="#!/bin/sh\n")
    first, before = store.install(ME, Directory(str(place)))
    assert (before, first.versions, first.files) == ("", 1, 3)
    os.utime(place / "a", (1, 1))
    (place / "a").chmod(0o600)
    (place / "empty").mkdir()
    again, before = store.install(ME, Directory(str(place)))
    assert (again.digest, before, again.versions) == (first.digest, first.digest, 1)
    (place / "a").chmod(0o755)
    second, _ = store.install(ME, Directory(str(place)))
    assert (second.digest != first.digest, second.versions) == (True, 2)
    assert [version.active for version in store.versions(ME, "demo")] == [True, False]
    assert store.get(ME, "demo").digest == second.digest
    assert store.all(OTHER) == ()
    back, _ = store.rollback(ME, "demo")
    assert back.digest == first.digest
    with pytest.raises(Conflict, match="no version before"):
        store.rollback(ME, "demo")
    assert store.rollback(ME, "demo", second.digest[:8])[0].digest == second.digest
    with pytest.raises(NotFound):
        store.rollback(ME, "demo", "0" * 12)


def test_names_are_exact(store: SkillStore, tmp_path: Path) -> None:
    """Deleting one skill does not delete another with a similar name (lesson 40)."""
    for name in ("pdf", "pdf-tools", "pdf2", "a-pdf"):
        store.install(ME, Directory(str(skill(tmp_path, name, x=name))))
    store.view(ME, EVERY_SKILL)
    store.remove(ME, "pdf")
    assert [each.name for each in store.all(ME)] == ["a-pdf", "pdf-tools", "pdf2"]
    assert sorted(os.listdir(store.view(ME, EVERY_SKILL))) == ["a-pdf", "pdf-tools", "pdf2"]
    assert store.read_file(ME, "pdf-tools", "x") == b"pdf-tools"
    for wrong in ("../me", "pdf*", "PDF-tools", "pdf-tools/", ""):
        with pytest.raises(Invalid):
            store.remove(ME, wrong)
    with pytest.raises(NotFound):
        store.remove(ME, "pdf")


def test_pins(store: SkillStore, tmp_path: Path) -> None:
    place = skill(tmp_path)
    first, _ = store.install(ME, Directory(str(place)))
    store.pin(ME, "demo")
    (place / "new").write_text("x")
    assert any("pinned" in warning for warning in store.preview(ME, Directory(str(place))).warnings)
    for change in (
        lambda: store.install(ME, Directory(str(place))),
        lambda: store.upgrade(ME, "demo"),
        lambda: store.change_files(ME, "demo", {"x": b""}),
        lambda: store.rollback(ME, "demo"),
    ):
        with pytest.raises(Conflict, match="pinned"):
            change()
    assert store.get(ME, "demo").digest == first.digest
    store.unpin(ME, "demo")
    second, _ = store.upgrade(ME, "demo")
    assert second.digest != first.digest
    assert store.pin(ME, "demo", first.digest[:12]).digest == first.digest


def test_a_preview_says_what_would_change_and_leaves_nothing(store: SkillStore, tmp_path: Path) -> None:
    place = skill(tmp_path, a="1", b="2")
    found = store.preview(ME, Directory(str(place)))
    assert (found.replaces, found.changes, [file.path for file in found.files]) == ("", (), ["SKILL.md", "a", "b"])
    assert store.all(ME) == () and not list(tmp_path.glob("store/packages/*"))
    installed, _ = store.install(ME, Directory(str(place)), digest=found.digest)
    (place / "a").write_text("changed")
    (place / "b").unlink()
    (place / "c").write_text("new")
    found = store.preview(ME, Directory(str(place)))
    assert found.replaces == installed.digest
    assert [(change.path, change.kind) for change in found.changes] == [
        ("a", "changed"), ("b", "removed"), ("c", "added")
    ]  # fmt: skip
    with pytest.raises(Conflict, match="changed since"):
        store.install(ME, Directory(str(place)), digest=installed.digest)


def test_of_simultaneous_edits_one_wins_and_the_others_fail(store: SkillStore, tmp_path: Path) -> None:
    """However close together writers come, none loses what another has written."""
    first, _ = store.install(ME, Directory(str(skill(tmp_path))))
    together = Barrier(4)

    def edit(name: str) -> str:
        together.wait()
        try:
            return store.change_files(ME, "demo", {name: b"x"}, expect=first.digest)[0].digest
        except Conflict:
            return ""

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(edit, "abcd"))
    assert len([digest for digest in done if digest]) == 1
    assert store.get(ME, "demo").digest in done
    assert len(store.files(ME, "demo")) == 2


def test_edits_keep_everything_else(store: SkillStore, tmp_path: Path) -> None:
    """Unknown front matter, comments and line ends survive every edit (lesson 40)."""
    text = "---\r\n# why\r\nname: demo\r\ndescription: d\r\nx-mine: [1, 2] # keep\r\n---\r\nbody\r\n"
    place = skill(tmp_path, run="#!/bin/sh\n")
    (place / "SKILL.md").write_bytes(text.encode())
    first, _ = store.install(ME, Directory(str(place)))
    second, before = store.change_files(ME, "demo", {"docs/a.md": b"new"}, expect=first.digest)
    assert before == first.digest
    assert store.read_file(ME, "demo", "SKILL.md") == text.encode()
    assert {file.path: file.executable for file in store.files(ME, "demo")} == {
        "SKILL.md": False, "docs/a.md": False, "run": True
    }  # fmt: skip
    with pytest.raises(Conflict, match="is now at"):
        store.change_files(ME, "demo", {"a": b""}, expect=first.digest)
    third, _ = store.change_files(ME, "demo", {"docs/a.md": None})
    assert third.digest == first.digest
    for path in ("../x", "/etc/x", "a/../../x", ".deps/x", "a\\b"):
        with pytest.raises(Refused):
            store.change_files(ME, "demo", {path: b""})
    with pytest.raises(FileMissing):
        store.change_files(ME, "demo", {"none": None})
    with pytest.raises(Invalid):
        store.change_files(ME, "demo", {"SKILL.md": None})
    with pytest.raises(Invalid, match="not demo"):
        store.change_files(ME, "demo", {"SKILL.md": manifest("another").encode()})
    assert second.digest != first.digest


def test_an_export_is_the_same_bytes_and_comes_back(store: SkillStore, tmp_path: Path) -> None:
    place = skill(tmp_path, a__b="1", run="#!/bin/sh\n")
    first, _ = store.install(ME, Directory(str(place)))
    data = store.export(ME, "demo")
    os.utime(place / "SKILL.md", (1, 1))
    assert SkillStore(tmp_path / "second").install(OTHER, Zip("x", data))[0].digest == first.digest
    store.install(OTHER, Directory(str(place)))
    assert store.export(OTHER, "demo") == data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist() == ["demo/SKILL.md", "demo/a/b", "demo/run"]


def test_a_package_that_is_gone_is_dropped(store: SkillStore, tmp_path: Path) -> None:
    """A stale entry (its directory is gone) is removed with a warning, or an older version takes over (B38)."""
    place = skill(tmp_path)
    first, _ = store.install(ME, Directory(str(place)))
    (place / "b").write_text("x")
    second, _ = store.install(ME, Directory(str(place)))
    store.install(ME, Directory(str(skill(tmp_path, "other"))))
    shutil.rmtree(tmp_path / "store" / "packages" / second.digest)
    assert [each.digest for each in store.all(ME) if each.name == "demo"] == [first.digest]
    shutil.rmtree(tmp_path / "store" / "packages" / first.digest / "content")
    assert [each.name for each in store.all(ME)] == ["other"]
    with pytest.raises(NotFound):
        store.get(ME, "demo")
    assert store.install(ME, Directory(str(place)))[0].digest == second.digest


def test_a_list_is_read_again_when_another_process_changes_it(store: SkillStore, tmp_path: Path) -> None:
    """The cached list is reloaded on change (B38)."""
    another = SkillStore(tmp_path / "store")
    store.install(ME, Directory(str(skill(tmp_path))))
    assert len(another.all(ME)) == 1
    store.change_files(ME, "demo", {"x": b"1"})
    assert another.get(ME, "demo").digest == store.get(ME, "demo").digest
    store.remove(ME, "demo")
    assert another.all(ME) == ()


def test_unused_packages_are_dropped_and_shared_ones_stay(store: SkillStore, tmp_path: Path) -> None:
    place = str(skill(tmp_path))
    digest = store.install(ME, Directory(place))[0].digest
    store.install(OTHER, Directory(place))
    store.remove(ME, "demo")
    assert store.get(OTHER, "demo").digest == digest
    store.remove(OTHER, "demo")
    assert os.listdir(tmp_path / "store" / "packages") == []


def test_groups(store: SkillStore, tmp_path: Path) -> None:
    """A pipeline's set of skills may name some that come later (B12)."""
    store.install(ME, Directory(str(skill(tmp_path, "one"))))
    store.bind(ME, "pipeline", ("one", "later"))
    view = store.view(ME, "pipeline")
    assert os.listdir(view) == ["one"]
    store.install(ME, Directory(str(skill(tmp_path, "later"))))
    store.install(ME, Directory(str(skill(tmp_path, "unbound"))))
    assert sorted(os.listdir(view)) == ["later", "one"]
    store.bind(ME, "pipeline", ("unbound",))
    assert os.listdir(view) == ["unbound"]
    assert [binding.group for binding in store.bindings(ME)] == ["pipeline"]
    store.bind(ME, "pipeline", ())
    assert (os.listdir(view), store.bindings(ME)) == ([], ())
    for wrong in ("all", "none", "box-1", "../x", ""):
        with pytest.raises(Invalid):
            store.bind(ME, wrong, ("one",))


@pytest.mark.parametrize("kind", ["link", "link to a directory", "hard link", "pipe", "not UTF-8", "deep", "large"])
def test_directories_with_more_than_files_are_refused(store: SkillStore, tmp_path: Path, kind: str) -> None:
    place = skill(tmp_path)
    if kind == "link":
        (place / "x").symlink_to("/etc/passwd")
    elif kind == "link to a directory":
        (place / "x").symlink_to("/etc")
    elif kind == "hard link":
        (tmp_path / "secret").write_text("x")
        os.link(tmp_path / "secret", place / "x")
    elif kind == "pipe":
        os.mkfifo(place / "x")
    elif kind == "not UTF-8":
        Path(os.fsdecode(os.fsencode(place) + b"/\xff")).write_text("x")
    elif kind == "deep":
        (place / "/".join("d" * 20)).mkdir(parents=True)
    else:
        with (place / "x").open("wb") as file:
            file.truncate(content.MAX_FILE_BYTES + 1)
    with pytest.raises(HutchError):
        store.install(ME, Directory(str(place)))
    assert not list(tmp_path.glob("store/packages/*")) and not list(tmp_path.glob("store/staging/*"))
    (found,) = content.scan_skills(tmp_path)
    assert found.problem


def test_scan(tmp_path: Path) -> None:
    """A scan finds the skills in a tree, good and bad (B38)."""
    skill(tmp_path / "a" / "b", "one")
    skill(tmp_path, "two")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_text("nothing")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "SKILL.md").symlink_to("/etc/passwd")
    skill(tmp_path / ".git", "hidden")
    found = {
        os.path.relpath(each.path, tmp_path): (each.name, bool(each.problem)) for each in content.scan_skills(tmp_path)
    }
    assert found == {"a/b/one": ("one", False), "bad": ("", True), "two": ("two", False)}


def test_which_of_several(store: SkillStore, tmp_path: Path) -> None:
    top = tmp_path / "many"
    skill(top, "one")
    skill(top, "two")
    with pytest.raises(Invalid, match="2 skills") as error:
        store.install(ME, Directory(str(top)))
    assert error.value.details["paths"] == ["one", "two"]
    assert store.install(ME, Directory(str(top), "two"))[0].name == "two"
    skill(tmp_path / "beside", "three")
    (top / "link").symlink_to(tmp_path / "beside")
    for path in ("../beside", "/etc", "none", "link/three"):
        with pytest.raises((Invalid, NotFound)):
            store.install(ME, Directory(str(top), path))


async def test_two_installs_of_one_name(tmp_path: Path) -> None:
    """With two processes at once, both versions exist, one is active, and the view shows that one complete."""
    stores = [SkillStore(tmp_path / "store") for _ in range(2)]
    places = [str(skill(tmp_path / str(number), files=str(number) * 5000)) for number in range(8)]
    view = stores[0].view(ME, EVERY_SKILL)

    async def install(number: int) -> str:
        store = stores[number % 2]
        return (await asyncio.to_thread(store.install, ME, Directory(places[number])))[0].digest

    digests = await asyncio.gather(*(install(number) for number in range(8)))
    assert {version.digest for version in stores[0].versions(ME, "demo")} == set(digests)
    active = stores[1].get(ME, "demo").digest
    shown = content.digest_of(content.hash_files(view / "demo"))
    assert shown == active
    assert os.listdir(tmp_path / "store" / "staging") == []


def test_sources_in_words(tmp_path: Path) -> None:
    assert isinstance(sources.parse_source("https://example.org/a.git", ref="v1"), sources.Git)
    assert isinstance(sources.parse_source("git@example.org:a/b"), sources.Git)
    assert isinstance(sources.parse_source(str(tmp_path)), Directory)
    for wrong in ("file:///etc", "ext::sh -c id", "http://example.org/x.git", "ftp://x/y"):
        with pytest.raises((Invalid, NotFound)):
            SkillStore(tmp_path / "s").install(ME, sources.parse_source(wrong))
    with pytest.raises(Refused, match="password"):
        SkillStore(tmp_path / "s").install(ME, sources.parse_source("https://user:word@example.org/x.git"))
