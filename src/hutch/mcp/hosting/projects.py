"""Infers which files of this machine a server needs, and where they appear in its box.

Command and arguments show it: a virtual environment belongs to a project, a script lies in one, and an argument that is
an existing absolute path is data. Each is mounted or copied. An argument that is exactly such a path becomes the path
in the box; paths inside other text are never replaced, because they may mean something else.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

from hutch.errors import FileMissing
from hutch.model.mcp import McpServer
from hutch.model.spec import MountMode
from hutch.policy.mounts import SYSTEM_TREES
from hutch.policy.values import at_or_below

MARKERS = ("pyproject.toml", "setup.py", "requirements.txt", "package.json", ".git")
VENV_NAMES = (".venv", "venv", "env")
RUNNERS = frozenset({"npx", "uvx", "pipx", "bunx", "pnpx"})
"""Programs that download the server itself. Paths among their arguments are data and belong to no project."""
_PYTHON = re.compile(r"(python|pypy)[0-9.]*w?(\.exe)?", re.IGNORECASE)
_COMMON = frozenset({"/", "/tmp", "/var/tmp", "/home", "/root", "/opt", "/srv", "/mnt", "/media", "/var"})
"""Shared directories, which are never the root of a project. Every box has its own."""


@dataclass(frozen=True)
class SharedPath:
    """A file or directory of the host, and its unique name in the box."""

    source: str
    name: str


@dataclass(frozen=True)
class Project:
    """The files of a server's definition on this machine."""

    root: str
    """The project's directory, or empty if the server is downloaded."""
    venv: str
    """Its virtual environment. The box uses an interpreter of its own."""
    program: str
    """Name of the program: the command, or a script of the virtual environment."""
    python: bool
    """The command is a Python interpreter."""
    data: tuple[SharedPath, ...]
    """Paths outside of the project that arguments name."""

    @property
    def inner_venv(self) -> str:
        """Path of the virtual environment relative to the root, or empty if it lies elsewhere."""
        return self.venv[len(self.root) :].strip("/") if self.root and at_or_below(self.venv, self.root) else ""

    def sources(self) -> tuple[str, ...]:
        """Return every host path that the box shows."""
        return (*((self.root,) if self.root else ()), *(each.source for each in self.data))


@dataclass(frozen=True)
class PathMap:
    """Maps host paths to paths in the box, the longest first."""

    pairs: tuple[tuple[str, str], ...]

    def to_box(self, path: str) -> str:
        """Return the path in the box for an absolute host path, or the path itself if the box does not show it."""
        plain = os.path.normpath(path)
        for source, target in self.pairs:
            if at_or_below(plain, source):
                return target + plain[len(source) :]
        return path

    def argument(self, text: str) -> str:
        """Map an argument that is a path, or the path after `=` in an option."""
        if text.startswith("/"):
            return self.to_box(text)
        option, sign, value = text.partition("=")
        return f"{option}={self.to_box(value)}" if sign and option.startswith("-") and value.startswith("/") else text


def path_map(pairs: dict[str, str]) -> PathMap:
    return PathMap(tuple(sorted(pairs.items(), key=lambda pair: len(pair[0]), reverse=True)))


def infer(server: McpServer) -> Project:
    """Infer the files of a server.

    Raises:
        FileMissing: A directory that the definition names explicitly does not exist.
    """
    program = windows_name(server.command) if "\\" in server.command else PurePosixPath(server.command).name
    python = _PYTHON.fullmatch(program) is not None
    if server.mount is MountMode.NONE:
        return Project("", "", program, python, ())
    given = server.host_path or server.cwd
    if given and not os.path.isdir(given):
        raise FileMissing(f"{given} is no directory of this machine", details={"path": given})
    venv = _venv(server)
    root = _root(server, venv, runner=program in RUNNERS)
    return Project(root, venv, program, python, tuple(_data(server, root)))


def windows_name(command: str) -> str:
    """Return the program name of a Windows path: `C:\\proj\\.venv\\Scripts\\python.exe` is python."""
    return PureWindowsPath(command).name.removesuffix(".exe").removesuffix(".cmd")


