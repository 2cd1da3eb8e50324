"""What a skill declares to need, and the commands that prepare it once, in a box, for all boxes of its owner."""

import hashlib
import os
import shlex
import stat
from pathlib import Path

from hutch.errors import FileTooLarge, Refused
from hutch.model.skills import INSTALLED_AT, SkillDependencies
from hutch.skills.collecting import Package
from hutch.skills.content import RESERVED

BUILD_AT = "/workspace/deps"
SKILL_AT = "/workspace/skill"
MOST_MB = 2048


def key_of(package: Package) -> str:
    """What is prepared once: the same requirements give the same key. Empty: nothing is needed.

    A requirement that is a file of the skill counts with the skill's own digest, since its name says nothing of it.
    """
    needed = package.manifest.dependencies
    if not needed.python and not needed.node:
        return ""
    own_files = any(requirement.startswith("./") for requirement in (*needed.python, *needed.node))
    told = needed.to_json() + (package.digest.encode() if own_files else b"")
    return hashlib.sha256(b"dependencies 1\n" + told).hexdigest()


def needs_network(needed: SkillDependencies) -> bool:
    return any(not requirement.startswith("./") for requirement in (*needed.python, *needed.node))


def commands(needed: SkillDependencies) -> list[str]:
    """Shell commands, run in the skill's own directory in a box that is thrown away afterwards."""
    steps = []
    if needed.python:
        names = " ".join(shlex.quote(name) for name in needed.python)
        offline = "" if needs_network(needed) else "--no-index "
        steps.append(
            f"python3 -m pip install --quiet --no-input --disable-pip-version-check --no-cache-dir {offline}"
            f"--target {BUILD_AT}/python -- {names}"
        )
    if needed.node:
        names = " ".join(shlex.quote(name) for name in needed.node)
        # Scripts of packages run here as they would anywhere: in a box, which is why this is one.
        steps.append(f"npm install --silent --no-audit --no-fund --prefix {BUILD_AT}/node -- {names}")
    return steps


def environment(name: str, needed: SkillDependencies) -> dict[str, str]:
    """Hints for the skill's programs. `SKILL_BIN` goes before the box's own PATH, which only the box knows."""
    place = f"{INSTALLED_AT}/{name}/{RESERVED}"
    told: dict[str, str] = {}
    programs = []
    if needed.python:
        told["PYTHONPATH"] = f"{place}/python"
        programs.append(f"{place}/python/bin")
    if needed.node:
        told["NODE_PATH"] = f"{place}/node/node_modules"
        programs.append(f"{place}/node/node_modules/.bin")
    if programs:
        told["SKILL_BIN"] = ":".join(programs)
    return told


def settle(built: Path) -> None:
    """What came out of a box, readable by the user of every box and nothing more. Links stay: boxes follow them in
    their own root, and nobody else follows them."""
    total = 0
    for place, _, names in os.walk(built):
        os.chmod(place, 0o755)
        for name in names:
            path = os.path.join(place, name)
            facts = os.lstat(path)
            total += facts.st_size
            if total > MOST_MB << 20:
                raise FileTooLarge(f"the dependencies have more than {MOST_MB} MB")
            if stat.S_ISREG(facts.st_mode):
                os.chmod(path, 0o755 if facts.st_mode & 0o111 else 0o644)
            elif not stat.S_ISLNK(facts.st_mode):
                raise Refused(f"{name} among the dependencies is neither a file nor a link")
