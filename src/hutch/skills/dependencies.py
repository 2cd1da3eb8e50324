"""What a skill declares to need, and the commands that prepare it once, in a box, for all boxes of its owner."""

import hashlib
import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from hutch.errors import FileTooLarge, Refused
from hutch.model.skills import INSTALLED_AT, SkillDependencies
from hutch.skills.content import RESERVED, Package

BUILD_AT = "/workspace/deps"
SKILL_AT = "/workspace/skill"
EMPTY_AT = "/workspace/empty"
"""The working directory of installers."""
MOST_MB = 2048


def key_of(package: Package) -> str:
    """Where the prepared dependencies of a version are kept; empty: it needs none.

    What a skill brings along takes part in its installation: its own wheels run code, and `pip/` beside them once ran
    in pip's place. So what one digest has prepared serves that digest alone, whatever others declare to need.
    """
    needed = package.manifest.dependencies
    if not needed.python and not needed.node:
        return ""
    return hashlib.sha256(b"dependencies 2\n" + needed.to_json() + package.digest.encode()).hexdigest()


def needs_network(needed: SkillDependencies) -> bool:
    return any(not requirement.startswith("./") for requirement in (*needed.python, *needed.node))


def commands(needed: SkillDependencies) -> list[str]:
    """Shell commands, run in an empty directory of a box that is thrown away afterwards.

    Python would import from the working directory before anything else, and npm would read its settings there: nothing
    of the skill may stand in the place of the programs that install it (lesson 47).
    """
    steps = []
    if needed.python:
        offline = "" if needs_network(needed) else "--no-index "
        steps.append(
            f"python3 -I -m pip install --quiet --no-input --disable-pip-version-check --no-cache-dir {offline}"
            f"--target {BUILD_AT}/python -- {_words(needed.python)}"
        )
    if needed.node:
        # Scripts of packages run here as they would anywhere: in a box, which is why this is one.
        steps.append(f"npm install --silent --no-audit --no-fund --prefix {BUILD_AT}/node -- {_words(needed.node)}")
    return steps


def _words(requirements: Sequence[str]) -> str:
    """For a shell; what is a file of the skill by its place in the box."""
    return " ".join(
        shlex.quote(f"{SKILL_AT}/{each.removeprefix('./')}" if each.startswith("./") else each) for each in requirements
    )


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
