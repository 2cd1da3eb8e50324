"""host: loud, never by itself, refused by every profile that asks for isolation, and gone with all its processes."""

import os
from pathlib import Path
from typing import Any

import pytest

from hutch import Hutch
from hutch.config import Config
from hutch.errors import Refused
from hutch.model.spec import Spec
from hutch.policy.effective import providers_of
from hutch.policy.profiles import BUILT_IN
from hutch.providers.host.instance import WARNING, translated
from tests.cli.cli_process import hutch as command

NAKED = {"min_isolation": "none", "accept_unenforced": ["cpus", "memory_mb", "pids", "disk_mb"]}


@pytest.fixture
def hutch() -> Hutch:
    return Hutch(profiles={"naked": NAKED})


@pytest.mark.parametrize("profile", sorted(BUILT_IN))
async def test_every_built_in_profile_refuses_it(hutch: Hutch, profile: str) -> None:
    """B26, lesson 22: what runs on the host has to be asked for, and by a profile that says so."""
    async with hutch:
        with pytest.raises(Refused):
            await hutch.create(provider="host", profile=profile)


def test_it_is_never_chosen_by_itself() -> None:
    config = Config.load()
    for profile in BUILT_IN.values():
        assert "host" not in providers_of(Spec(), profile, config.provider, config.fallback)


async def test_each_box_is_loud(hutch: Hutch, log_lines: list[str]) -> None:
    async with hutch:
        async with hutch.box(provider="host", profile="naked") as box:
            first, second = await box.exec("echo $PPID"), await box.exec("true")
        capabilities = next(each for each in await hutch.providers() if each.provider == "host")
    assert WARNING in first.notes and WARNING not in second.notes
    assert (capabilities.isolation, capabilities.facts["warning"]) == ("none", WARNING)
    assert capabilities.grades.memory_mb == "none"
    assert any(WARNING in line and box.id in line for line in log_lines)


async def test_a_workspace_of_its_own(hutch: Hutch) -> None:
    """B11: /workspace means the box's own directory, for files and for working directories."""
    async with hutch, hutch.box(provider="host", profile="naked") as one:
        async with hutch.box(provider="host", profile="naked") as two:
            await one.files.write("/workspace/sub/note", "one")
            assert (await one.exec("cat note", cwd="/workspace/sub")).stdout == "one"
            assert not await two.files.exists("/workspace/sub/note")
            home = (await one.exec("echo $HOME")).stdout.strip()
            assert home != os.environ.get("HOME")
        assert not Path("/workspace/sub").exists()
    assert not Path(home).exists()


async def test_its_end_finds_every_process(hutch: Hutch) -> None:
    """Lesson 2: also those that left their session and their parent."""
    async with hutch:
        box = await hutch.create(provider="host", profile="naked")
        started = await box.exec("setsid sh -c '(sleep 7451 & echo $!; sleep 7452 & echo $!) ' & wait")
        pids = [int(word) for word in started.stdout.split()]
        assert len(pids) == 2 and all(is_there(pid) for pid in pids)
        await box.destroy()
        assert not any(is_there(pid) for pid in pids)


async def test_the_boxes_of_an_engine_end_with_it(tmp_path: Path) -> None:
    """P1: `hutch providers --retire NAME` before a package is uninstalled; boxes of others stay."""
    (tmp_path / "hutch.toml").write_text(
        '[profiles.naked]\nmin_isolation = "none"\naccept_unenforced = ["cpus", "memory_mb", "pids", "disk_mb"]\n'
    )
    naked = ("--config", "hutch.toml", "--provider", "host", "--profile", "naked")
    doomed = command("box", "create", *naked, cwd=tmp_path)
    kept = command("box", "create", cwd=tmp_path)
    assert (doomed.returncode, kept.returncode) == (0, 0), (doomed.stderr, kept.stderr)
    retired = command("providers", "--retire", "host", cwd=tmp_path)
    assert retired.stdout == doomed.stdout, retired.stderr
    shown = command("box", "list", cwd=tmp_path).stdout
    assert kept.stdout.split()[0][:12] in shown and doomed.stdout.split()[0][:12] not in shown
    command("box", "destroy", kept.stdout.decode().strip(), cwd=tmp_path)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("/workspace", "/w"), ("/workspace/a", "/w/a"), ("/workspaces", "/workspaces"), ("a", "a"), ("/etc", "/etc")],
)
def test_only_the_workspace_is_translated(path: Any, wanted: str) -> None:
    assert translated(path, "/w") == wanted
