"""The keeper is killed at any moment, under load, and nothing that was acknowledged is lost; nothing else is left.

Each round starts a process of its own (`crash_load`), kills it after some number of answers, and lets the next keeper,
here, take over. Every process below the killed one comes to us when its parent dies (we are their subreaper), so that
"no process is left" is counted, not guessed.
"""

import asyncio
import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hutch.keeper.embedded import Hutch
from hutch.keeper.handles import BoxHandle
from hutch.model.results import JobState
from hutch.model.state import State
from hutch.providers.native import kernel
from tests.conftest import remove
from tests.keeper.crash_load import LAST_LINE
from tests.leaks import cgroups_of, descendants

LOAD = Path(__file__).with_name("crash_load.py")
PROOF = Path(__file__).parents[2] / "proof" / "keeper-crashes.json"
PATIENCE = 60.0
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Told:
    """What the dead process had been answered."""

    keepers: list[str] = field(default_factory=list)
    boxes: dict[str, str] = field(default_factory=dict)
    """Boxes that must be there, with their retention."""
    doubtful: set[str] = field(default_factory=set)
    """Being destroyed when the process died: there or not."""
    files: dict[tuple[str, str], str] = field(default_factory=dict)
    jobs: dict[tuple[str, str], str] = field(default_factory=dict)
    lines: dict[tuple[str, str], int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def hear(self, line: str) -> None:
        word, *rest = line.split()
        self.counts[word] += 1
        match word, rest:
            case "keeper", [name]:
                self.keepers.append(name)
            case "box", [box, retention]:
                self.boxes[box] = retention
            case "file", [box, path, text]:
                self.files[box, path] = text
            case "job", [box, job, kind]:
                self.jobs[box, job] = kind
            case "line", [box, job, number]:
                self.lines[box, job] = max(int(number), self.lines.get((box, job), -1))
            case "epoch", [box, number]:
                self.epochs[box] = int(number)
            case "stops", [box]:
                self._drop_jobs(box)
            case "going", [box]:
                self.doubtful.add(box)
                self._forget(box)
            case "gone", [box]:
                self.doubtful.discard(box)
            case ("held" | "back" | "started"), _:
                pass
            case _:
                raise AssertionError(f"the load said {line!r}")

    def _drop_jobs(self, box: str) -> None:
        for key in [key for key in self.jobs if key[0] == box]:
            del self.jobs[key]
            self.lines.pop(key, None)

    def _forget(self, box: str) -> None:
        self._drop_jobs(box)
        self.boxes.pop(box)
        self.epochs.pop(box, None)
        for key in [key for key in self.files if key[0] == box]:
            del self.files[key]


class House:
    """A state and a run directory, the processes that used them, and what those had been told."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.state, self.run = top / "s", top / "r"
        self.told = Told()

    def opened(self) -> Hutch:
        hutch = Hutch(
            state_dir=self.state, run_dir=self.run, provider="native", orphan_grace_sec=120, log_level="off"
        )  # fmt: skip
        self.told.keepers.append(hutch._keeper.id)
        return hutch

    def suffer(self, dice: random.Random, kind: str = "load") -> None:
        """Start a process of this kind, kill it at a random moment, and hear all that it had said."""
        command = [sys.executable, str(LOAD), str(self.state), str(self.run), str(dice.randrange(1 << 30)), kind]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)
        assert process.stdout is not None
        said = b""
        try:
            for _ in range(dice.randrange(2, 100) if kind == "load" else 1):
                said += _line(process.stdout.fileno(), said)
            time.sleep(dice.uniform(0, 0.03 if kind == "load" else 0.15))
            assert process.poll() is None, f"the {kind} ended by itself: {said.decode()[-500:]}"
            _kill(process.pid, dice)
            said += process.stdout.read()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        for line in said.decode().split("\n")[:-1]:
            self.told.hear(line)

    def traces(self) -> list[str]:
        """Whatever is left of anything that ever lived here."""
        left = [str(path) for path in self.run.iterdir() if path.name != "keepers"]
        left += [str(path) for name in ("boxes", "keepers") for path in (self.state / name).glob("*")]
        left += [str(path) for path in (self.run / "keepers").glob("*")]
        left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.top) in line]
        left += [path for keeper in self.told.keepers for path in cgroups_of(keeper)]
        with sqlite3.connect(self.state / "hutch.db") as db:
            left += [f"row {row}" for (row,) in db.execute("SELECT id FROM boxes")]
        db.close()
        return left


def _line(fd: int, said: bytes) -> bytes:
    """At least one more whole line."""
    more = b""
    while not more.endswith(b"\n"):
        assert select.select([fd], [], [], PATIENCE)[0], f"the load is stuck after {said.decode()[-500:]!r}"
        read = os.read(fd, 65536)
        assert read, f"the load died: {said.decode()[-500:]!r}"
        more += read
    return more


def _kill(pid: int, dice: random.Random) -> None:
    """The keeper alone, or its spawners just before, or just after it."""
    spawners = [child for child in descendants(pid) if _parent(child) == pid]
    order = {0: [pid], 1: [*spawners, pid], 2: [pid, *spawners]}[dice.randrange(3)]
    for victim in order:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


@contextmanager
def house() -> Iterator[House]:
    """Orphans come to us while it stands; at its end none is left."""
    before = set(descendants(os.getpid()))
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    top = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    top.chmod(0o755)
    try:
        yield House(top)
        assert _orphans(before) == [], "processes are left"
    finally:
        for pid in set(descendants(os.getpid())) - before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _orphans(before)
        kernel.prctl(PR_SET_CHILD_SUBREAPER, 0)
        remove(top)


def _orphans(before: set[int]) -> list[int]:
    """Processes below us that were not there before, once the dying have died."""
    deadline = time.monotonic() + PATIENCE
    while left := sorted(set(descendants(os.getpid())) - before):
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.01)
    return []


async def examine(house: House, dice: random.Random) -> None:
    """The next keeper: everything acknowledged is there and works; then everything goes."""
    told = house.told
    async with house.opened() as hutch:
        records = {record.id: record for record in await hutch.boxes()}
        states = {record.state for record in records.values()}
        assert states <= {State.RUNNING, State.STOPPED}, records.values()
        assert set(told.boxes) <= set(records), "acknowledged boxes are lost"
        for box, epoch in told.epochs.items():
            assert records[box].epoch >= epoch
        handles = {box: await hutch.attach(box, takeover=True) for box in records}
        await asyncio.gather(*(check_box(told, box, handle) for box, handle in handles.items()))
        assert {record.id for record in await hutch.boxes()} == set(records)
        for box in dice.sample(sorted(records), len(records)):
            await hutch.destroy(box)
        assert [path for path in house.run.iterdir() if not path.name.startswith((".stem-", "keepers"))] == []


async def check_box(told: Told, box_id: str, box: BoxHandle) -> None:
    assert (await box.exec("echo alive")).stdout == "alive\n"
    for (owner, path), text in told.files.items():
        if owner == box_id:
            assert (await box.files.read_text(path)).strip() == text
    known = {job.id: job.state for job in await box.jobs()}
    for (owner, job_id), kind in told.jobs.items():
        if owner != box_id:
            continue
        assert job_id in known, f"job {job_id} of box {box_id} is lost, there are {known}"
        job = await box.job(job_id)
        out = b""
        async with asyncio.timeout(PATIENCE):
            while not (chunk := await job.read(len(out), wait=5.0)).eof:
                out += chunk.data
                if kind == "long" and out.endswith(f"\n{LAST_LINE}\n".encode()):
                    break
            else:
                out += chunk.data
        lines = [int(line) for line in out.split()]
        assert lines == list(range(LAST_LINE + 1)), f"job {job_id} of box {box_id}: {lines}"
        assert lines[-1] >= told.lines.get((box_id, job_id), -1)
        state = (await job.info()).state
        assert state is (JobState.RUNNING if kind == "long" else JobState.EXITED), (kind, state)


def rounds(count: int, seed: int, restarts: int) -> Counter[str]:
    """Kill, take over, look, destroy: `count` times, each in a house of its own; in some, keepers die in the restart."""
    counts: Counter[str] = Counter()
    for number in range(count):
        dice = random.Random(seed * 1000 + number)
        with house() as place:
            place.suffer(dice)
            for _ in range(dice.randint(1, restarts) if restarts else 0):
                place.suffer(dice, "restart")
                counts["kills in a restart"] += 1
            asyncio.run(examine(place, dice))
            assert place.traces() == [], f"left after round {number} of seed {seed}"
            told = place.told
            counts.update(told.counts)
            counts.update(kills=1, found=len(told.boxes), files=len(told.files), jobs=len(told.jobs))
    return counts


@pytest.mark.alone
def test_ten_kills_lose_nothing_and_leave_nothing() -> None:
    """Lessons 1, 2, 4 and 10; B27, P16: a box, its files, its jobs and their unread output outlive a killed keeper."""
    counts = rounds(10, seed=1, restarts=0)
    assert counts["found"] and counts["files"] and counts["jobs"], counts


@pytest.mark.alone
def test_a_keeper_killed_while_it_takes_over_loses_nothing() -> None:
    """The restart itself may be interrupted, more than once."""
    counts = rounds(3, seed=2, restarts=2)
    assert counts["kills in a restart"] >= 3


@pytest.mark.alone
@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_hundred_kills_lose_nothing_and_leave_nothing() -> None:
    seed = 3
    plain, restarted = rounds(75, seed, 0), rounds(25, seed + 1, 2)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    facts = {
        "what": "SIGKILL of a keeper under load; the next one finds all that was acknowledged, and leaves nothing",
        "commit": commit,
        "python": sys.version.split()[0],
        "root": os.geteuid() == 0,
        "seed": seed,
        "counts": dict(sorted((plain + restarted).items())),
    }
    PROOF.parent.mkdir(exist_ok=True)
    PROOF.write_text(json.dumps(facts, indent=2) + "\n")
