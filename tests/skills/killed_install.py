"""A process that installs versions of one skill until it is killed: `python killed_install.py STORE SOURCES SEED`."""

import sys
from pathlib import Path

from hutch.skills.sources import Directory
from hutch.skills.store import SkillStore


def main(root: str, sources: str, seed: int) -> None:
    store = SkillStore(Path(root))
    places = sorted(str(each / "demo") for each in Path(sources).iterdir())
    print("ready", flush=True)
    number = seed
    while True:
        store.install("me", Directory(places[number % len(places)]))
        number += 1


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
