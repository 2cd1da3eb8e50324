"""What a server needs before its process can start: its dependencies, once for each state of its lock files (B35).

Everything lands in the volume that outlives the server's boxes, so the second start finds it. Installers run as jobs of
their own: what they print never reaches the protocol's stream.
"""

import json
import os
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from hutch.api import Box
from hutch.config.mcp import McpTable
from hutch.errors import NotRunnable, ServerFailed, Timeout
from hutch.mcp.hosting.boxes import LEFT_OUT, Room
from hutch.mcp.hosting.lines import Preview
from hutch.mcp.hosting.projects import Project, places
from hutch.model.mcp import McpServer, Phase
from hutch.model.results import Cause, Result

CACHE = "/workspace/.mcp/.cache"
DONE = ".installed"
_LOCKS = (
    "requirements.txt", "requirements.lock", "pyproject.toml", "setup.py", "setup.cfg", "uv.lock", "poetry.lock",
    "package.json", "package-lock.json", "npm-shrinkwrap.json",
)  # fmt: skip
_NODE = frozenset({"node", "npm", "npx", "tsx", "ts-node", "bun"})
_FOUND_IN_BOX = _NODE | {"uv", "uvx", "pipx", "deno", "bunx", "bash", "sh"}
"""Programs that the box has by name, wherever the host keeps its own."""
MOST_FILES = 20_000


@dataclass(frozen=True)
class Launch:
    """How the server's process is started."""

    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]


class Installer:
    """Prepares one server in one box."""

    def __init__(
        self, room: Room, name: str, server: McpServer, project: Project, settings: McpTable, preview: Preview
    ) -> None:
        self._room = room
        self._box: Box = room.box
        self._name = name
        self._server = server
        self._project = project
        self._settings = settings
        self._preview = preview
        self._places = room.places
        self.env = {
            "npm_config_cache": f"{CACHE}/npm", "npm_config_yes": "true", "npm_config_update_notifier": "false",
            "npm_config_fund": "false", "npm_config_audit": "false", "UV_CACHE_DIR": f"{CACHE}/uv",
            "UV_TOOL_DIR": f"{CACHE}/uv-tools", "UV_LINK_MODE": "copy", "PIP_CACHE_DIR": f"{CACHE}/pip",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **settings.install_env, **server.env,
        }  # fmt: skip

    async def prepare(self) -> Launch:
        async with self._room.installing:
            await self._box.files.mkdir(CACHE)
            await self._seed()
            program = await self._program()
        args = tuple(self._places.argument(argument) for argument in self._server.args)
        cwd = self._places.of(self._server.cwd) if self._server.cwd else None
        if cwd is None and self._project.root:
            cwd = self._places.of(self._project.root)
        return Launch((program, *args), cwd, self.env)

    async def _program(self) -> str:
        project, command = self._project, self._server.command
        name = project.program
        if name in ("uv", "uvx"):
            if project.root and name == "uv":
                await self._copy_project("uv")  # uv makes the project's environment beside its sources
            return await self._uv(name)
        if project.root and name in _NODE and _has_node_dependencies(project.root):
            await self._node()
            return name
        if project.root and (project.python or project.venv):
            home = await self._python()
            if home:
                return f"{home}/bin/{'python' if project.python else name}"
        if project.python:
            return "python3"
        if name in _FOUND_IN_BOX or "\\" in command:
            return name
        return self._places.of(command) if command.startswith("/") else command

    # --- kinds of projects ------------------------------------------------------------------------------------

    async def _python(self) -> str:
        """A virtual environment with what the project needs; empty: it needs nothing."""
        root = self._project.root
        whole = _is_package(root)
        requirements = os.path.exists(f"{root}/requirements.txt")
        listed = [] if whole or requirements or not self._project.venv else _installed_in(self._project.venv)
        if not (whole or requirements or listed):
            return ""
        version = (await self._run(["python3", "-c", "import sys; print(sys.version, sys.platform)"])).stdout
        home = f"{CACHE}/py-{_digest(root, version, *listed, tree=whole)}"
        if await self._box.files.exists(f"{home}/{DONE}"):
            return home
        await self._box.files.remove(home, recursive=True, missing_ok=True)
        pip = await self._environment(home)
        place = self._places.of(root)
        if requirements:
            await self._run([*pip, "-r", f"{place}/requirements.txt"], cwd=place)
        if listed:
            await self._run([*pip, "--", *listed])
        if whole:
            # Building writes beside the sources, and those are not ours to write to.
            await self._run([*pip, await self._copy(f"build-{self._name}")])
        await self._box.files.write(f"{home}/{DONE}", "")
        return home

    async def _node(self) -> None:
        """Node finds modules from where a script lies, so the project itself is copied beside its modules."""
        target = await self._copy_project("node")
        if await self._box.files.exists(f"{target}/{DONE}"):
            return
        locked = any(os.path.exists(f"{self._project.root}/{name}") for name in _LOCKS[-2:])
        await self._run(["npm", "ci" if locked else "install", "--omit=dev", "--no-audit", "--no-fund"], cwd=target)
        await self._box.files.write(f"{target}/{DONE}", "")

    async def _uv(self, program: str) -> str:
        """uv itself: the box's, else one of our own from the package index."""
        found = await self._run(["sh", "-c", 'command -v "$1" || true', "sh", program])
        if found.stdout.strip():
            return program
        home = f"{CACHE}/uv-program"
        if not await self._box.files.exists(f"{home}/{DONE}"):
            await self._box.files.remove(home, recursive=True, missing_ok=True)
            try:
                await self._run([*await self._environment(home), "uv"])
            except ServerFailed as error:
                raise ServerFailed(
                    f"the box has no {program}, and it could not be installed: {error.message}",
                    details=error.details, retryable=error.retryable,
                    remedy="use an image that has uv, or let the box reach a package index ([mcp] install_env)",
                ) from error  # fmt: skip
            await self._box.files.write(f"{home}/{DONE}", "")
        return f"{home}/bin/{program}"

    async def _environment(self, home: str) -> list[str]:
        """Makes a virtual environment; returns the command that installs into it. The box's own pip can do that, and to
        give each environment one of its own takes longer than most installations."""
        own = (await self._run(["sh", "-c", "python3 -m pip --version || true"])).stdout.startswith("pip ")
        await self._run(["python3", "-m", "venv", *(["--without-pip"] if own else []), home])
        pip = ["python3", "-m", "pip", "--python", f"{home}/bin/python"] if own else [f"{home}/bin/python", "-m", "pip"]
        return [*pip, "install", "--quiet"]

    async def _copy_project(self, kind: str) -> str:
        """The project as a copy that may be written to; its paths mean the copy from now on."""
        target = await self._copy(f"{kind}-{_digest(self._project.root, kind, tree=True)}", keep=True)
        pairs = dict(self._places.pairs) | {self._project.root: target}
        self._places = places(pairs)
        return target

    async def _copy(self, name: str, *, keep: bool = False) -> str:
        source, target = self._places.of(self._project.root), f"{CACHE}/{name}"
        if keep and await self._box.files.exists(f"{target}/.copied"):
            return target
        await self._box.files.remove(target, recursive=True, missing_ok=True)
        await self._box.files.mkdir(target)
        excluded = [f"--exclude=./{name}" for name in sorted(LEFT_OUT)]
        script = 'from=$1; to=$2; shift 2; tar -C "$from" "$@" -cf - . | tar -C "$to" -xf -'
        await self._run(["sh", "-c", script, "sh", source, target, *excluded])
        if keep:
            await self._box.files.write(f"{target}/.copied", "")
        return target

    async def _seed(self) -> None:
        """npm's cache begins as a copy of the operator's."""
        source, target = self._settings.npm_cache, f"{CACHE}/npm"
        if source and not await self._box.files.exists(target):
            await self._run(["sh", "-c", 'cp -R "$1" "$2.new" && mv "$2.new" "$2"', "sh", source, target])

    async def _run(self, argv: list[str], *, cwd: str | None = None) -> Result:
        """One step, which must succeed."""
        limit = self._server.install_timeout_sec
        try:
            job = await self._box.start(argv, cwd=cwd, env=self.env, timeout=limit, name=f"mcp-{self._name}-install")
            await job.close_stdin()
            result = await job.wait(limit + 10)
            await self._box.forget(job.id)
        except NotRunnable as error:
            raise _failed(
                f"{argv[0]} cannot be run in the box: {error.message}", "use an image that has it", retryable=False
            ) from error
        except Timeout as error:
            raise _failed(f"installing took more than {limit:g} s", "raise install_timeout_sec") from error
        for text in (result.stdout, result.stderr):
            for line in text.splitlines()[-40:]:
                self._preview.line(f"(installing) {line}")
        if result.ok:
            return result
        verdict = result.verdict
        if verdict.cause is Cause.EXIT:
            said = " ".join((result.stderr or result.stdout).split())[-600:]
            raise _failed(f"{argv[0]} ended with {result.exit_code}: {said}", "see `hutch mcp-server logs`")
        raise _failed(f"installing ended: {verdict.message or verdict.cause}", verdict.remedy)


