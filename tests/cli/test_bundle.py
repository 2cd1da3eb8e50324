"""The bundle of compiled modules, which is used only as long as an import would give the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_process import TIMEOUT

PROGRAM = """
import sys
from hutch.cli.bundle import Bundle
sys.path += sys.argv[2:]
bundle = Bundle(sys.argv[1])
bundle.install()
import outer.inner
bundle.save()
print(outer.inner.VALUE, type(outer.inner.__loader__).__name__, outer.inner.__file__, outer.__path__)
"""
IMPORTED, BUNDLED = "SourceFileLoader", "_Loader"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A directory with a package `outer`, whose module `inner` has a value."""
    return make_package(tmp_path / "source", "'first'")


def make_package(place: Path, value: str) -> Path:
    (place / "outer").mkdir(parents=True)
    (place / "outer" / "__init__.py").touch()
    (place / "outer" / "inner.py").write_text(f"VALUE = {value}\n")
    return place


def found(bundle: Path, *path: Path, **env: str) -> list[str]:
    """The value, the kind of loader, the file and the package's directory of `outer.inner` in a new process."""
    cold = {name: value for name in ("PATH", "PYTHONPATH") if (value := os.environ.get(name))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, bundle, *path], capture_output=True, text=True, timeout=TIMEOUT, env=cold | env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_second_process_finds_its_modules_in_the_bundle(tmp_path: Path, package: Path) -> None:
    where = [str(package / "outer" / "inner.py"), f"['{package / 'outer'}']"]
    assert found(tmp_path / "bundle", package) == ["first", IMPORTED, *where]
    assert found(tmp_path / "bundle", package) == ["first", BUNDLED, *where]
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["bundle"]


def test_a_changed_source_is_imported_and_then_bundled(tmp_path: Path, package: Path) -> None:
    found(tmp_path / "bundle", package)
    source = package / "outer" / "inner.py"
    before = source.stat()
    source.write_text("VALUE = 'other'\n")  # of the same size, so that only the time tells
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 2_000_000_000))
    assert found(tmp_path / "bundle", package)[:2] == ["other", IMPORTED]
    assert found(tmp_path / "bundle", package)[:2] == ["other", BUNDLED]


def test_a_removed_source_is_not_found(tmp_path: Path, package: Path) -> None:
    found(tmp_path / "bundle", package)
    (package / "outer" / "inner.py").unlink()
    with pytest.raises(AssertionError, match="No module named"):
        found(tmp_path / "bundle", package)


def test_another_path_means_other_modules(tmp_path: Path, package: Path) -> None:
    found(tmp_path / "bundle", package)
    other = make_package(tmp_path / "other", "'shadow'")
    assert found(tmp_path / "bundle", other, package)[:2] == ["shadow", IMPORTED]


@pytest.mark.parametrize("content", [b"", b"(", b"\xff" * 100, b"N"])
def test_a_damaged_bundle_is_replaced(tmp_path: Path, package: Path, content: bytes) -> None:
    (tmp_path / "bundle").write_bytes(content)
    assert found(tmp_path / "bundle", package)[:2] == ["first", IMPORTED]
    assert found(tmp_path / "bundle", package)[:2] == ["first", BUNDLED]


def test_who_wants_no_bytecode_gets_no_bundle(tmp_path: Path, package: Path) -> None:
    found(tmp_path / "bundle", package, PYTHONDONTWRITEBYTECODE="1")
    assert not (tmp_path / "bundle").exists()


def test_a_cold_run_has_a_bundle(tmp_path: Path) -> None:
    """As people start it: by its script."""
    script = Path(sys.executable).with_name("hutch")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    written = []
    for _ in range(2):
        done = subprocess.run([script, "run", "--", "echo", "hello"], capture_output=True, timeout=TIMEOUT, env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\n", b"")
        (bundle,) = tmp_path.rglob("run.*.bundle")
        written.append(bundle.stat().st_mtime_ns)
    assert written[0] == written[1]
