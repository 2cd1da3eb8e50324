"""Running one command to its end: what it gets, how its end is reported, what cannot be started."""

import asyncio
import os
import signal

from hutch.conformance.claims import holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import Invalid, NotRunnable
from hutch.model.results import Cause
from hutch.providers.base import Instance

FATAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM,
         signal.SIGTERM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXFSZ)  # fmt: skip
"""The signals that end a program by default, among them those that shells, nohup and Python ignore."""


@check("exec")
async def check_argv(bench: Workbench) -> None:
    """A tuple is the program's argv, each argument byte for byte, and no shell looks at it."""
    arguments = ("two words", "", "$HOME", "*", "it's", 'say "hi"', "a\\b", "line\nbreak", ";", "-n")
    async with bench.plain_box() as box:
        got = await bench.output(box, ("printf", "<%s>", *arguments))
    same(got, b"".join(b"<%s>" % each.encode() for each in arguments), "arguments")


@check("exec")
async def check_odd_argv(bench: Workbench) -> None:
    """Arguments that are not ASCII, or no UTF-8 at all (as surrogates), arrive as the bytes they stand for."""
    async with bench.plain_box() as box:
        got = await bench.output(box, ("printf", "%s", "žluťoučký 🐎", os.fsdecode(b"\xff\xfe\x80")))
    same(got, "žluťoučký 🐎".encode() + b"\xff\xfe\x80", "arguments")


@check("exec")
async def check_shell(bench: Workbench) -> None:
    """A string is a shell's script: pipes, variables and several lines work."""
    async with bench.plain_box() as box:
        got = await bench.output(box, "word=three\nprintf 'one\\ntwo\\n%s\\n' $word | tail -n 2 | tr a-z A-Z")
    same(got, b"TWO\nTHREE\n", "the script's output")


@check("exec")
async def check_exit_code(bench: Workbench) -> None:
    """Exit codes from 0 to 255 are returned, never raised; 0 is the verdict ok, all others are exit."""
    async with bench.plain_box() as box:
        for code in (0, 1, 42, 127, 255):
            result = await bench.run(box, ("sh", "-c", f"exit {code}"))
            same((result.exit_code, result.signal), (code, None), "exit code and signal")
            same(result.verdict.cause, Cause.OK if code == 0 else Cause.EXIT, f"cause of exit code {code}")


@check("exec", needs="isolation")
async def check_cwd(bench: Workbench) -> None:
    """A command starts in the box's workdir; its own cwd may be absolute or relative to that."""
    async with bench.plain_box() as box:
        await bench.output(box, "mkdir -p here/below")
        for cwd, wanted in ((None, "/workspace"), ("here/below", "/workspace/here/below"), ("/tmp", "/tmp")):
            same(await bench.output(box, ("pwd",), cwd=cwd), f"{wanted}\n".encode(), f"working directory for {cwd!r}")


@check("exec", needs="isolation")
async def check_workdir(bench: Workbench) -> None:
    """The spec's workdir is where commands start, and where relative paths of files start too."""
    async with bench.box(workdir="/tmp") as box:
        same(await bench.output(box, ("pwd",)), b"/tmp\n", "working directory")
        await box.files.write("note", b"x")
        same(await bench.output(box, ("cat", "/tmp/note")), b"x", "a file written by a relative path")


@check("exec")
async def check_env(bench: Workbench) -> None:
    """Variables of the spec and of the command arrive unchanged, also empty and multi-line; the command's win."""
    own = {"EMPTY": "", "BOTH": "command", "ODD": "a=b 'c'\n\"d\" ž"}
    async with bench.box(env={"BOX": "spec", "BOTH": "spec"}) as box:
        script = 'printf "%s|%s|%s|%s" "$BOX" "$BOTH" "${EMPTY-unset}" "$ODD"'
        same(await bench.output(box, script, env=own), f"spec|command||{own['ODD']}".encode(), "variables")
        same(await bench.output(box, 'printf "%s" "${ODD-gone}"'), b"gone", "a variable of an earlier command")


@check("exec")
async def check_secrets(bench: Workbench) -> None:
    """Secrets of the spec are variables of every command, and stand in no record."""
    secret = "s3cret-0123456789abcdef"
    async with bench.box(secrets={"TOKEN": secret}) as box:
        same(await bench.output(box, 'printf "%s" "$TOKEN"'), secret.encode(), "the secret inside")
        holds(secret.encode() not in box.record.to_json(), "the record shows a secret")


