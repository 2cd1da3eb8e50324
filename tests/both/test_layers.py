"""Checkpoints, forks, merges and races are the same embedded and over a server, and leave receipts."""

import pytest

from hutch import sync
from hutch.api import Box
from hutch.errors import Conflict, NotFound
from hutch.model.layers import Way
from tests.both.forms import Open


async def test_the_life_of_layers(open_hutch: Open) -> None:
    async with open_hutch() as hutch, hutch.box(auto_checkpoint="exec") as box:
        await box.files.write("a", b"one\n")
        first = await box.checkpoint("first")
        assert first.way is Way.SWITCH
        await box.exec("echo two > a; printf x > \"$(printf 'odd\\377')\"")
        found = await box.diff("first", text=True)
        assert "/workspace/odd\udcff" in [change.path for change in found.changes], "names need not be UTF-8"
        assert any(change.text and "-one\n+two\n" in change.text for change in found.changes)
        await box.undo()
        assert await box.files.read("a") == b"one\n"
        failed = await box.attempt("echo three > a; false")
        assert (failed.kept, failed.result.exit_code) == (False, 1)
        assert await box.files.read("a") == b"one\n"
        kept = await box.attempt(["sh", "-c", "echo four > a"], check=["grep", "four", "a"])
        assert kept.kept and kept.result.stdout == "four\n"

        fork, other = await box.fork(2)
        await fork.files.write("fork", b"f")
        await other.files.write("a", b"other")
        assert (await box.merge(fork.id)).paths == ("/workspace/fork",)
        await box.files.write("a", b"mine")
        with pytest.raises(Conflict) as refused:
            await box.merge(other.id)
        assert refused.value.details["conflicts"] == ["/workspace/a"]
        await fork.destroy()
        await other.destroy()
        await box.rollback("first")
        assert await box.files.read("a") == b"one\n"
        await box.delete_checkpoint("first")
        with pytest.raises(NotFound):
            await box.rollback("first")
        observed = await hutch.observe(box.id)
        assert len(await observed.checkpoints()) == len(await box.checkpoints()) > 0
        receipts = [each.op for each in await hutch.receipts.list(box.id)]
        assert {"checkpoint", "undo", "attempt", "fork", "merge", "rollback", "checkpoint.delete"} <= set(receipts)


async def test_a_race_keeps_the_best(open_hutch: Open) -> None:
    async with open_hutch() as hutch, hutch.box() as box:

        async def task(fork: Box, number: int) -> int:
            if number == 2:
                raise ValueError("broken")
            await fork.files.write("answer", str(number).encode())
            return number

        async def score(_fork: Box, result: int) -> float | None:
            return None if result == 3 else float(result)

        done = await hutch.race(box, 4, task, score)
        assert (done.winner, done.scores) == (1, (0.0, 1.0, None, None))
        assert done.errors[2] == "ValueError: broken"
        assert await box.files.read("answer") == b"1"

        async def nothing(_fork: Box, _result: int) -> float | None:
            return None

        assert (await hutch.race(box, 2, task, nothing)).winner is None
        assert [info.id for info in await hutch.boxes() if info.state.value == "running"].count(box.id) == 1
        assert len(await hutch.boxes()) == 1


def test_a_race_without_await() -> None:
    with sync.Hutch() as hutch, hutch.box() as box:

        def task(fork: sync.Box, number: int) -> int:
            fork.files.write("answer", str(number).encode())
            return number

        assert hutch.race(box, 3, task, lambda _fork, number: number).winner == 2
        assert box.files.read("answer") == b"2"
        (fork,) = box.fork()
        assert fork.files.read("answer") == b"2"
        fork.destroy()
