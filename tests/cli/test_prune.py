"""`hutch prune`: what a killed process left is removed; what lives is not touched (lesson 1) (lesson 2) (lesson 10)."""

import os
import signal
import time
from pathlib import Path

import pytest

from hutch.linux.cgroup_detect import detect
from tests.cli.cli_process import TIMEOUT, answer, boxes, hutch, read_until, started

pytestmark = pytest.mark.slow


def left_behind(env: dict[str, str]) -> list[tuple[str, str]]:
    """Boxes and keepers that a prune has found; what killed tests left besides is nobody's concern here."""
    _, reply = answer("prune", env=env)
    found = [(leftover["kind"], leftover["name"]) for leftover in reply["leftovers"]]
    return [each for each in found if each[0] in ("box", "keeper")]


def test_prune_removes_what_a_killed_process_left_and_keeps_live_boxes(hutch_directories: Path) -> None:
    """The box of a keeper that was killed is found, listed and removed; that of a live one stays (lesson 10)."""
    state, run = hutch_directories / "ps", hutch_directories / "pr"
    env = {"HUTCH_STATE_DIR": str(state), "HUTCH_RUN_DIR": str(run), "HUTCH_ORPHAN_GRACE_SEC": "600"}
    command = ("run", "--timeout", "100", "--", "sh", "-c", "echo ready; read line; echo $line")
    with started(*command, env=env) as killed, started(*command, env=env) as alive:
        for process in (killed, alive):
            assert process.stdout
            read_until(process.stdout.fileno(), b"ready\n")
        keepers = {path.name for path in (state / "keepers").iterdir()}
        killed.kill()
        killed.wait(TIMEOUT)
        before = boxes(run)
        assert len(before) == 2

        code, reply = answer("prune", "--dry-run", env=env)
        assert (code, reply["dry_run"]) == (0, True)
        (left,) = [leftover["name"] for leftover in reply["leftovers"] if leftover["kind"] == "box"]
        assert left in before
        assert boxes(run) == before

        done = hutch("prune", env=env)
        assert done.returncode == 0
        assert f"box {left}: removed" in done.stdout.decode()
        assert boxes(run) == before - {left}
        (survivor,) = [path.name for path in (state / "keepers").iterdir()]
        (dead,) = keepers - {survivor}
        wait_for_no_groups(dead, env)

        assert alive.stdin and alive.stdout
        alive.stdin.write(b"still here\n")
        read_until(alive.stdout.fileno(), b"still here\n")
        assert alive.wait(TIMEOUT) == 0
    assert not boxes(run)
    assert left_behind(env) == []


def wait_for_no_groups(keeper: str, env: dict[str, str]) -> None:
    """The killed keeper's spawner holds them until it has noticed; a prune after that removes them."""
    end = time.monotonic() + TIMEOUT
    while any(os.path.isdir(f"{hierarchy.directory}/hutch-{keeper}") for _, hierarchy in detect().hierarchies):
        assert time.monotonic() < end
        hutch("prune", env=env)


def test_prune_keeps_a_box_of_an_unknown_keeper_while_any_keeper_lives(hutch_directories: Path) -> None:
    """A directory that nobody has signed may be a box that is being made this moment."""
    state, run = hutch_directories / "qs", hutch_directories / "qr"
    env = {"HUTCH_STATE_DIR": str(state), "HUTCH_RUN_DIR": str(run)}
    with started("run", "--", "sh", "-c", "echo ready; read line", env=env) as alive:
        assert alive.stdout
        read_until(alive.stdout.fileno(), b"ready\n")
        unsigned = run / ("a" * 20)
        unsigned.mkdir(0o700)
        assert left_behind(env) == []
        assert unsigned.is_dir()
        os.kill(alive.pid, signal.SIGTERM)
        alive.wait(TIMEOUT)
    assert f"box {unsigned.name}: removed" in hutch("prune", env=env).stdout.decode()
    assert not unsigned.exists()


def test_a_keeper_of_another_state_directory_lives_all_the_same(hutch_directories: Path) -> None:
    """Two programs may share the run directory, where the boxes are, and nothing else (lesson 10)."""
    run = hutch_directories / "sr"
    mine = {"HUTCH_STATE_DIR": str(hutch_directories / "s1"), "HUTCH_RUN_DIR": str(run)}
    others = {"HUTCH_STATE_DIR": str(hutch_directories / "s2"), "HUTCH_RUN_DIR": str(run)}
    with started("run", "--", "sh", "-c", "echo ready; read line", env=others) as alive:
        assert alive.stdout and alive.stdin
        read_until(alive.stdout.fileno(), b"ready\n")
        assert left_behind(mine) == []
        alive.stdin.write(b"end\n")
        assert alive.wait(TIMEOUT) == 0