@check("exec")
async def check_usual_env(bench: Workbench) -> None:
    """Every command has a PATH with the image's programs and a HOME in which it may write."""
    async with bench.plain_box() as box:
        await bench.output(box, 'command -v ls >/dev/null && test -n "$PATH" && cd "$HOME" && : >.conformance')


@check("exec")
async def check_missing_program(bench: Workbench) -> None:
    """A program that does not exist raises NotRunnable, and the box is as before."""
    async with bench.plain_box() as box:
        for program in ("no-such-program-here", "/no/such/program", "./no-such"):
            with raises(NotRunnable, what=f"running {program}"):
                await bench.run(box, (program,))
        await bench.answers(box)


@check("exec")
async def check_not_executable(bench: Workbench) -> None:
    """A file without the execute bit, and a directory, raise NotRunnable."""
    async with bench.plain_box() as box:
        await box.files.write("plain.sh", b"#!/bin/sh\necho ran\n", mode=0o644)
        for program in ("./plain.sh", "/tmp"):
            with raises(NotRunnable, what=f"running {program}"):
                await bench.run(box, (program,))


@check("exec")
async def check_bad_cwd(bench: Workbench) -> None:
    """A cwd that does not exist, or is a file, raises NotRunnable; nothing is run elsewhere."""
    async with bench.plain_box() as box:
        await box.files.write("file", b"")
        for cwd in ("/no/such/directory", "file"):
            with raises(NotRunnable, what=f"running in {cwd}"):
                await bench.run(box, ("touch", "/tmp/ran"), cwd=cwd)
        holds(not await box.files.exists("/tmp/ran"), "the command ran in some other directory")


@check("exec")
async def check_unknown_user(bench: Workbench) -> None:
    """A user that the box does not have is NotRunnable, and the command never runs as somebody else."""
    async with bench.plain_box() as box:
        with raises(NotRunnable, what="running as nobody-of-that-name"):
            await bench.run(box, ("touch", "/tmp/ran"), user="nobody-of-that-name")
        holds(not await box.files.exists("/tmp/ran"), "the command ran as somebody else")


@check("exec", needs="users.root")
async def check_root_user(bench: Workbench) -> None:
    """`user="root"` is the box's root for that one command; the next one is the ordinary user again."""
    async with bench.plain_box() as box:
        same(await bench.output(box, ("id", "-u"), user="root"), b"0\n", "id of root")
        holds(await bench.output(box, ("id", "-u")) != b"0\n", "the ordinary user became root")


@check("exec")
async def check_nul(bench: Workbench) -> None:
    """A NUL byte in an argument, a variable or a cwd is an error (NotRunnable or Invalid), never a shortened text."""
    async with bench.plain_box() as box:
        for fields in ({"command": ("echo", "a\0b")}, {"env": {"A": "a\0b"}}, {"cwd": "/tmp\0/x"}):
            with raises(NotRunnable, Invalid, what=f"a NUL byte in {next(iter(fields))}"):
                await bench.run(box, **{"command": ("echo",), **fields})  # type: ignore[arg-type]
        await bench.answers(box)


@check("exec")
async def check_long_command(bench: Workbench) -> None:
    """Arguments go up to the kernel's bound of 128 KB each; beyond it the start fails cleanly and the box keeps
    running."""
    async with bench.plain_box() as box:
        got = await bench.output(box, ("sh", "-c", 'printf "%s" "${#1}"', "sh", "x" * 120_000))
        same(got, b"120000", "length of the argument")
        with raises(NotRunnable, Invalid, what="an argument of 10 MB"):
            await bench.run(box, ("echo", "x" * 10_000_000))
        await bench.answers(box)


@check("exec")
async def check_timeout(bench: Workbench) -> None:
    """At its timeout the whole process group is killed and the verdict is timeout; output until then is kept (B4)."""
    async with bench.plain_box() as box:
        script = "echo before; sleep 7391 & sleep 7391; echo after"
        result = await bench.run(box, ("sh", "-c", script), timeout_sec=0.4)
        same(result.verdict.cause, Cause.TIMEOUT, "cause")
        same(result.exit_code, 137, "exit code of a killed command")
        same(result.stdout_bytes, b"before\n", "output before the timeout")
        await bench.until(lambda: _none(bench, box, "7391"), "the end of the group's other processes")


@check("exec")
async def check_timeout_keeps_box(bench: Workbench) -> None:
    """A timed-out command takes nothing else with it: files, jobs and the box stay (lesson 16)."""
    async with bench.plain_box() as box:
        await box.files.write("kept", b"kept")
        job = await bench.start(box, ("cat",))
        await bench.run(box, ("sleep", "7392"), timeout_sec=0.2)
        same(await box.files.read("kept"), b"kept", "a file after another command's timeout")
        await job.write(b"still here\n")
        await bench.read_until(job, b"still here\n")


