"""The wheel: built from this tree, installed in an environment that has nothing else of ours, and used there."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import remove

ROOT = Path(__file__).parents[2]
PROGRAM = """
from hutch import __file__, __version__
from hutch.sync import Hutch
with Hutch() as hutch, hutch.box() as box:
    print(box.exec("echo from the wheel").stdout, __version__, __file__)
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the backend that pyproject.toml names, from a copy of what it packs."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
    done = subprocess.run(build, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = (place / "out").glob("*.whl")
    return built


def test_it_holds_the_whole_package(wheel: Path) -> None:
    """Every file of the source, its licence, its command, and the extras that the guides name."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        (about,) = [name for name in packed if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(about).decode()
        entries = archive.read(about.replace("METADATA", "entry_points.txt")).decode()
    source = ROOT / "src"
    wanted = {str(path.relative_to(source)) for path in (source / "hutch").rglob("*") if path.is_file()}
    assert {name for name in wanted if "__pycache__" not in name} <= packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    assert "hutch = hutch.cli.main:main" in entries
    for extra in ("server", "mcp", "postgres", "e2b", "boxlite", "zstd", "otel"):
        assert f"Provides-Extra: {extra}\n" in metadata
    assert re.search(r"^Requires-Dist: mcp.*; extra == .server.$", metadata, re.MULTILINE)


def test_it_works_where_nothing_else_is_installed(wheel: Path) -> None:
    """A command, a box without `await`, and the doctor, from an environment of Hutch and its two dependencies."""
    top = Path(f"/tmp/hw-{os.getpid()}")
    top.mkdir(mode=0o755)
    try:
        venv.create(top / "venv", with_pip=False, symlinks=True)
        python = top / "venv" / "bin" / "python"
        install = ["--python", str(python), "install", "--no-index", "--no-deps", "--quiet", str(wheel)]
        subprocess.run([sys.executable, "-m", "pip", *install], check=True)
        (packages,) = (top / "venv" / "lib").glob("python*/site-packages")
        for name in ("msgspec", "PyYAML"):
            _copy_distribution(name, packages)
        environ = {"PATH": os.environ["PATH"], "HOME": str(top), "HUTCH_STATE_DIR": str(top / "s"),
                   "HUTCH_RUN_DIR": str(top / "r")}  # fmt: skip
        hutch = str(python.with_name("hutch"))
        assert _output(environ, hutch, "run", "--", "echo", "boxed") == "boxed\n"
        said = _output(environ, str(python), "-c", PROGRAM)
        assert "from the wheel" in said and str(packages) in said
        assert json.loads(_output(environ, hutch, "--json", "doctor"))
        missing = subprocess.run([hutch, "serve"], env=environ, capture_output=True, text=True, cwd=top)
        assert missing.returncode != 0 and "pip install 'hutch[server]'" in missing.stderr
    finally:
        remove(top)


def _output(environ: Mapping[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd="/tmp")
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def _copy_distribution(name: str, target: Path) -> None:
    """Copy an installed package, so that the test needs no index."""
    for file in importlib.metadata.files(name) or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            place = target / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), place)
