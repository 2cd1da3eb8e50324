"""Terminals: a job with a pty is what a person at a shell expects."""

from hutch.conformance.claims import same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.providers.base import Instance


@check("terminal", needs="pty")
async def check_is_terminal(bench: Workbench) -> None:
    """All three streams of a job with a pty are one terminal; what it shows is stdout."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo yes >&2"), pty=True)
        result = await bench.ended(job)
        same((result.exit_code, result.stdout_bytes, result.stderr_bytes), (0, b"yes\r\n", b""), "result")
        same((await job.info()).pty, True, "info.pty")


@check("terminal", needs="pty")
async def check_size(bench: Workbench) -> None:
    """The terminal has the size that was asked for."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("stty", "size"), pty=True, rows=33, cols=101)
        same((await bench.ended(job)).stdout_bytes, b"33 101\r\n", "size")


@check("terminal", needs="pty")
async def check_resize(bench: Workbench) -> None:
    """Resizing changes the terminal and notifies the program with SIGWINCH."""
    async with bench.plain_box() as box:
        script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
        job = await bench.start(box, ("sh", "-c", script), pty=True)
        await bench.read_until(job, b"ready")
        await job.resize(50, 132)
        await bench.read_until(job, b"50 132")


@check("terminal", needs="pty")
async def check_interrupt(bench: Workbench) -> None:
    """Ctrl-C interrupts the program in the foreground, and the shell of the terminal keeps running."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-i"), pty=True, env={"PS1": "$ "})
        await job.write(b"sleep 7411; echo interrupted with $?\n")
        await bench.until(lambda: _sleeps(bench, box), "the program in the foreground")
        await job.write(b"\x03")
        await bench.until(lambda: _woke(bench, box), "the end of the interrupted program")
        await job.write(b"echo shell-$((40+2))\n")
        await bench.read_until(job, b"shell-42")


@check("terminal", needs="pty")
async def check_echo(bench: Workbench) -> None:
    """What is typed is echoed, and Ctrl-D at the start of a line ends the input."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",), pty=True)
        await job.write(b"typed\n")
        await bench.read_until(job, b"typed\r\ntyped\r\n")
        await job.write(b"\x04")
        same((await bench.ended(job)).exit_code, 0, "exit code")


@check("terminal", needs="pty")
async def check_hangup(bench: Workbench) -> None:
    """Closing the input of a terminal ends a shell that waits at its prompt."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-i"), pty=True, env={"PS1": "prompt> "})
        await bench.read_until(job, b"prompt> ")
        await job.close_stdin()
        await bench.ended(job)


async def _sleeps(bench: Workbench, box: Instance) -> bool:
    return await bench.processes(box, "7411") > 0


async def _woke(bench: Workbench, box: Instance) -> bool:
    return not await _sleeps(bench, box)
