"""Installs a server's dependencies before its process starts, once for each state of its lock files.

They are installed into a volume that outlives the server's boxes, so the second start finds them. Installers run as
separate jobs, whose output never reaches the protocol's stream.
"""

from dataclasses import dataclass

from hutch.api import Box
from hutch.config.mcp import McpTable
from hutch.errors import NotRunnable, ServerFailed, Timeout
from hutch.mcp.hosting import project_files
from hutch.mcp.hosting.boxes import ServerBox
from hutch.mcp.hosting.json_lines import OutputPreview
from hutch.mcp.hosting.project_files import EXCLUDED, Facts
from hutch.mcp.hosting.projects import Project, path_map
from hutch.model.mcp import McpServer, Phase
from hutch.model.results import Cause, Result

CACHE = "/workspace/.mcp/.cache"
DONE_FILE = ".installed"
_NODE = frozenset({"node", "npm", "npx", "tsx", "ts-node", "bun"})
_BOX_PROGRAMS = _NODE | {"uv", "uvx", "pipx", "deno", "bunx", "bash", "sh"}
"""Programs that the box finds by name, regardless of their path on the host."""


@dataclass(frozen=True)
class LaunchCommand:
    """The command that starts the server's process."""

    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]


class Installer:
    """Installs one server in one box."""

    def __init__(
        self,
        server_box: ServerBox,
        name: str,
        server: McpServer,
        project: Project,
        settings: McpTable,
        preview: OutputPreview,
    ) -> None:
        self._server_box = server_box
        self._box: Box = server_box.box
        self._name = name
        self._server = server
        self._project = project
        self._settings = settings
        self._preview = preview
        self._paths = server_box.paths
        self.env = {
            "npm_config_cache": f"{CACHE}/npm", "npm_config_yes": "true", "npm_config_update_notifier": "false",
            "npm_config_fund": "false", "npm_config_audit": "false", "UV_CACHE_DIR": f"{CACHE}/uv",
            "UV_TOOL_DIR": f"{CACHE}/uv-tools", "UV_LINK_MODE": "copy", "PIP_CACHE_DIR": f"{CACHE}/pip",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **settings.install_env, **server.env,
        }  # fmt: skip

    async def prepare(self) -> LaunchCommand:
        async with self._server_box.installing:
            await self._box.files.mkdir(CACHE)
            await self._seed_npm_cache()
            program = await self._program(await project_files.facts(self._server_box.root, self._project.inner_venv))
        args = tuple(self._paths.argument(argument) for argument in self._server.args)
        cwd = self._paths.to_box(self._server.cwd) if self._server.cwd else None
        if cwd is None and self._project.root:
            cwd = self._paths.to_box(self._project.root)
        return LaunchCommand((program, *args), cwd, self.env)

    async def _program(self, facts: Facts) -> str:
        project, command = self._project, self._server.command
        name = project.program
        if name in ("uv", "uvx"):
            if project.root and name == "uv":
                await self._copy_project("uv")  # uv creates the project's environment beside its sources.
            return await self._uv(name)
        if facts.node and name in _NODE:
            await self._node(facts)
            return name
        if project.root and (project.python or project.venv):
            home = await self._python(facts)
            if home:
                return f"{home}/bin/{'python' if project.python else name}"
        if project.python:
            return "python3"
        if name in _BOX_PROGRAMS or "\\" in command:
            return name
        return self._paths.to_box(command) if command.startswith("/") else command

    # --- kinds of projects ------------------------------------------------------------------------------------

    async def _python(self, facts: Facts) -> str:
        """Create a virtual environment with the project's dependencies. Return its path, or empty if it has none."""
        listed = () if facts.package or facts.requirements else facts.listed
        if not (facts.package or facts.requirements or listed):
            return ""
        version = (await self._run(["python3", "-I", "-c", "import sys; print(sys.version, sys.platform)"])).stdout
        home = f"{CACHE}/py-{await self._digest(version, *listed, tree=facts.package)}"
        if await self._box.files.exists(f"{home}/{DONE_FILE}"):
            return home
        await self._box.files.remove(home, recursive=True, missing_ok=True)
        pip = await self._environment(home)
        place = self._paths.to_box(self._project.root)
        if facts.requirements:
            await self._run([*pip, "-r", f"{place}/requirements.txt"], cwd=place)
        if listed:
            await self._run([*pip, "--", *listed])
        if facts.package:
            # Building writes beside the sources, which must not change, so a copy is built.
            await self._run([*pip, await self._copy(f"build-{self._name}")])
        await self._box.files.write(f"{home}/{DONE_FILE}", "")
        return home

    async def _node(self, facts: Facts) -> None:
        """Copy the project and install its modules beside it, because Node looks for modules relative to the script."""
        target = await self._copy_project("node")
        if await self._box.files.exists(f"{target}/{DONE_FILE}"):
            return
        command = "ci" if facts.node_locked else "install"
        await self._run(["npm", command, "--omit=dev", "--no-audit", "--no-fund"], cwd=target)
        await self._box.files.write(f"{target}/{DONE_FILE}", "")

    async def _uv(self, program: str) -> str:
        """Return the box's uv, or install one from the package index."""
        found = await self._run(["sh", "-c", 'command -v "$1" || true', "sh", program])
        if found.stdout.strip():
            return program
        home = f"{CACHE}/uv-program"
        if not await self._box.files.exists(f"{home}/{DONE_FILE}"):
            await self._box.files.remove(home, recursive=True, missing_ok=True)
            try:
                await self._run([*await self._environment(home), "uv"])
            except ServerFailed as error:
                raise ServerFailed(
                    f"the box has no {program}, and it could not be installed: {error.message}",
                    details=error.details, retryable=error.retryable,
                    remedy="use an image that has uv, or let the box reach a package index ([mcp] install_env)",
                ) from error  # fmt: skip
            await self._box.files.write(f"{home}/{DONE_FILE}", "")
        return f"{home}/bin/{program}"

    async def _environment(self, home: str) -> list[str]:
        """Create a virtual environment and return the command that installs into it.

        The box's own pip is used if there is one, because adding pip takes longer than most installations.
        """
        own = (await self._run(["sh", "-c", "python3 -I -m pip --version || true"])).stdout.startswith("pip ")
        await self._run(["python3", "-I", "-m", "venv", *(["--without-pip"] if own else []), home])
        # -I ignores the working directory: a `pip/` folder of the project is not pip.
        pip = (
            ["python3", "-I", "-m", "pip", "--python", f"{home}/bin/python"]
            if own
            else [f"{home}/bin/python", "-I", "-m", "pip"]
        )
        return [*pip, "install", "--quiet"]

    async def _digest(self, *facts: str, tree: bool) -> str:
        assert self._server_box.root is not None, "asked only of a project"
        return await project_files.digest(self._server_box.root, *facts, tree=tree)

    async def _copy_project(self, kind: str) -> str:
        """Make a writable copy of the project. Its paths refer to the copy from now on."""
        target = await self._copy(f"{kind}-{await self._digest(kind, tree=True)}", keep=True)
        pairs = dict(self._paths.pairs) | {self._project.root: target}
        self._paths = path_map(pairs)
        return target

    async def _copy(self, name: str, *, keep: bool = False) -> str:
        source, target = self._paths.to_box(self._project.root), f"{CACHE}/{name}"
        if keep and await self._box.files.exists(f"{target}/.copied"):
            return target
        await self._box.files.remove(target, recursive=True, missing_ok=True)
        await self._box.files.mkdir(target)
        excluded = [f"--exclude=./{name}" for name in sorted(EXCLUDED)]
        script = 'from=$1; to=$2; shift 2; tar -C "$from" "$@" -cf - . | tar -C "$to" -xf -'
        await self._run(["sh", "-c", script, "sh", source, target, *excluded])
        if keep:
            await self._box.files.write(f"{target}/.copied", "")
        return target

    async def _seed_npm_cache(self) -> None:
        """Start npm's cache as a copy of the operator's."""
        source, target = self._settings.npm_cache, f"{CACHE}/npm"
        if source and not await self._box.files.exists(target):
            await self._run(["sh", "-c", 'cp -R "$1" "$2.new" && mv "$2.new" "$2"', "sh", source, target])

    async def _run(self, argv: list[str], *, cwd: str | None = None) -> Result:
        """Run one installation step, or raise ServerFailed."""
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
