"""Code interpreters through every form of Hutch: state, displays, errors, interrupts and what kills a kernel."""

import asyncio

import pytest

from hutch.errors import Invalid, NotFound
from hutch.model.code import CodePiece, KernelState
from hutch.model.results import Cause
from tests.both.forms import Open

STATE = {
    "python": ("value = 20", "print('said'); value + 1", "21"),
    "javascript": ("const value = 20", "console.log('said'); value + 1", "21"),
    "bash": ("declare value=20", "echo said", ""),
}
FAILURES = {
    "python": ("1/0", "ZeroDivisionError", "division by zero"),
    "javascript": ("throw new TypeError('wrong')", "TypeError", "wrong"),
    "bash": ("(exit 3)", "ExitStatus", "3"),
}
ENDLESS = {"python": "while True: pass", "javascript": "while (true) {}", "bash": "while :; do :; done"}
STILL = {"python": "print(value)", "javascript": "console.log(value)", "bash": "echo $value"}
DEATH = {"python": "import os; os._exit(7)", "javascript": "process.exit(7)", "bash": "exit 7"}
VARIABLE = {
    "python": "import os; print(os.environ.get('GIVEN', 'none'))",
    "javascript": "console.log(process.env.GIVEN ?? 'none')",
    "bash": "echo ${GIVEN-none}",
}


@pytest.mark.parametrize("language", list(STATE))
async def test_a_kernel_keeps_its_state_through_everything(open_hutch: Open, language: str) -> None:
    """State lives on after an error and an interrupt, and ends only with its kernel (S5)."""
    first, second, value = STATE[language]
    async with open_hutch() as hutch, hutch.box(memory_mb=512) as box:
        assert (await box.code(language, first)).ok
        result = await box.code(language, second)
        assert (result.stdout, result.text, result.count) == ("said\n", value, 2)
        assert result.verdict.cause is Cause.OK and result.kernel == language

        code, name, text = FAILURES[language]
        failed = await box.code(language, code)
        assert failed.error is not None and (failed.error.name, failed.error.value) == (name, text)
        assert failed.verdict.cause is Cause.EXIT and name in failed.error.traceback + failed.verdict.message

        stopped = await box.code(language, ENDLESS[language], timeout=1)
        assert stopped.verdict.cause is Cause.TIMEOUT and "goes on" in stopped.verdict.message
        assert (await box.code(language, STILL[language])).stdout == "20\n"

        assert (await box.code(language, VARIABLE[language], env={"GIVEN": "this'one"})).stdout == "this'one\n"
        assert (await box.code(language, VARIABLE[language])).stdout == "none\n"

        died = await box.code(language, DEATH[language])
        assert died.verdict.cause is Cause.EXIT and died.error is not None and died.error.name == "KernelDied"
        after = await box.code(language, "")
        assert after.ok and any("state is gone" in note for note in after.notes)
        assert (await box.exec("echo alive")).stdout == "alive\n"