def venv_of(command: PurePath, *, looks: bool = True) -> PurePath | None:
    """Return the virtual environment of a program. If `looks` is false (for Windows paths), its usual names decide."""
    if command.parent.name.lower() not in ("bin", "scripts"):
        return None
    home = command.parent.parent
    if looks and os.path.exists(os.path.join(str(home), "pyvenv.cfg")):
        return home
    return home if home.name in VENV_NAMES else None


def root_of(place: str) -> str:
    """Return the nearest project directory at or above `place`, but never a shared directory, a home or above."""
    for each in (place, *map(str, Path(place).parents)):
        if not _may_be_root(each):
            return ""
        if any(os.path.exists(os.path.join(each, marker)) for marker in MARKERS):
            return each
    return ""


def _may_be_root(place: str) -> bool:
    home = os.path.expanduser("~")
    system = any(at_or_below(place, tree) or at_or_below(tree, place) for tree in SYSTEM_TREES)
    return place not in _COMMON and not system and not at_or_below(home, place) and os.path.dirname(place) != "/home"


def _venv(server: McpServer) -> str:
    if "\\" in server.command:
        found = venv_of(PureWindowsPath(server.command), looks=False)
    else:
        base = server.cwd or server.host_path or "/"
        if "/" not in server.command:
            return ""
        # Symlinks are not resolved: the interpreter of a virtual environment is a link to one outside of it.
        found = venv_of(PurePosixPath(os.path.normpath(os.path.join(base, server.command))))
    return str(found) if found is not None else ""


def _root(server: McpServer, venv: str, *, runner: bool) -> str:
    if server.host_path:
        return os.path.abspath(server.host_path)
    if venv and "\\" not in venv:
        parent = os.path.dirname(venv)
        return root_of(parent) or (parent if _may_be_root(parent) else "")
    for place in _named(server, runner=runner):
        if root := root_of(place):
            return root
    if server.cwd:
        return os.path.abspath(server.cwd)
    script = next((place for place in _scripts(server) if not runner), "")
    folder = os.path.dirname(script)
    return folder if script and _may_be_root(folder) else ""


def _named(server: McpServer, *, runner: bool) -> Iterator[str]:
    """Yield directories that may lie in the project, the most certain first."""
    if server.cwd:
        yield os.path.abspath(server.cwd)
    if runner:
        return
    yield from (os.path.dirname(path) for path in _scripts(server))
    for path in _paths(server):
        yield path if os.path.isdir(path) else os.path.dirname(path)


def _scripts(server: McpServer) -> Iterator[str]:
    """Yield the command itself and the scripts among the arguments."""
    if server.command.startswith("/") and os.path.isfile(server.command):
        yield server.command
    for path in _paths(server):
        if os.path.isfile(path) and path.endswith((".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".pyz")):
            yield path


def _paths(server: McpServer) -> Iterator[str]:
    """Yield arguments that are existing absolute paths, without temporary and system directories."""
    for argument in server.args:
        value = argument.partition("=")[2] if argument.startswith("-") else argument
        path = os.path.normpath(value) if value.startswith("/") else ""
        if not path or path in ("/tmp", "/var/tmp") or any(at_or_below(path, tree) for tree in SYSTEM_TREES):
            continue
        if os.path.exists(path):
            yield path


def _data(server: McpServer, root: str) -> Iterator[SharedPath]:
    seen: dict[str, str] = {}
    taken: set[str] = {"project"}
    for path in _paths(server):
        if (root and at_or_below(path, root)) or any(at_or_below(path, other) for other in seen):
            continue
        base = re.sub(r"[^A-Za-z0-9_.-]", "-", os.path.basename(path)) or "data"
        name = base
        for number in range(2, 100):
            if name not in taken:
                break
            name = f"{number}-{base}"
        taken.add(name)
        seen[path] = name
    for path, name in seen.items():
        if not any(other != path and at_or_below(path, other) for other in seen):
            yield SharedPath(path, name)
