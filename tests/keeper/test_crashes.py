"""The keeper is killed at any moment, under load, and nothing that was acknowledged is lost; nothing else is left.

Each round starts a process of its own (`crash_load`), kills it after some number of answers, and lets the next keeper,
here, take over.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sized
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hutch.keeper.access.handles import BoxHandle
from hutch.model.boxes import State
from hutch.model.ids import BoxId
from hutch.model.results import JobState
from tests.keeper.crash_load import LAST_LINE
from tests.keeper.killed_keepers import PATIENCE, House, any_order, house
from tests.proofs import write

pytestmark = pytest.mark.slow

LOAD = Path(__file__).with_name("crash_load.py")


@dataclass
class Told:
    """What the dead process had been answered."""

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
            case (("keeper" | "held" | "back" | "started"), _):
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


async def examine(place: House, answer: Told, dice: random.Random) -> None:
    """The next keeper: everything acknowledged is there and works; then everything is destroyed."""
    async with place.opened() as hutch:
        records = {record.id: record for record in hutch._keeper.boxes()}
        odd = [record for record in records.values() if record.state not in (State.RUNNING, State.STOPPED)]
        assert not odd, [f"{record.id} {record.state}: {record.reason}" for record in odd]
        lost = set(answer.boxes) - set(records)
        assert not lost, f"acknowledged boxes are lost: {place.fates(lost)}"
        for box, epoch in answer.epochs.items():
            assert records[BoxId(box)].epoch >= epoch
        handles = {box: await hutch.attach(box, takeover=True) for box in records}
        await asyncio.gather(*(check_box(answer, box, handle) for box, handle in handles.items()))
        assert {record.id for record in hutch._keeper.boxes()} == set(records)
        for box in dice.sample(sorted(records), len(records)):
            await hutch.destroy(box)
        assert place.boxes() == []


async def check_box(answer: Told, box_id: str, box: BoxHandle) -> None:
    assert (await box.exec("echo alive")).stdout == "alive\n"
    for (owner, path), text in answer.files.items():
        if owner == box_id:
            assert (await box.files.read_text(path)).strip() == text
    known = {job.id: job.state for job in await box.jobs()}
    for (owner, job_id), kind in answer.jobs.items():
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
        assert lines[-1] >= answer.lines.get((box_id, job_id), -1)
        state = (await job.info()).state
        assert state is (JobState.RUNNING if kind == "long" else JobState.EXITED), (kind, state)


def suffer(place: House, answer: Told, dice: random.Random, kind: str) -> None:
    """Start a keeper, kill it at a random moment, and hear all that it had said."""
    resident = place.resident(LOAD, str(dice.randrange(1 << 30)), kind)
    if kind == "load":
        resident.hear(dice.randrange(2, 100))
    time.sleep(dice.uniform(0, 0.03 if kind == "load" else 0.15))
    for line in resident.kill(any_order(dice)):
        answer.hear(line)


def rounds(count: int, seed: int, restarts: int) -> Counter[str]:
    """Kill, take over, look, destroy: `count` times, each in a house of its own. `restarts`: more keepers die there."""
    counts: Counter[str] = Counter()
    for number in range(count):
        dice, answer = random.Random(seed * 1000 + number), Told()
        with house() as place:
            suffer(place, answer, dice, "load")
            for _ in range(dice.randint(1, restarts) if restarts else 0):
                suffer(place, answer, dice, "restart")
                counts["kills in a restart"] += 1
            asyncio.run(examine(place, answer, dice))
            assert not (left := place.traces()), f"round {number} of seed {seed} left {left}"
        counts.update({f"acknowledged: {word}": count for word, count in answer.counts.items()})
        found: dict[str, Sized] = {
            "boxes": answer.boxes,
            "files": answer.files,
            "jobs": answer.jobs,
            "boxes taken over": answer.epochs,
        }
        counts.update({"kills": 1, **{f"found again: {what}": len(things) for what, things in found.items()}})
    return counts


@pytest.mark.alone
def test_ten_kills_lose_nothing_and_leave_nothing() -> None:
    """A box, its files, its jobs and their unread output outlive a killed keeper (B27, P16).

    No crash leaks or loses anything (lesson 1, lesson 2, lesson 4, lesson 10).
    """
    counts = rounds(10, seed=1, restarts=0)
    assert all(counts[f"found again: {what}"] for what in ("boxes", "files", "jobs")), counts


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
    counts = dict(sorted((plain + restarted).items()))
    write("keeper-crashes", what="SIGKILL of a keeper under load", seed=seed, counts=counts)
