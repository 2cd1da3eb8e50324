"""States of a box's files: what was frozen comes back, and nothing is switched under a running program."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hutch.conformance.claims import holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import Conflict, NotFound
from hutch.providers.base import Instance


@check("layers", needs="layers")
async def check_goes_back(bench: Workbench) -> None:
    """A frozen state comes back whole: changed, removed and new files, and the box continues from there."""
    async with bench.box() as box:
        await bench.output(box, "echo one > changed; echo one > removed; mkdir d; echo one > d/f")
        frozen = await box.layers.freeze(())
        await bench.output(box, "echo two > changed; rm removed; rm -r d; echo two > new")
        await box.layers.go_back(frozen.state, (frozen.state,))
        same(await bench.output(box, "cat changed removed d/f; ls"), b"one\none\none\nchanged\nd\nremoved\n", "files")
        await bench.output(box, "echo three > changed")
        await box.layers.go_back(frozen.state, (frozen.state,))
        same(await bench.output(box, "cat changed"), b"one\n", "the file after a second time")


@check("layers", needs="layers")
async def check_running(bench: Workbench) -> None:
    """While a program runs, a state can be frozen, but going back is a Conflict, and the program keeps running."""
    async with bench.box() as box:
        await bench.output(box, "echo one > a")
        first = await box.layers.freeze(())
        job = await bench.start(box, "echo two > a; while :; do sleep 0.05; done")
        await bench.until(lambda: _is(bench, box, b"two\n"), "the program's file")
        second = await box.layers.freeze((first.state,))
        with raises(Conflict, what="going back under a running program"):
            await box.layers.go_back(first.state, (first.state, second.state))
        same((await job.info()).exit_code, None, "the program's exit code")
        await box.layers.go_back(first.state, (first.state, second.state), kill=True)
        same(await bench.output(box, "cat a"), b"one\n", "the file before the program")
        await box.layers.go_back(second.state, (second.state,))
        same(await bench.output(box, "cat a"), b"two\n", "the file that was frozen while it ran")


async def _is(bench: Workbench, box: Instance, content: bytes) -> bool:
    return (await bench.run(box, "cat a")).stdout_bytes == content


@check("layers", needs="layers")
async def check_compare(bench: Workbench) -> None:
    """Comparing lists each changed path once, with kind and size."""
    async with bench.box() as box:
        await bench.output(box, "echo one > changed; echo one > removed; echo one > same")
        frozen = await box.layers.freeze(())
        await bench.output(box, "echo twotwo > changed; rm removed; echo new > new; touch same")
        found, truncated = await box.layers.compare(frozen.state, "", text=False)
        listed = {each.path.rpartition("/")[2]: (each.kind.value, each.size_before, each.size_after) for each in found}
        wanted = {"changed": ("changed", 4, 7), "removed": ("removed", 4, None), "new": ("added", None, 4)}
        same((listed, truncated), (wanted, False), "changes")


@check("layers", needs="layers")
async def check_sizes(bench: Workbench) -> None:
    """A state counts what it has beside those before it; "" is the present one. With `squash`, old files are free."""
    async with bench.box() as box:
        await bench.output(box, "head -c 2000000 /dev/urandom > big")
        first = await box.layers.freeze(())
        await bench.output(box, "head -c 2000000 /dev/urandom > big")
        present, before = await box.layers.sizes(("", first.state))
        holds(present >= 2_000_000, f"the present state has 2 MB, not {present} bytes")
        second = await box.layers.freeze((first.state,), squash=True)
        await box.layers.drop((second.state,))
        (alone,) = await box.layers.sizes((second.state,))
        holds(2_000_000 <= alone < 3_000_000, f"without the file that was replaced there are 2 MB, not {alone} bytes")
        holds(present + before >= 4_000_000, f"both states have 4 MB, not {present + before} bytes")


@check("layers", needs="layers")
async def check_unknown(bench: Workbench) -> None:
    """A state that the box does not have is NotFound, and the box is as it was."""
    async with bench.box() as box:
        await bench.output(box, "echo one > a")
        for state in ("none", "7411", "../0"):
            with raises(NotFound, what=f"going back to the state {state!r}"):
                await box.layers.go_back(state, ())
        same(await bench.output(box, "cat a"), b"one\n", "the file")


@check("layers", needs="layers")
async def check_drop(bench: Workbench) -> None:
    """Dropping states leaves those that are kept, and the box as it was."""
    async with bench.box() as box:
        await bench.output(box, "echo one > a")
        first = await box.layers.freeze(())
        await bench.output(box, "echo two > a")
        second = await box.layers.freeze((first.state,))
        await box.layers.go_back(first.state, (first.state, second.state))
        await bench.output(box, "echo three > a")
        await box.layers.drop((second.state,))
        same(await bench.output(box, "cat a"), b"three\n", "the file")
        await box.layers.go_back(second.state, (second.state,))
        same(await bench.output(box, "cat a"), b"two\n", "the file of the kept state")


@check("layers", needs="layers")
async def check_fork(bench: Workbench) -> None:
    """A fork begins with a state of another box's files, and neither of them sees what the other does."""
    async with bench.box() as box:
        await bench.output(box, "echo one > a; mkdir d; ln a d/b; ln -s a link; chmod 640 a")
        frozen = await box.layers.freeze((), to_fork=True)
        await bench.output(box, "echo two > a")
        async with _forked(bench, box, frozen.state) as (fork, _):
            shown = await bench.output(fork, "cat a d/b link; stat -c %a a; pwd")
            same(shown, b"one\none\none\n640\n/workspace\n", "the fork's files")
            await bench.output(fork, "echo three > a; echo new > new")
            same(await bench.output(box, "cat a; ls"), b"two\na\nd\nlink\n", "the files of the box")
            same(await bench.output(fork, "cat a new"), b"three\nnew\n", "the fork's own files")


