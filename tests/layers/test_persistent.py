"""Layers of persistent boxes: they come back after a stop, and so do checkpoints and forks."""

import os
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import Conflict
from tests.layers.test_states import shell


async def test_a_persistent_box_comes_back_with_its_layers() -> None:
    async with Hutch() as hutch:
        box = await hutch.create(retention="persistent")
        await shell(box, "echo one > a; mkdir d; echo x > d/f; chmod 700 d")
        await box.checkpoint("c")
        await shell(box, "echo two > a; rm -r d; echo new > n")
        for _ in range(2):
            await box.stop()
            box = await hutch.attach(box.id)
            assert await shell(box, "cat a n; ls") == "two\nnew\na\nn"
        await box.checkpoint("later")
        await box.rollback("c")
        assert await shell(box, "cat a d/f; stat -c %a d; ls") == "one\nx\n700\na\nd"
        await shell(box, "echo three > a")
        await box.stop()
        box = await hutch.attach(box.id)
        assert await shell(box, "cat a d/f") == "three\nx"
        await box.rollback("later")
        assert await shell(box, "cat a; ls") == "two\na\nn"
        await box.destroy()


async def test_forks_of_a_persistent_box_are_persistent_and_stand_alone() -> None:
    async with Hutch() as hutch:
        box = await hutch.create(retention="persistent")
        await shell(box, "echo one > a; mkdir d; echo x > d/f; ln a hard; echo gone > gone")
        await box.checkpoint()
        await shell(box, "rm gone; rm -r d; mkdir d; touch d/g")
        fork, other = await box.fork(2)
        assert await shell(fork, "cat a; ls . d") == "one\n.:\na\nd\nhard\n\nd:\ng"
        await shell(fork, "echo fork > a; echo f > new")
        await shell(box, "echo parent > b")
        await fork.stop()
        fork = await hutch.attach(fork.id)
        assert await shell(fork, "cat a new; ls") == "fork\nf\na\nd\nhard\nnew"
        assert set((await box.merge(fork.id)).paths) == {"/workspace/a", "/workspace/new"}
        assert await shell(box, "cat a b new") == "fork\nparent\nf"
        await box.destroy()
        assert await shell(fork, "cat a hard") == "fork\none"
        assert await shell(other, "cat a; ls d") == "one\ng"
        await other.destroy()
        await fork.destroy()


async def test_forks_of_a_persistent_box_share_its_files_on_disk() -> None:
    """Issue 20: what forks have in common is stored once."""
    stores = Path(os.environ["HUTCH_STATE_DIR"]) / "boxes"
    async with Hutch() as hutch:
        box = await hutch.create(retention="persistent", disk_mb=64)
        await shell(box, "head -c 8M /dev/urandom > big; sha256sum big > sum")
        forks = await box.fork(4)
        found = [path for each in (box, *forks) for path in (stores / each.id).rglob("big")]
        assert len(found) == 5 and len({path.lstat().st_ino for path in found}) == 1
        await shell(forks[0], "echo more >> big")
        for each in (box, *forks[1:]):
            assert await shell(each, "sha256sum -c sum") == "big: OK"
        for each in (*forks, box):
            await each.destroy()


async def test_a_box_with_checkpoints_does_not_become_persistent() -> None:
    async with Hutch() as hutch, hutch.box() as box:
        await box.checkpoint("c")
        with pytest.raises(Conflict, match="checkpoints"):
            await box.change(retention="persistent")
        await box.delete_checkpoint("c")
        await shell(box, "echo one > a")
        await box.change(retention="persistent")
        assert await shell(box, "cat a") == "one"
        await box.checkpoint()
        await box.stop()
