"""Reads a server's files on the host: its declared dependencies, and copies for a box that others share.

A definition names paths of the hosting machine. They are read only here, through `hutch.host_files`, and only if the
policy would allow them as mounts: a caller who may mount nothing cannot have anything copied either.
"""

import asyncio
import json
import os
import tomllib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from hutch import host_files
from hutch.api import Box
from hutch.errors import FileMissing, FileTooLarge, Refused
from hutch.host_files import Found, Tree
from hutch.model.spec import CheckedMount

MAX_COPIED_BYTES = 512 << 20
MAX_FILES = 20_000
MAX_LIST_BYTES = 4 << 20
"""Most bytes of one file that lists dependencies."""
EXCLUDED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache"})
"""Names that are not copied into a box, because they are created there or of no use."""
_NODE_LOCKS = ("package-lock.json", "npm-shrinkwrap.json")
_LOCKS = (
    "requirements.txt", "requirements.lock", "pyproject.toml", "setup.py", "setup.cfg", "uv.lock", "poetry.lock",
    "package.json", *_NODE_LOCKS,
)  # fmt: skip
_PIECE = 1 << 18


@dataclass(frozen=True)
class Facts:
    """The dependencies that a project declares."""

    package: bool = False
    """The project itself can be installed with pip."""
    requirements: bool = False
    node: bool = False
    """The project has Node dependencies."""
    node_locked: bool = False
    listed: tuple[str, ...] = ()
    """Packages of its virtual environment, as requirements."""


async def facts(root: CheckedMount | None, venv: str) -> Facts:
    """Read the facts of a project. `venv` is its virtual environment relative to the root, or empty."""
    return Facts() if root is None else await asyncio.to_thread(_facts, root, venv)


async def digest(root: CheckedMount, *extra: str, tree: bool) -> str:
    """Return a digest of everything that decides what is installed, with `tree` including the sources."""
    return await asyncio.to_thread(_digest, root, extra, tree)


async def copy_in(box: Box, source: CheckedMount, target: str) -> None:
    """Copy a file, or a tree without the excluded names.

    Symlinks are left out, because nobody has checked their targets and they would lead elsewhere in the box.
    """
    budget = _Budget(source.real)
    with host_files.open_checked(source) as tree:
        if not tree.is_directory:
            await box.files.write(target, _content(tree, "", budget))
            return
        await box.files.mkdir(target)
        for found in await asyncio.to_thread(_files, tree):
            mode = found.facts.st_mode & 0o777
            await box.files.write(f"{target}/{found.name}", _content(tree, found.name, budget), mode=mode)


class _Budget:
    """Counts the bytes of one copy as they are read, since a file may grow after it was listed."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._left = MAX_COPIED_BYTES

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise FileTooLarge(
                f"{self._source} has more than {MAX_COPIED_BYTES >> 20} MB", remedy="give the server a box of its own"
            )


async def _content(tree: Tree, name: str, budget: _Budget) -> AsyncIterator[bytes]:
    with os.fdopen(await asyncio.to_thread(tree.open, name), "rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            budget.take(len(piece))
            yield piece


def _files(tree: Tree) -> list[Found]:
    found: list[Found] = []
    budget = _Budget(tree.path)
    for each in tree.walk(left_out=EXCLUDED):
        if not each.is_file:
            continue
        budget.take(each.facts.st_size)
        found.append(each)
        if len(found) > MAX_FILES:
            raise FileTooLarge(f"{tree.path} has more than {MAX_FILES} files", remedy="give it a box of its own")
    return found


def _facts(root: CheckedMount, venv: str) -> Facts:
    with host_files.open_checked(root) as tree:
        if not tree.is_directory:
            return Facts()
        return Facts(
            package=_is_package(tree),
            requirements=tree.has_file("requirements.txt"),
            node=_has_node_dependencies(tree),
            node_locked=any(tree.has_file(name) for name in _NODE_LOCKS),
            listed=_installed_in(tree, venv) if venv else (),
        )


def _text(tree: Tree, name: str) -> str:
    """Return the text of a file that lists dependencies, or empty if it is missing or unreadable."""
    try:
        return tree.read(name, most=MAX_LIST_BYTES).decode()
    except (FileMissing, Refused, UnicodeDecodeError):
        return ""


def _is_package(tree: Tree) -> bool:
    """Return whether pip can install the project. A pyproject.toml may configure only a linter."""
    if tree.has_file("setup.py"):
        return True
    try:
        table = tomllib.loads(_text(tree, "pyproject.toml"))
    except ValueError:
        return False
    return "project" in table or "build-system" in table or "poetry" in table.get("tool", {})


def _has_node_dependencies(tree: Tree) -> bool:
    try:
        table = json.loads(_text(tree, "package.json"))
    except ValueError:
        return False
    return isinstance(table, dict) and bool(table.get("dependencies"))


def _installed_in(tree: Tree, venv: str) -> tuple[str, ...]:
    """Return the packages of a virtual environment as requirements."""
    found: list[str] = []
    for python in (name for name in tree.names(f"{venv}/lib") if name.startswith("python")):
        packages = f"{venv}/lib/{python}/site-packages"
        for info in (name for name in tree.names(packages) if name.endswith(".dist-info")):
            name, _, version = info.removesuffix(".dist-info").partition("-")
            own = tree.has_file(f"{packages}/{info}/direct_url.json")
            if name not in ("pip", "setuptools", "wheel") and not own:
                found.append(f"{name}=={version}")
    return tuple(found)


def _digest(root: CheckedMount, extra: Sequence[str], whole: bool) -> str:
    state = sha256(b"mcp 1\n")
    for fact in extra:
        state.update(f"{fact}\0".encode())
    with host_files.open_checked(root) as tree:
        for name in _LOCKS:
            if tree.has_file(name):
                state.update(f"{name}\0".encode() + tree.read(name, most=MAX_LIST_BYTES))
        for count, (name, facts) in enumerate(tree.walk(left_out=EXCLUDED) if whole else ()):
            if count > MAX_FILES:
                break
            state.update(f"/{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return state.hexdigest()[:24]
