"""kill -9 in the middle of an installation: the store is as before or as after, and the next process cleans up."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hutch.model.skills import EVERY_SKILL
from hutch.skills import content
from hutch.skills.sources import Directory
from hutch.skills.store import SkillStore
from tests.skills.make_skill import skill

pytestmark = pytest.mark.slow

ROUNDS = 12
SCRIPT = Path(__file__).with_name("killed_install.py")


def test_killed_while_installing(tmp_path: Path) -> None:
    """Versions, index and view agree after every kill; nothing incomplete is ever visible."""
    chance = random.Random(7)
    for number in range(6):
        files = {f"part{part}": f"{number} {part} " * 200 for part in range(40)}
        skill(tmp_path / "sources" / str(number), **files)
    store = SkillStore(tmp_path / "store")
    view = store.view("me", EVERY_SKILL)
    for turn in range(ROUNDS):
        words = [sys.executable, str(SCRIPT), str(tmp_path / "store"), str(tmp_path / "sources"), str(turn)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0.0, 0.15))  # at a random point of its work, by a fixed seed
            child.kill()
        _consistent(store, view)
    last, _ = store.install("me", Directory(str(tmp_path / "sources" / "0" / "demo")))
    assert content.digest_of(content.hash_files(view / "demo")) == last.digest
    staging = tmp_path / "store" / "staging"
    assert [name for name in os.listdir(staging) if not name.endswith(".lock")] == []


def _consistent(store: SkillStore, view: Path) -> None:
    for name in os.listdir(view):
        shown = content.digest_of(content.hash_files(view / name))
        known = {version.digest for version in store.versions("me", name)}
        assert shown in known, "a version that was never installed, or a part of one"
    for found in store.all("me"):
        again = store.view("me", EVERY_SKILL)  # as the next new box would request it
        assert content.digest_of(content.hash_files(again / found.name)) == found.digest
        for version in store.versions("me", found.name):
            package = store.packages.get(version.digest)
            place = store._root / "packages" / version.digest / "content"
            assert content.digest_of(content.hash_files(place)) == package.digest == version.digest