@check("exec")
async def check_signal_death(bench: Workbench) -> None:
    """A command that a signal ended has that signal, 128 plus its number as exit code, and the verdict signal."""
    async with bench.plain_box() as box:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGABRT):
            result = await bench.run(box, ("sh", "-c", f"kill -{number:d} $$; sleep 60"))
            same((result.exit_code, result.signal), (128 + number, int(number)), "exit code and signal")
            same(result.verdict.cause, Cause.SIGNAL, "cause")


@check("exec")
async def check_default_signals(bench: Workbench) -> None:
    """A command starts with no signal blocked or ignored, so that pipes end and timers ring as people expect."""
    async with bench.plain_box() as box:
        # Each signal is delivered, because a kernel of the box's own need not show them in /proc.
        jobs = {number: await bench.start(box, ("sleep", "7395")) for number in FATAL}
        for number, job in jobs.items():
            await job.signal(number)
        for number, job in jobs.items():
            same((await bench.ended(job)).signal, int(number), f"what ended a program that got {number.name}")


@check("exec", needs="isolation")
async def check_nothing_persists(bench: Workbench) -> None:
    """Nothing but files and jobs stays between two commands: not the directory, not a variable, not a umask."""
    async with bench.plain_box() as box:
        mask = await bench.output(box, "umask")
        await bench.output(box, "cd /tmp; export LEFT=1; umask 0; echo x >/workspace/left")
        got = await bench.output(box, 'printf "%s|%s|" "$PWD" "${LEFT-}"; cat left; umask')
        same(got, b"/workspace||x\n" + mask, "what the next command finds")


@check("exec")
async def check_lingering(bench: Workbench) -> None:
    """A descendant that keeps the output open is not waited for; the result says that it lingers (lesson 26)."""
    async with bench.plain_box() as box:
        result = await bench.run(box, ("sh", "-c", "sleep 7393 & echo done"))
        same((result.exit_code, result.stdout_bytes), (0, b"done\n"), "exit code and output")
        same(result.lingering, True, "lingering")
        same((await bench.run(box, ("echo",))).lingering, False, "lingering of a command without descendants")


@check("exec")
async def check_cancel(bench: Workbench) -> None:
    """Cancelling the call kills the command's process group, and the box keeps running."""
    async with bench.plain_box() as box:
        call = asyncio.create_task(bench.run(box, ("sh", "-c", "sleep 7394 & sleep 7394"), timeout_sec=600))
        await bench.until(lambda: _some(bench, box, "7394"), "the start of the command")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await bench.until(lambda: _none(bench, box, "7394"), "the end of a cancelled command")
        await bench.answers(box)


@check("exec")
async def check_many_at_once(bench: Workbench) -> None:
    """Twenty commands at once in one box each get their own input, output and exit code."""
    async with bench.plain_box() as box:
        results = await asyncio.gather(
            *(bench.run(box, ("sh", "-c", f"cat; exit {n}"), stdin=b"number %d" % n) for n in range(20))
        )
    for number, result in enumerate(results):
        same((result.stdout_bytes, result.exit_code), (b"number %d" % number, number), f"command {number}")


@check("exec")
async def check_usage(bench: Workbench) -> None:
    """A result has wall time, processor time and peak memory, in seconds and megabytes."""
    async with bench.plain_box() as box:
        idle = (await bench.run(box, ("sleep", "0.3"))).usage
        holds(0.3 <= idle.wall_sec <= bench.patience, f"wall time of sleep 0.3 is {idle.wall_sec}")
        holds(idle.cpu_user_sec + idle.cpu_system_sec < 0.3, "processor time of a sleep is not near zero")
        busy = (await bench.run(box, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")).usage
        spent = busy.cpu_user_sec + busy.cpu_system_sec
        holds(0.01 < spent <= busy.wall_sec + 0.1, f"processor time of a loop is {spent} of {busy.wall_sec} s")
        peak = busy.memory_peak_mb
        holds(peak is None or 0.1 < peak < 1000, f"peak memory of a shell is {peak} MB")


async def _none(bench: Workbench, box: Instance, mark: str) -> bool:
    return await bench.processes(box, mark) == 0


async def _some(bench: Workbench, box: Instance, mark: str) -> bool:
    return not await _none(bench, box, mark)
