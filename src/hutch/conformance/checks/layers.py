"""States of a box's files: what was frozen comes back, and nothing is switched under a running program."""

from hutch.conformance.claims import raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import Conflict, NotFound
from hutch.providers.base import Instance


@check("layers", needs="layers")
async def check_goes_back(bench: Workbench) -> None:
    """A frozen state comes back whole: changed, removed and new files, and the box goes on from there."""
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
    """While a program runs, a state can be frozen, but going back is a Conflict, and the program goes on."""
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
async def check_unknown(bench: Workbench) -> None:
    """A state that the box does not have is NotFound, and the box is as it was."""
    async with bench.box() as box:
        await bench.output(box, "echo one > a")
        for state in ("none", "7411", "../0"):
            with raises(NotFound, what=f"going back to the state {state!r}"):
                await box.layers.go_back(state, ())
        same(await bench.output(box, "cat a"), b"one\n", "the file")