@check("layers", needs="layers")
async def check_merge(bench: Workbench) -> None:
    """A merge brings what a fork has changed, and keeps what the box itself has changed elsewhere."""
    async with bench.box() as box:
        await bench.output(box, "echo one > both; echo one > gone; mkdir d; echo one > d/f")
        base = await box.layers.freeze((), to_fork=True)
        async with _forked(bench, box, base.state) as (fork, start):
            await bench.output(fork, "echo two > d/f; rm gone; mkdir -p new/deep; echo new > new/deep/f")
            await bench.output(box, "echo ours > ours")
            end = await fork.layers.freeze((start,))
            before = await box.layers.freeze((base.state,))
            keep = (base.state, before.state)
            paths = await box.layers.merge(fork, base.state, start, end.state, keep)
            wanted = {"/workspace/d/f", "/workspace/gone", "/workspace/new", "/workspace/new/deep"}
            same(set(paths), wanted | {"/workspace/new/deep/f"}, "the merged paths")
            shown = await bench.output(box, "cat d/f both ours new/deep/f; ls")
            same(shown, b"two\none\nours\nnew\nboth\nd\nnew\nours\n", "the files after the merge")
            await box.layers.go_back(before.state, keep)
            same(await bench.output(box, "cat d/f; ls"), b"one\nboth\nd\ngone\nours\n", "the files before it")


@check("layers", needs="layers")
async def check_conflict(bench: Workbench) -> None:
    """A merge of what both have changed is a Conflict that lists the paths, and nothing is merged."""
    async with bench.box() as box:
        await bench.output(box, "echo one > a; mkdir d; echo one > d/f")
        base = await box.layers.freeze((), to_fork=True)
        async with _forked(bench, box, base.state) as (fork, start):
            await bench.output(fork, "echo two > a; echo two > d/f; echo two > c")
            await bench.output(box, "echo three > a; rm -r d")
            end = await fork.layers.freeze((start,))
            before = await box.layers.freeze((base.state,))
            with raises(Conflict, what="merging what both have changed") as caught:
                await box.layers.merge(fork, base.state, start, end.state, (base.state, before.state))
            same(caught.error.details.get("conflicts"), ["/workspace/a", "/workspace/d/f"], "the conflicts")
            same(await bench.output(box, "cat a; ls"), b"three\na\n", "the files")


@asynccontextmanager
async def _forked(bench: Workbench, box: Instance, state: str) -> AsyncIterator[tuple[Instance, str]]:
    """Fork the box, and destroy the fork at the end. Yields it with the name of the state there."""
    order = bench.order()
    planned = bench.provider.plan(order)
    frozen: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    frozen.set_result(state)
    try:
        fork, start = await bench.provider.fork(order, planned, box, frozen)
        try:
            yield fork, start
        finally:
            await fork.close()
    finally:
        await bench.provider.destroy(planned)
