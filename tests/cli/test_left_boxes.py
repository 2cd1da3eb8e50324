"""Boxes that no process keeps: what holds them, what ends them, and what is reported of them afterwards."""

import time
from pathlib import Path

import pytest

from tests.cli.cli_process import TIMEOUT
from tests.cli.conftest import Home

pytestmark = pytest.mark.slow

KEEP = 2.0
"""Seconds without use after which a box of these tests ends."""


def test_a_detached_job_keeps_its_box(home: Home) -> None:
    """Of two boxes that are left for as long, the idle one ends and the one at work does not; prune spares it too.
    Afterwards every command reports what happened, however it names the box (P4, B8)."""
    working, job = at_work(home)
    home.good("box", "create", "--name", "idle", "--keep", f"{KEEP:g}")
    answer = _gone(home, "idle")
    assert "(idle) has been destroyed: nobody used it for 2s" in answer
    assert "beginning of an id" not in answer
    time.sleep(2 * KEEP)
    assert working not in home.good("prune")
    assert home.good("box", "logs", "working", job) == "begun\n"
    assert working in [each["id"] for each in home.json("box", "list")["boxes"]]
    home.good("box", "exec", "working", "--", "sh", "-c", "rm go-on")
    assert "(working) has been destroyed: nobody used it for 2s" in _gone(home, "working")
    done = home.hutch("box", "show", working[:8])
    assert f"box {working} (working) has been destroyed".encode() in done.stderr


def test_every_command_says_that_a_box_was_destroyed(home: Home, tmp_path: Path) -> None:
    """By its name, its id or the beginning of its id, whatever is asked; nothing of it is shown any more. A later box
    of that name is not taken for it (P4)."""
    box = home.json("box", "create", "--name", "ended")["id"]
    job = home.good("box", "exec", "--detach", "ended", "--", "sleep", "1000").strip()
    home.good("box", "destroy", "ended")
    for text in (box, box[:8], "ended"):
        for words in (
            ("show", text), ("exec", text, "--", "true"), ("exec", "--detach", text, "--", "true"), ("jobs", text),
            ("logs", text, job), ("rename", text, "late"), ("pause", text), ("resume", text), ("stop", text),
            ("lease", text), ("release", text), ("takeover", text), ("cp", f"{text}:f", str(tmp_path / "f")),
            ("export", text, str(tmp_path / "box.tar")),
        ):  # fmt: skip
            code, answer = home.answer("box", *words)
            assert (code, answer.get("error", {}).get("code")) == (125, "gone"), (words, answer)
            assert f"box {box} (ended) has been destroyed: destroyed by a call" in answer["error"]["message"]
        (error,) = home.answer("box", "destroy", text)[1]["errors"]
        assert error["code"] == "gone" and "has been destroyed" in error["message"]
    assert box not in [each["id"] for each in home.json("box", "list")["boxes"]]
    again = home.json("box", "create", "--name", "ended")["id"]
    assert home.json("box", "show", "ended")["id"] == again
    assert home.answer("box", "show", box)[1]["error"]["code"] == "gone"
    home.good("box", "destroy", "ended")


def at_work(home: Home) -> tuple[str, str]:
    """A box and the job that runs in it until a file is removed. On a busy machine its clock may be the faster one."""
    command = "echo begun; touch go-on; while test -e go-on; do sleep 0.2; done"
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        box = home.json("box", "create", "--name", "working", "--keep", f"{KEEP:g}")["id"]
        done = home.hutch("box", "exec", "--detach", "working", "--", "sh", "-c", command)
        if done.returncode == 0:
            return box, done.stdout.decode().strip()
        assert b"has been destroyed" in done.stderr
    raise AssertionError("the box always ended before its job began")


def _gone(home: Home, name: str) -> str:
    """Return what is reported of a box when it has ended by itself. Each request would reset its clock."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        time.sleep(3 * KEEP)
        done = home.hutch("box", "exec", name, "--", "true")
        if done.returncode != 0:
            return done.stderr.decode()
    raise AssertionError(f"box {name} did not end")
