"""The dependencies of a skill, and the commands that install them once in a box for all boxes of the owner."""

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
"""The working directory of the installers."""
MAX_MB = 2048


def dependencies_key(package: Package) -> str:
    """Return the key under which the dependencies of a version are stored; empty if it needs none.

    The files of a skill take part in its installation: its own wheels run code, and a `pip/` directory beside them
    could run instead of pip. So what was installed for one digest is used for that digest only.
    """
    needed = package.manifest.dependencies
    if not needed.python and not needed.node:
        return ""
    return hashlib.sha256(b"dependencies 2\n" + needed.to_json() + package.digest.encode()).hexdigest()


def needs_network(needed: SkillDependencies) -> bool:
    return any(not requirement.startswith("./") for requirement in (*needed.python, *needed.node))


def commands(needed: SkillDependencies) -> list[str]:
    """Return shell commands for an empty directory of a box that is destroyed afterwards.

    Python would import from the working directory first, and npm would read its settings there, so nothing of the skill
    may be in the directory where its installers run.
    """
    steps = []
    if needed.python:
        offline = "" if needs_network(needed) else "--no-index "
        steps.append(
            f"python3 -I -m pip install --quiet --no-input --disable-pip-version-check --no-cache-dir {offline}"
            f"--target {BUILD_AT}/python -- {_arguments(needed.python)}"
        )
    if needed.node:
        # Installation scripts of packages run here; that is why it is a box.
        steps.append(f"npm install --silent --no-audit --no-fund --prefix {BUILD_AT}/node -- {_arguments(needed.node)}")
    return steps


def _arguments(requirements: Sequence[str]) -> str:
    """Quote requirements for a shell; a file of the skill is given by its path in the box."""
    return " ".join(
        shlex.quote(f"{SKILL_AT}/{each.removeprefix('./')}" if each.startswith("./") else each) for each in requirements
    )


def environment(name: str, needed: SkillDependencies) -> dict[str, str]:
    """Return variables for the skill's programs. `SKILL_BIN` is put before the PATH, which only the box knows."""
    directory = f"{INSTALLED_AT}/{name}/{RESERVED}"
    variables: dict[str, str] = {}
    programs = []
    if needed.python:
        variables["PYTHONPATH"] = f"{directory}/python"
        programs.append(f"{directory}/python/bin")
    if needed.node:
        variables["NODE_PATH"] = f"{directory}/node/node_modules"
        programs.append(f"{directory}/node/node_modules/.bin")
    if programs:
        variables["SKILL_BIN"] = ":".join(programs)
    return variables


def set_modes(built: Path) -> None:
    """Make what a box has installed readable for the user of every box, and nothing more. Links stay: boxes follow
    them in their own root, and nobody else follows them."""
    total = 0
    for directory, _, names in os.walk(built):
        os.chmod(directory, 0o755)
        for name in names:
            path = os.path.join(directory, name)
            info = os.lstat(path)
            total += info.st_size
            if total > MAX_MB << 20:
                raise FileTooLarge(f"the dependencies have more than {MAX_MB} MB")
            if stat.S_ISREG(info.st_mode):
                os.chmod(path, 0o755 if info.st_mode & 0o111 else 0o644)
            elif not stat.S_ISLNK(info.st_mode):
                raise Refused(f"{name} among the dependencies is neither a file nor a link")
