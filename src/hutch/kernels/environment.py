"""The prepared environment: the interpreter and libraries that are forked into boxes, made once by the operator.

It is a virtual environment below the state directory, or one that the operator names. Boxes see it read-only at the
same path, because libraries load parts of themselves later. The link `kernels/environment` names it for the native
engine.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from hutch.errors import EngineError, Invalid
from hutch.model.record import Record
from hutch.providers.native.rootfs.images import ENVIRONMENT

PACKAGES = ("ipython", "numpy", "pandas", "matplotlib")
"""What `hutch kernel prepare` installs, besides what the operator lists."""
LIBRARIES = ("numpy", "pandas", "matplotlib", "matplotlib.pyplot", "IPython")
"""What a template imports, if the environment has it."""


class Environment(Record, frozen=True, kw_only=True):
    """A prepared environment, as `environment.json` keeps it."""

    prefix: str
    python: str
    libraries: tuple[str, ...] = LIBRARIES
    packages: tuple[str, ...] = PACKAGES


def load(state_dir: Path) -> Environment | None:
    """Return the prepared environment; None if there is none."""
    try:
        return Environment.from_json(_record(state_dir).read_bytes())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # Where there is no state directory that we can read, nothing is prepared for us.


def prepare(
    state_dir: Path, extra: Iterable[str] = (), *, python: str = "", progress: Callable[[str], None] = lambda _: None
) -> Environment:
    """Make the environment, or take the one that `python` belongs to. A failure leaves an earlier one as it was.

    Raises:
        Invalid: The interpreter is none that boxes could see.
        EngineError: The packages could not be installed; the message has the end of pip's output.
    """
    home = state_dir / "kernels"
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    if python:
        prefix = _prefix_of(python)
        progress(f"using the environment {prefix}")
    elif (present := load(state_dir)) is not None and _has(present, home, (*PACKAGES, *extra)):
        progress(f"these packages are installed already: {present.prefix}")
        prefix = present.prefix
    else:
        prefix = _make(home, (*PACKAGES, *extra), progress)
    names = tuple(dict.fromkeys((*LIBRARIES, *(_module_name(package) for package in extra))))
    packages = tuple(dict.fromkeys((*PACKAGES, *extra)))
    made = Environment(prefix=prefix, python=f"{prefix}/bin/python", libraries=names, packages=packages)
    _replace(_record(state_dir), made.to_json())
    link = state_dir / ENVIRONMENT
    fresh = link.with_name(f"{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(prefix)
    fresh.replace(link)
    progress(f"ready: {prefix}")
    return made


def _has(present: Environment, home: Path, packages: tuple[str, ...]) -> bool:
    """Whether we have made this environment with these packages, and it still works."""
    own = Path(present.prefix).parent == home.resolve() or Path(present.prefix).parent == home
    return own and set(present.packages) == set(packages) and os.access(present.python, os.X_OK)


def _make(home: Path, packages: tuple[str, ...], progress: Callable[[str], None]) -> str:
    base = getattr(sys, "_base_executable", None) or sys.executable
    if not os.path.realpath(base).startswith("/usr/"):
        base = "/usr/bin/python3"  # Boxes see this machine's /usr, and no other place of an interpreter.
    prefix = home / f"python-{os.urandom(4).hex()}"
    progress(f"making {prefix} from {base}")
    try:
        _install(base, prefix, packages, progress)
    except BaseException:
        shutil.rmtree(prefix, ignore_errors=True)
        raise
    return str(prefix)


def _install(base: str, prefix: Path, packages: tuple[str, ...], progress: Callable[[str], None]) -> None:
    # The system's packages are visible, because only then pip installs for the user inside a box.
    _run([base, "-m", "venv", "--system-site-packages", str(prefix)])
    progress(f"installing {', '.join(packages)}")
    # Installed for everybody to read: the boxes' users are no users of this machine.
    previous = os.umask(0o022)
    try:
        _run([f"{prefix}/bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *packages])
    finally:
        os.umask(previous)
    progress("compiling")
    _run([f"{prefix}/bin/python", "-m", "compileall", "-q", "-j", "0", str(prefix / "lib")], check=False)


def _run(command: list[str], *, check: bool = True) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if check and ended.returncode:
        lines = (ended.stderr or ended.stdout).strip().splitlines()[-5:]
        raise EngineError(
            f"{command[0]} {command[2]} failed: {' / '.join(lines)}"[:2000], op="kernel.prepare",
            remedy="check that this machine reaches a package index (PIP_INDEX_URL) and has python3-venv",
        )  # fmt: skip


def _prefix_of(python: str) -> str:
    code = "import sys; print(sys.prefix, sys.base_prefix, sys.version_info >= (3, 11))"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
        prefix, base, recent = found.stdout.split()
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Invalid(f"{python} is no interpreter that works: {error}", op="kernel.prepare") from error
    if recent != "True" or not os.path.realpath(base).startswith("/usr"):
        raise Invalid(
            f"boxes cannot use {python}: it is older than 3.11, or its own files are not below /usr",
            op="kernel.prepare", remedy="name an interpreter of a virtual environment made from /usr/bin/python3",
        )  # fmt: skip
    return os.path.realpath(prefix)


def _module_name(package: str) -> str:
    """The module that a requirement most likely brings; one that does not exist is reported as missing."""
    name = package
    for mark in "<>=!~[;@ ":
        name = name.partition(mark)[0]
    return {"scikit-learn": "sklearn", "pillow": "PIL", "pyyaml": "yaml"}.get(name.lower(), name.replace("-", "_"))


def _record(state_dir: Path) -> Path:
    return state_dir / "kernels" / "environment.json"


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)
