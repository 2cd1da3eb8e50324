"""Layers of container boxes through a whole Hutch: copies of their files, and new containers for the old ones."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hutch.api import Box
from hutch.errors import Conflict, HutchError, NotFound
from hutch.keeper.embedded import Hutch
from hutch.model.layers import Way
from hutch.providers.docker import labels
from tests.keeper.faulty_keeper import crash
from tests.providers import daemons
from tests.providers.test_whole import keeper_on, opened

FILES = r"""
umask 022; mkdir -p d/deep; echo one > d/deep/f; ln d/deep/f same; ln -s d/deep/f link; mkfifo pipe
printf 'x\377y' > odd; truncate -s 20M sparse; echo end >> sparse; mkdir closed; echo in > closed/f; chmod 500 closed
chmod 4755 odd
echo home > ~/h; touch "$(printf 'n\377')"
"""
LOOK = r"""
cat d/deep/f same link ~/h closed/f 2>&1; stat -c '%n %a %s %h %F' d d/deep/f same link pipe odd sparse closed
test d/deep/f -ef same && echo one file; ls | LC_ALL=C sort | od -c | tail -3; tail -c 4 sparse; du -m sparse | cut -f1
"""


async def shell(box: Box, command: str, **fields: Any) -> str:
    result = await box.exec(command, **fields)
    assert result.ok, f"{command}: {result.stderr or result.verdict}"
    return result.stdout


async def volumes(docker: daemons.Daemon, box_id: str, label: str = labels.STATE) -> list[str]:
    return [each["Name"] for each in await daemons.engine_of(docker).volumes(f"{label}={box_id}")]


@pytest.mark.parametrize("retention", ["temporary", "persistent"])
async def test_files_of_every_kind_come_back(docker: daemons.Daemon, short_tmp: Path, retention: str) -> None:
    """Issue 20, point 4: the same calls as on native, by copies; a stop keeps a persistent box's checkpoints."""
    async with opened(docker, short_tmp) as hutch, hutch.box(disk_mb=64, retention=retention) as box:
        await shell(box, FILES)
        seen = await shell(box, LOOK)
        assert "one file" in seen and "end" in seen
        first = await box.checkpoint("first")
        assert first.way is Way.COMMIT
        await shell(box, "chmod 700 closed; rm -r d closed odd; echo two > same; echo x > new; rm ~/h; ln -sf / link")
        changes = {each.path: each.kind.value for each in (await box.diff("first", text=True)).changes}
        assert changes["/workspace/d/deep/f"] == "removed" and changes["/workspace/new"] == "added"
        assert changes["/workspace/link"] == "changed" and changes["/home/user/h"] == "removed"
        await box.rollback("first")
        assert await shell(box, LOOK) == seen
        if retention == "persistent":
            await box.stop()
            box = await hutch.attach(box.id)
            assert await shell(box, LOOK) == seen
            await shell(box, "echo three > same")
            await box.rollback("first")
            assert await shell(box, LOOK) == seen
        await box.delete_checkpoint("first")
        assert await volumes(docker, box.id) == []
        with pytest.raises(NotFound):
            await box.rollback("first")
    assert await volumes(docker, box.id) == await volumes(docker, box.id, labels.BOX) == []


async def test_a_writable_root_is_a_part_of_it(docker: daemons.Daemon, short_tmp: Path) -> None:
    """What root has added, changed and removed outside of workspace and home comes back, and a fork has it."""
    async with opened(docker, short_tmp) as hutch, hutch.box(disk_mb=64, read_only_root=False) as box:
        await shell(box, "echo one > /etc/mine; chmod 600 /etc/mine; rm /usr/bin/wc; echo x >> /etc/group", user="root")
        await box.checkpoint("first")
        await shell(box, "echo two > /etc/mine; rm /etc/group; mkdir /opt; echo x > /opt/f", user="root")
        changes = {each.path: each.kind.value for each in (await box.diff("first")).changes}
        assert changes["/etc/mine"] == "changed" and changes["/etc/group"] == "removed" and changes["/opt/f"] == "added"
        (fork,) = await box.fork(checkpoint="first")
        await box.rollback("first")
        for each in (box, fork):
            look = "cat /etc/mine; stat -c %a /etc/mine; tail -n 1 /etc/group; ls /usr/bin/wc /opt 2>&1 | grep -c such"
            assert await shell(each, look, user="root") == "one\n600\nx\n2\n"
        await fork.destroy()


