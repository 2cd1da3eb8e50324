"""Forks of real native boxes, and merging them back."""

import pytest

from hutch import Hutch
from hutch.errors import Conflict, NotFound, QuotaExceeded
from tests.layers.test_states import shell


async def test_forks_begin_alike_and_go_their_own_ways() -> None:
    async with Hutch() as hutch, hutch.box(env={"A": "1"}, secrets={"S": "hidden"}) as box:
        await shell(box, "echo one > a; mkdir d; echo x > d/f; echo h > ~/h")
        one, two = await box.fork(2)
        for number, fork in enumerate((one, two)):
            assert await shell(fork, "cat a d/f ~/h; echo $A $S") == "one\nx\nh\n1 hidden"
            await shell(fork, f"echo {number} > a; rm -r d; mkdir d; touch d/{number}")
        await shell(box, "echo parent > a")
        assert [await shell(each, "cat a; ls d") for each in (box, one, two)] == ["parent\nf", "0\n0", "1\n1"]
        (below,) = await one.fork()
        await one.destroy()
        assert await shell(below, "cat a; ls d") == "0\n0"
        await below.checkpoint("here")
        await shell(below, "rm -r *")
        await below.rollback("here")
        assert await shell(below, "cat a ~/h; ls d") == "0\nh\n0"
        await two.destroy()
        await below.destroy()
        await shell(box, "cat a d/f")


async def test_a_fork_outlives_its_parent_and_keeps_the_parents_layers() -> None:
    async with Hutch() as hutch:
        box = await hutch.create()
        await shell(box, "echo one > a")
        await box.checkpoint("c")
        await shell(box, "echo two > b")
        (fork,) = await box.fork()
        # The parent drops what only the fork still needs from its own records, but not from the disk.
        await box.rollback("c")
        await box.delete_checkpoint("c")
        await shell(box, "echo three > b; rm a")
        await box.checkpoint()
        assert await shell(fork, "cat a b") == "one\ntwo"
        (second,) = await fork.fork()
        await fork.destroy()
        await box.checkpoint()
        assert await shell(second, "cat a b") == "one\ntwo"
        await box.destroy()
        assert await shell(second, "cat a b; echo more > c; cat c") == "one\ntwo\nmore"


async def test_a_merge_applies_everything_or_nothing() -> None:
    async with Hutch() as hutch, hutch.box() as box:
        await shell(box, "for n in both ours theirs; do echo base > $n; done; mkdir -p d/e; echo x > d/e/f; ln -s a l")
        (fork,) = await box.fork()
        await shell(box, "echo ours > ours; echo new > mine")
        await shell(
            fork,
            "echo theirs > theirs; rm -r d; mkdir n; echo 1 > n/1; ln n/1 n/2; ln -sf b l; chmod 700 n; "
            "truncate -s 1M n/sparse; setfattr -n user.k -v v theirs || true",
        )
        done = await box.merge(fork.id)
        assert "/workspace/theirs" in done.paths and "/workspace/d/e/f" in done.paths
        assert await shell(box, "cat both ours theirs mine n/1; readlink l; ls; stat -c %a n; stat -c %h n/2") == (
            "base\nours\ntheirs\nnew\n1\nb\nboth\nl\nmine\nn\nours\ntheirs\n700\n2"
        )
        await box.rollback(done.checkpoint)
        assert await shell(box, "cat theirs d/e/f mine") == "base\nx\nnew"