def _failed(message: str, remedy: str = "", *, retryable: bool = True) -> ServerFailed:
    return ServerFailed(message, remedy=remedy, retryable=retryable, details={"phase": Phase.DEP_INSTALL})


def _digest(root: str, *facts: str, tree: bool) -> str:
    """The state of everything that decides what is installed; with `tree`, of the sources as well."""
    digest = sha256(b"mcp 1\n")
    for fact in facts:
        digest.update(f"{fact}\0".encode())
    for name in _LOCKS:
        path = Path(root, name)
        if path.is_file():
            digest.update(f"{name}\0".encode() + path.read_bytes())
    for count, (place, folders, names) in enumerate(os.walk(root) if tree else ()):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        if count > MOST_FILES:
            break
        for name in sorted(names):
            facts_of = os.lstat(os.path.join(place, name))
            digest.update(f"{place[len(root) :]}/{name}\0{facts_of.st_size}\0{facts_of.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def _is_package(root: str) -> bool:
    """Whether pip can install the project itself; a pyproject.toml may be there for a linter only."""
    if os.path.exists(f"{root}/setup.py"):
        return True
    try:
        table = tomllib.loads(Path(root, "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "project" in table or "build-system" in table or "poetry" in table.get("tool", {})


def _has_node_dependencies(root: str) -> bool:
    try:
        table = json.loads(Path(root, "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(table, dict) and bool(table.get("dependencies"))


def _installed_in(venv: str) -> list[str]:
    """What a virtual environment without any list holds, as requirements."""
    found: list[str] = []
    for info in sorted(Path(venv).glob("lib/python*/site-packages/*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        if name not in ("pip", "setuptools", "wheel") and not (info / "direct_url.json").exists():
            found.append(f"{name}=={version}")
    return found
