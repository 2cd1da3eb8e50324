"""A keeper or a spawner that is killed in the middle of work on layers leaves a whole box, and nothing else."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hutch import Hutch
from tests.conftest import remove
from tests.proofs import write

OPERATIONS = ("checkpoint", "rollback", "fork", "merge", "squash")


def spawners_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "spawner" in Path(f"/proc/{child}/comm").read_text()]


def crash(seed: int) -> None:
    chance = random.Random(seed)
    op, victim = OPERATIONS[seed % len(OPERATIONS)], "keeper" if seed % 2 else "spawner"
    retention = "persistent" if seed % 3 == 0 else "temporary"
    top = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    top.chmod(0o755)
    environment = {**os.environ, "HUTCH_STATE_DIR": str(top / "s"), "HUTCH_RUN_DIR": str(top / "r")}
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.layers.crash_worker", op, retention], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        box_id = worker.stdout.readline().strip()
        assert box_id, f"the worker for {op} did not begin"
        time.sleep(chance.random() * 0.15)
        if victim == "spawner":
            for pid in spawners_of(worker.pid):
                os.kill(pid, signal.SIGKILL)
            time.sleep(chance.random() * 0.05)
        worker.kill()
        worker.wait()
        asyncio.run(asyncio.wait_for(look(top, box_id, op), 300))
    finally:
        worker.kill()
        worker.wait()
        remove(top)


async def look(top: Path, box_id: str, op: str) -> None:
    """The box is in one of the states that it may have, every checkpoint can be reached, and all can be removed."""
    async with Hutch(state_dir=str(top / "s"), run_dir=str(top / "r")) as hutch:
        box = await hutch.attach(box_id)
        seen = (await box.exec("cat a /home/user/b")).stdout.split()
        allowed = {"rollback": ("1", "2"), "merge": ("2", "3")}.get(op, ("2",))
        assert len(seen) == 2 and seen[0] == seen[1] and seen[0] in allowed, f"after {op}: {seen}"
        await box.checkpoint("after")
        for each in (await box.checkpoints())[-5:]:
            await box.rollback(each.id)
            again = (await box.exec("cat a /home/user/b")).stdout.split()
            assert len(again) == 2 and again[0] == again[1], f"checkpoint {each.id} after {op}: {again}"
        await box.rollback("one")
        assert (await box.exec("cat a /home/user/b")).stdout == "1\n1\n"
        for info in await hutch.boxes():
            await hutch.destroy(info.id, force=True)
        assert await hutch.boxes() == ()
    left = [name for name in os.listdir(top / "r") if len(name) == 20]
    stores = top / "s" / "boxes"
    assert left == [] and (not stores.exists() or os.listdir(stores) == []), "something is left"


@pytest.mark.parametrize("seed", range(5))
def test_a_kill_leaves_the_old_or_the_new_state(seed: int) -> None:
    crash(seed)


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_200_kills() -> None:
    """Issue 20: 200 kills of keeper and spawner during work on layers."""
    for seed in range(200):
        crash(1000 + seed)
    write("layer-crashes", kills=200, operations=list(OPERATIONS))