@pytest.mark.parametrize(
    ("ours", "theirs", "path"),
    [
        ("echo a > f", "echo b > f", "f"),
        ("rm f", "echo b > f", "f"),
        ("echo a > f", "rm f", "f"),
        ("rm -r d", "echo b > d/new", "d/new"),
        ("echo a > d/new", "rm -r d", "d/new"),
        ("chmod 600 f", "chmod 700 f", "f"),
        ("mkdir n", "touch n", "n"),
        ("rm -r d; touch d", "echo b > d/in", "d/in"),
    ],
)
async def test_a_conflict_changes_nothing_and_is_listed(ours: str, theirs: str, path: str) -> None:
    async with Hutch() as hutch, hutch.box() as box:
        await shell(box, "echo base > f; mkdir d; touch d/in; echo base > other")
        (fork,) = await box.fork()
        await shell(box, ours)
        await shell(fork, f"{theirs}; echo changed > other")
        before = await shell(box, "find . | sort; cat f other d/* 2>/dev/null || true")
        with pytest.raises(Conflict) as refused:
            await box.merge(fork.id)
        assert f"/workspace/{path}" in str(refused.value.details["conflicts"])
        assert refused.value.remedy
        assert await shell(box, "find . | sort; cat f other d/* 2>/dev/null || true") == before
        assert await box.checkpoints() == ()


async def test_the_same_change_on_both_sides_is_no_conflict() -> None:
    async with Hutch() as hutch, hutch.box() as box:
        await shell(box, "echo base > f; mkdir d; touch d/in")
        (fork,) = await box.fork()
        for each in (box, fork):
            await shell(each, "echo same > f; rm -r d; mkdir n; echo n > n/n")
        assert (await box.merge(fork.id)).paths == ()


async def test_a_fork_past_the_quota_makes_nothing() -> None:
    async with Hutch(max_boxes=3, queue_sec=0) as hutch, hutch.box() as box:
        with pytest.raises(QuotaExceeded):
            await box.fork(3)
        assert [info.id for info in await hutch.boxes()] == [box.id]
        assert len(await box.fork(2)) == 2


async def test_only_a_fork_can_be_merged() -> None:
    async with Hutch() as hutch, hutch.box() as box, hutch.box() as other:
        with pytest.raises(Conflict, match="no fork"):
            await box.merge(other.id)
        with pytest.raises(NotFound):
            await box.merge("a" * 20)
        (fork,) = await box.fork()
        with pytest.raises(Conflict, match="no fork"):
            await fork.merge(box.id)
        await box.start("sleep 100")
        with pytest.raises(Conflict, match="working"):
            await box.merge(fork.id)


async def test_a_merge_removes_an_attribute_that_the_fork_has_removed() -> None:
    """A directory that stays a directory is as in the fork afterwards: found by a history of `test_model`."""
    mark = "import os; os.setxattr('d', 'user.k', b'1')"
    unmark = "import os; os.rmdir('d'); os.mkdir('d')"
    look = "import os; print(os.listxattr('d'))"
    async with Hutch() as hutch, hutch.box() as box:
        assert (await box.exec(["python3", "-c", f"import os; os.mkdir('d'); {mark}"])).ok
        (fork,) = await box.fork()
        assert (await fork.exec(["python3", "-c", unmark])).ok
        assert (await box.merge(fork.id)).paths == ("/workspace/d",)
        assert (await box.exec(["python3", "-c", look])).stdout == "[]\n"
        await fork.destroy()


async def test_names_below_a_link_are_not_those_where_it_leads() -> None:
    """A link that becomes a directory, or the reverse, is compared and merged by itself: found by a history."""
    async with Hutch() as hutch, hutch.box() as box:
        await shell(box, "mkdir real; echo real > real/f; ln -s real d; ln -s loop loop; ln -s / top")
        await box.checkpoint("links")
        (fork,) = await box.fork()
        await shell(
            fork, "rm d loop top; mkdir d loop top; echo 1 > d/f; echo 2 > loop/f; mkdir top/m; echo 3 > top/m/f"
        )
        assert set((await box.merge(fork.id)).paths) == {
            f"/workspace/{each}" for each in ("d", "d/f", "loop", "loop/f", "top", "top/m", "top/m/f")
        }
        assert await shell(box, "cat d/f loop/f top/m/f real/f") == "1\n2\n3\nreal"
        kinds = {each.path: each.kind.value for each in (await box.diff("links", text=True)).changes}
        assert kinds["/workspace/d/f"] == kinds["/workspace/loop/f"] == "added" and kinds["/workspace/top"] == "changed"
        assert "/workspace/real/f" not in kinds
        await fork.destroy()