async def test_forks_merges_and_attempts(docker: daemons.Daemon, short_tmp: Path) -> None:
    """Text diffs, three-way merges and attempts are the same as on native."""
    async with opened(docker, short_tmp) as hutch, hutch.box(disk_mb=32) as box:
        await shell(box, "seq 3 > numbers; echo a > a")
        one, two = await box.fork(2)
        await shell(one, "echo 4 >> numbers")
        await shell(two, "echo 5 >> numbers; echo two > two")
        assert (await box.merge(one.id)).paths == ("/workspace/numbers",)
        with pytest.raises(Conflict) as caught:
            await box.merge(two.id)
        assert caught.value.details["conflicts"] == ["/workspace/numbers"]
        assert await shell(box, "cat numbers; ls") == "1\n2\n3\n4\na\nnumbers\n", "nothing was merged"
        tried = await box.attempt("echo 6 >> numbers; exit 3")
        assert not tried.kept and [each.path for each in tried.diff.changes] == ["/workspace/numbers"]
        assert await shell(box, "tail -n 1 numbers") == "4\n"
        found = (await box.diff((await box.checkpoints())[0].id, text=True)).changes
        assert [each.text for each in found] == [
            "--- a/workspace/numbers\n+++ b/workspace/numbers\n@@ -1,3 +1,4 @@\n 1\n 2\n 3\n+4\n"
        ]
        for fork in (one, two):
            await fork.destroy()


async def test_a_running_job_keeps_its_files(docker: daemons.Daemon, short_tmp: Path) -> None:
    """Bad input: rolling back under a job is refused, and `kill` ends it; a copy is made while it stands still."""
    async with opened(docker, short_tmp) as hutch, hutch.box(disk_mb=32) as box:
        await box.checkpoint("before")
        job = await box.start("while :; do echo x >> log; sleep 0.02; done")
        while not await box.files.exists("log"):
            await asyncio.sleep(0.02)
        during = await box.checkpoint("during")
        assert during.way is Way.COPY
        with pytest.raises(Conflict):
            await box.rollback("before")
        before = len(await box.files.read("log"))
        while len(await box.files.read("log")) == before:  # it goes on
            await asyncio.sleep(0.02)
        await box.rollback("before", kill=True)
        assert await shell(box, "ls") == ""
        with pytest.raises(HutchError):
            await job.info()
        await box.rollback("during")
        assert await shell(box, "ls") == "log\n"


async def test_a_keeper_that_dies_leaves_the_old_box_or_the_new_one(docker: daemons.Daemon, short_tmp: Path) -> None:
    """The next keeper finds the box in one of both states, whatever was left beside it, and removes it whole."""
    first = Hutch(keeper=keeper_on(docker, short_tmp))
    await first.__aenter__()
    box = await first.create(disk_mb=32, retention="persistent")
    await shell(box, "echo one > a")
    await box.checkpoint("one")
    await shell(box, "echo two > a")
    engine = daemons.engine_of(docker)
    going = asyncio.ensure_future(box.rollback("one"))
    while await engine.inspect(labels.next_container(box.id)) is None:
        assert not going.done()
        await asyncio.sleep(0.005)
    await crash(first._keeper)
    await asyncio.wait({going})
    async with opened(docker, short_tmp) as second:
        again = await second.attach(box.id)
        assert await shell(again, "cat a") in ("one\n", "two\n")
        await again.rollback("one")
        assert await shell(again, "cat a") == "one\n"
        await second.destroy(box.id)
    assert [await engine.inspect(each(box.id)) for each in (labels.container, labels.next_container)] == [None, None]
    assert await volumes(docker, box.id) == await volumes(docker, box.id, labels.BOX) == []


async def test_a_new_container_whose_old_one_is_gone_is_the_box(docker: daemons.Daemon, short_tmp: Path) -> None:
    """The moment between the removal of the old container and the renaming of the new one."""
    first = Hutch(keeper=keeper_on(docker, short_tmp))
    await first.__aenter__()
    box = await first.create(disk_mb=32)
    await shell(box, "echo new > a")
    await daemons.engine_of(docker).rename(labels.container(box.id), labels.next_container(box.id))
    await crash(first._keeper)
    async with opened(docker, short_tmp) as second:
        again = await second.attach(box.id)
        assert await shell(again, "cat a") == "new\n"
        await second.destroy(box.id)