async def test_kernels_are_started_listed_interrupted_restarted_and_removed(open_hutch: Open) -> None:
    """Several kernels of one language run side by side; each has its directory and variables (S5)."""
    async with open_hutch() as hutch, hutch.box(memory_mb=512) as box:
        await box.files.mkdir("below")
        kernel = await box.kernels.start("py", cwd="below", env={"MINE": "yes"})
        assert (kernel.language, kernel.cwd, kernel.state) == ("python", "below", KernelState.IDLE)
        answer = await box.python("import os; print(os.getcwd(), os.environ['MINE'])", kernel=kernel.id)
        assert answer.stdout.strip().endswith("/below yes") and answer.kernel == kernel.id

        other = await box.python("mine = 1")
        assert other.kernel == "python"
        assert {each.id for each in await box.kernels.all()} == {kernel.id, "python"}
        with pytest.raises(Invalid, match="speaks python"):
            await box.code("bash", "true", kernel=kernel.id)

        async def interrupt() -> None:
            while not any(each.state is KernelState.BUSY for each in await box.kernels.all()):
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            await box.kernels.interrupt(kernel.id)

        task = asyncio.create_task(interrupt())
        stopped = await box.python("mine = 2\nimport time\ntime.sleep(1000)", kernel=kernel.id)
        await task
        assert stopped.verdict.cause is Cause.CANCELLED and stopped.error is not None
        assert stopped.error.name == "KeyboardInterrupt"
        assert (await box.python("mine", kernel=kernel.id)).text == "2"

        await box.kernels.restart(kernel.id)
        assert (await box.python("'mine' in globals()", kernel=kernel.id)).text == "False"
        assert (await box.python("mine")).text == "1"

        await box.kernels.remove(kernel.id)
        with pytest.raises(NotFound, match=kernel.id):
            await box.python("1", kernel=kernel.id)
        with pytest.raises(Invalid, match="no kernel speaks 'cobol'"):
            await box.code("cobol", "DISPLAY 1")


async def test_pieces_arrive_while_the_code_runs(open_hutch: Open) -> None:
    """What is printed before the end is there before the end, and leaving early stops the code (S5)."""
    async with open_hutch() as hutch, hutch.box(memory_mb=512) as box:
        code = "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(.01)\n'last'"
        pieces: list[CodePiece] = []
        async for piece in box.kernels.stream("python", code):
            pieces.append(piece)
            if piece.text == "first\n":
                await box.files.write("go", "")
        assert [piece.text for piece in pieces if piece.stream == "stdout"] == ["first\n"]
        shown = [piece.display for piece in pieces if piece.display is not None]
        assert [display.text for display in shown] == ["'last'"] and shown[0].main
        result = pieces[-1].result
        assert result is not None and result.ok and result.stdout == "first\n" and result.text == "'last'"

        leaving = box.kernels.stream("python", "kept = 5\nprint('on')\nwhile True: pass")
        async for piece in leaving:
            assert piece.text == "on\n"
            break
        await leaving.aclose()  # type: ignore[attr-defined]
        assert (await box.python("kept")).text == "5"


async def test_output_without_end_is_bounded(open_hutch: Open) -> None:
    """100 MB of output and 10,000 displays are a bounded result, and the kernel stays (S5)."""
    async with open_hutch() as hutch, hutch.box(memory_mb=512) as box:
        flood = await box.python("for _ in range(100): print('x' * 1_000_000)")
        assert flood.ok and flood.stdout_total == 100_000_100 and len(flood.stdout) < 1_100_000
        assert "characters left out" in flood.stdout
        picture = "class Picture:\n  def _repr_png_(self): return b'\\x89PNG'\n"
        shown = await box.python(picture + "for number in range(10_000): display(Picture())")
        assert shown.ok and len(shown.displays) == 256 and shown.displays_dropped == 10_000 - 256
        nul = await box.python("'a\0b'")
        assert nul.error is not None and "null" in nul.error.value
        refused = await box.code("bash", "echo a\0b")
        assert refused.error is not None and refused.verdict.cause is Cause.EXIT and "NUL" in refused.error.value
        assert (await box.python("1 + 1")).text == "2"


async def test_a_kernel_dies_of_memory_alone(open_hutch: Open, rootless: bool) -> None:
    """A kernel without memory is a result that says so; the box and its other kernels keep running (S5)."""
    async with open_hutch() as hutch, hutch.box(memory_mb=128) as box:
        assert (await box.code("bash", "left=1")).ok
        died = await box.python("hoard = []\nwhile True: hoard.append(b'x' * (1 << 20))", timeout=60)
        assert died.error is not None
        assert died.verdict.cause is Cause.OOM or died.error.name == "MemoryError"
        assert (await box.code("bash", "echo $left")).stdout == "1\n"
        assert (await box.python("2 + 2")).text == "4"
