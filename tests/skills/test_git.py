"""Skills from real git repositories: one commit, no checkout, nothing of it is run."""

import os
import subprocess
from pathlib import Path

import pytest

from hutch.errors import FileTooLarge, HutchError, Invalid, NotFound, Refused
from hutch.front import Hutch
from hutch.keeper.embedded import Hutch as EmbeddedHutch
from hutch.keeper.owner_view import OwnerView
from hutch.keeper.skills.builds import fetch_commit
from hutch.skills import git, sources
from hutch.skills.sources import Git
from hutch.skills.store import SkillStore
from tests.skills.make_skill import run_dir, skill

pytestmark = pytest.mark.slow

ME = "me"


class Repository:
    def __init__(self, top: Path) -> None:
        self.top = top
        top.mkdir(parents=True)
        self.run("init", "--quiet", "--initial-branch=main", ".")

    def run(self, *words: str) -> str:
        settings = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
        done = subprocess.run(["git", *settings, *words], cwd=self.top, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def commit(self) -> str:
        self.run("add", "--all", "--force")
        self.run("commit", "--quiet", "--allow-empty", "--message", "more")
        return self.run("rev-parse", "HEAD")

    def source(self, ref: str = "", path: str = "") -> Git:
        return Git(str(self.top), ref, path, local=True)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "repository")
    skill(made.top, run="#!/bin/sh\n", a__b="1")
    return made


@pytest.fixture
def store(tmp_path: Path) -> SkillStore:
    return SkillStore(tmp_path / "store")


def test_a_commit_not_the_working_files(repository: Repository, store: SkillStore) -> None:
    first = repository.commit()
    (repository.top / "demo" / "a" / "b").write_text("not committed")
    installed, _ = store.install(ME, repository.source())
    assert store.read_file(ME, "demo", "a/b") == b"1"
    assert {file.path: file.executable for file in store.files(ME, "demo")}["run"] is True
    assert first[:12] in installed.origin and "repository:" in installed.origin


def test_refs_are_pinned_and_upgraded(repository: Repository, store: SkillStore) -> None:
    """`upgrade` follows a branch; a commit stays what it is."""
    first = repository.commit()
    repository.run("tag", "v1")
    one, _ = store.install(ME, repository.source("main"))
    (repository.top / "demo" / "new").write_text("x")
    second = repository.commit()
    two, before = store.upgrade(ME, "demo")
    assert (before, second[:12] in two.origin) == (one.digest, True)
    assert store.install(ME, repository.source("v1"))[0].digest == one.digest
    assert store.upgrade(ME, "demo")[0].digest == one.digest
    assert store.install(ME, repository.source(first))[0].digest == one.digest
    for ref in ("none", "--upload-pack=/bin/sh", "a..b", "-x", "main\nx"):
        with pytest.raises(Invalid):
            store.install(ME, repository.source(ref))


def test_a_hostile_repository_cannot_attack_its_clone(
    repository: Repository, store: SkillStore, tmp_path: Path
) -> None:
    """Hooks, filters and submodules are never run or followed; links are refused."""
    mark = tmp_path / "ran"
    other = Repository(tmp_path / "other")
    skill(other.top, "inner")
    other.commit()
    repository.run("submodule", "add", "--quiet", str(other.top), "demo/sub")
    (repository.top / ".gitattributes").write_text("* filter=evil\n")
    repository.run("config", "filter.evil.smudge", f"touch {mark}; cat")
    repository.run("config", "core.fsmonitor", f"touch {mark}")
    for hook in ("post-checkout", "post-upload-pack", "pre-auto-gc"):
        path = repository.top / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {mark}\n")
        path.chmod(0o755)
    repository.commit()
    mark.unlink(missing_ok=True)  # our own commits ran them
    installed, _ = store.install(ME, repository.source())
    assert not mark.exists()
    assert [file.path for file in store.files(ME, "demo")] == ["SKILL.md", "a/b", "run"]
    assert installed.files == 3
    (repository.top / "demo" / "link").symlink_to("/etc/passwd")
    repository.commit()
    with pytest.raises(Refused, match="symbolic link"):
        store.install(ME, repository.source())
    assert os.listdir(tmp_path / "store" / "staging") == []


def test_a_path_is_a_repository_only_when_asked(repository: Repository, store: SkillStore, tmp_path: Path) -> None:
    """file:// and every helper protocol are refused, also behind a URL's own redirections."""
    repository.commit()
    for url in (f"file://{repository.top}", "ext::sh -c id", "http://localhost/x.git", "fd::3"):
        with pytest.raises(HutchError):
            store.install(ME, sources.parse_source(url))
        with pytest.raises(Invalid):
            git.check_source(url, "", local=False)
    with pytest.raises(NotFound):
        store.install(ME, Git(str(tmp_path / "none"), local=True))
    (tmp_path / "empty").mkdir()
    with pytest.raises(Invalid, match="git failed"):
        store.install(ME, Git(str(tmp_path / "empty"), local=True))


async def test_in_a_box(repository: Repository, tmp_path: Path) -> None:
    """A server fetches in a box; the result is an archive like any other, with links and all."""
    commit = repository.commit()
    async with EmbeddedHutch(state_dir=tmp_path / "s", run_dir=run_dir(tmp_path)) as hutch:
        async with hutch.box() as box:
            await box.files.copy_in(repository.top, "/workspace/source")
            live = await hutch._keeper.live(box.id)
            env = git.environment(("file",))
            source = await fetch_commit(live, "/workspace/source", "main", "demo", env)
            skills = OwnerView(hutch._keeper, "me").skills
            installed = await skills.install(source)
            assert (installed.name, commit[:12] in installed.origin) == ("demo", True)
            assert await skills.read_file("demo", "a/b") == b"1"
        (repository.top / "demo" / "evil").symlink_to("/etc/passwd")
        repository.commit()
        async with hutch.box() as box:
            await box.files.copy_in(repository.top, "/workspace/source")
            source = await fetch_commit(await hutch._keeper.live(box.id), "/workspace/source", "main", "demo", env)
            with pytest.raises(Refused, match="symbolic link"):
                await skills.install(source)


async def test_from_the_front_door(repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    async with Hutch(state_dir=tmp_path / "s", run_dir=run_dir(tmp_path)) as hutch:
        assert (await hutch.skills.preview(repository.top, local_git=True)).name == "demo"
        assert (await hutch.skills.install(repository.top, local_git=True)).name == "demo"


def test_trees_that_hold_each_other_are_no_list_without_end(repository: Repository, store: SkillStore) -> None:
    """A few hundred bytes of objects that expand to a billion files are refused while git still counts."""
    held = f"100644 blob {repository.run('hash-object', '-w', 'demo/SKILL.md')}"
    for _ in range(9):
        listed = "".join(f"{held}\t{name}\n" for name in "abcdefghij")
        made = subprocess.run(["git", "mktree"], cwd=repository.top, input=listed.encode(), capture_output=True)
        held = f"040000 tree {made.stdout.decode().strip()}"
    repository.run("update-ref", "refs/heads/bomb", repository.run("commit-tree", "-m", "bomb", held.split()[-1]))
    with pytest.raises(FileTooLarge, match="without end"):
        store.install(ME, repository.source("bomb"))
    assert store.all(ME) == ()
