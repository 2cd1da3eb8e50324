"""The templates of apps: what each installs, how it starts, and the files that it begins with (`scaffolds/NAME/`)."""

from dataclasses import dataclass, field
from pathlib import Path

from hutch.errors import Invalid
from hutch.model.apps import TemplateInfo

_SCAFFOLDS = Path(__file__).parent / "scaffolds"
_NODE_LIMITS = {"memory_mb": 2048, "disk_mb": 2048, "pids": 512}
_PYTHON_LIMITS = {"memory_mb": 1024, "disk_mb": 1024, "pids": 256}
_NPM_INSTALL = "npm install --no-audit --no-fund --no-progress"
_PIP_INSTALL = "python3 -m venv .venv && .venv/bin/python -m pip install -r requirements.txt"


@dataclass(frozen=True)
class Template:
    """One kind of app. Its commands run in the workspace, with the port in `$PORT`."""

    name: str
    title: str
    description: str
    port: int
    programs: tuple[str, ...]
    manifest: str
    """The file that says what is installed. A workspace that has it is taken as it is."""
    start: str
    install: str = ""
    installed: str = ""
    """The directory that holds what was installed."""
    limits: dict[str, int] = field(default_factory=dict)
    """Limits of a box whose creator names none."""

    def files(self) -> dict[str, bytes]:
        """Return the files that it begins with, by their paths in the workspace."""
        home = _SCAFFOLDS / self.name
        return {
            str(path.relative_to(home)): path.read_bytes()
            for path in sorted(home.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }

    def info(self) -> TemplateInfo:
        return TemplateInfo(
            name=self.name, title=self.title, description=self.description, port=self.port, programs=self.programs,
            installs=bool(self.install),
        )  # fmt: skip


def _node(name: str, title: str, description: str, port: int, start: str) -> Template:
    return Template(
        name=name, title=title, description=description, port=port, programs=("node", "npm"), manifest="package.json",
        install=_NPM_INSTALL, installed="node_modules", start=start, limits=_NODE_LIMITS,
    )  # fmt: skip


def _python(name: str, title: str, description: str, port: int, start: str) -> Template:
    return Template(
        name=name, title=title, description=description, port=port, programs=("python3",), manifest="requirements.txt",
        install=_PIP_INSTALL, installed=".venv", start=start, limits=_PYTHON_LIMITS,
    )  # fmt: skip


_VITE = 'exec node_modules/.bin/vite --host 127.0.0.1 --port "$PORT" --strictPort'
TEMPLATES: dict[str, Template] = {
    each.name: each
    for each in (
        _node("react", "React", "React with Vite; pages follow every change of a file", 5173, _VITE),
        _node("vue", "Vue", "Vue with Vite; pages follow every change of a file", 5173, _VITE),
        _node("next", "Next.js", "Next.js with pages that are rendered on the server", 3000,
              'exec node_modules/.bin/next dev --hostname 127.0.0.1 --port "$PORT"'),
        _node("express", "Express", "an HTTP API on Node, restarted at every change", 3000,
              "exec node --watch server.js"),
        _python("fastapi", "FastAPI", "an HTTP API in Python, restarted at every change", 8000,
                'exec .venv/bin/uvicorn main:app --host 127.0.0.1 --port "$PORT" --reload'),
        _python("flask", "Flask", "a web site in Python, restarted at every change", 5000,
                'exec .venv/bin/flask --app app run --host 127.0.0.1 --port "$PORT" --reload --no-debugger'),
        Template(
            name="static", title="Static", description="files of a directory, without any package", port=8000,
            programs=("python3",), manifest="public/index.html",
            start='exec python3 -m http.server "$PORT" --bind 127.0.0.1 --directory public',
        ),
    )
}  # fmt: skip


def find_template(name: str) -> Template:
    """Return a template. Raises: Invalid if there is none of this name."""
    if name not in TEMPLATES:
        raise Invalid(f"there is no template {name[:40]!r}", op="app", remedy=f"one of {', '.join(TEMPLATES)}")
    return TEMPLATES[name]
