"""The sample third-party provider: installed from its own package, found by its entry point, and true to the kit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2] / "examples/sample-provider"
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the package is installed, beside the development one."""
    place = tmp_path_factory.mktemp("sample")
    source = place / "source"
    shutil.copytree(SAMPLE, source)  # a build writes beside its source
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--no-build-isolation", "--target", str(place / "site"), str(source)]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)
    assert made.returncode == 0, made.stderr
    return os.environ | {"PYTHONPATH": str(place / "site")}


def hutch(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hutch.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)


def test_it_is_short() -> None:
    """In its own package, under 200 lines of Python."""
    lines = [line for path in SAMPLE.glob("src/**/*.py") for line in path.read_text().splitlines()]
    assert len(lines) < 200


def test_it_is_found_by_its_entry_point(installed: dict[str, str]) -> None:
    """P13: third parties register through `hutch.providers`."""
    assert "bubblewrap" in hutch(installed, "providers", "--names").stdout.split()
    assert "bubblewrap" not in hutch(dict(os.environ), "providers", "--names").stdout.split()


@needs_bwrap
@pytest.mark.alone
def test_it_keeps_the_contract(installed: dict[str, str]) -> None:
    """The whole kit, as its author would run it."""
    shown = hutch(installed, "conformance", "bubblewrap", "--json")
    report = json.loads(shown.stdout)
    failed = [finding for finding in report["findings"] if finding["outcome"] == "failed"]
    assert (shown.returncode, failed) == (0, [])
    assert sum(finding["outcome"] == "passed" for finding in report["findings"]) > 150


@needs_bwrap
def test_a_box_of_it_is_made_through_the_front_door(installed: dict[str, str], tmp_path: Path) -> None:
    """Its own settings, prompt text and tool come with it; the profile accepts that nothing holds the processors."""
    (tmp_path / "hutch.toml").write_text(
        '[profiles.jail]\naccept_unenforced = ["cpus"]\n[providers.bubblewrap]\nprogram = "bwrap"\n'
    )
    script = """
import asyncio, json
from hutch import Hutch
from hutch.tools import Tools
async def main():
    async with Hutch() as hutch:
        box = await hutch.create(provider="bubblewrap", profile="jail")
        await hutch.switch(box.id)
        tools = Tools(hutch)
        names = [each["name"] for each in await tools.schemas("anthropic")]
        wall = await tools.call("wall", {})
        print(json.dumps([(await box.exec("id -un")).stdout, "wall" in names, wall.text, await tools.guidance()]))
        await box.destroy()
asyncio.run(main())
"""
    # Not the state directory of other tests, which may have left skills: boxes would show them.
    alone = installed | {"HUTCH_STATE_DIR": str(tmp_path / "state"), "HUTCH_CONFIG": "hutch.toml"}
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=alone, cwd=tmp_path, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    who, has_tool, wall, guidance = json.loads(ran.stdout)
    assert (who, has_tool) == ("user\n", True)
    assert "Seccomp:\t2" in wall and "NoNewPrivs:\t1" in wall
    assert "its system is read-only" in guidance
