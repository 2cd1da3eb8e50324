"""What Hutch does, in half a minute: boxes are made, used, broken and thrown away, and the numbers are shown."""

import asyncio
import tempfile
import time
from pathlib import Path

from hutch import Hutch
from hutch.errors import HutchError


def say(what: str, result: object = "") -> None:
    print(f"  {what:<46} {result}", flush=True)


async def show_a_box(hutch: Hutch) -> None:
    print("\nA box, from nothing to its first answer")
    started = time.perf_counter()
    async with hutch.box() as box:
        await box.exec(["true"])
    say("the first one also starts the engine", f"{(time.perf_counter() - started) * 1000:.1f} ms")
    started = time.perf_counter()
    async with hutch.box() as box:
        await box.exec(["true"])
        say("the next one: created, first command done", f"{(time.perf_counter() - started) * 1000:.1f} ms")
        result = await box.exec("python3 -c 'print(6 * 7)' 2>/dev/null || echo $((6 * 7))")
        say("6 * 7, computed inside", result.stdout.strip())
        say("who am I in there", (await box.exec("id -un; hostname")).stdout.split())
        await box.files.write("notes/today.txt", "written from outside\n")
        say("files go in and out", (await box.exec("cat notes/today.txt")).stdout.strip())
        say("the network is", "off" if not (await box.exec("ip route 2>/dev/null")).stdout else "on")
        refused = await box.exec("echo owned > /usr/bin/ls")
        say("the system is", "read-only" if refused.exit_code else "writable?!")


async def show_limits(hutch: Hutch) -> None:
    print("\nLimits bite, the box survives, and the agent is told why")
    async with hutch.box(memory_mb=64, pids=32, disk_mb=16) as box:
        attacks = {
            "eats memory": "x=$(head -c 300M /dev/zero | tr '\\0' x); echo ${#x}",
            "a fork bomb": "python3 -c 'import os\nwhile True: os.fork()'",
            "fills the disk": "head -c 64M /dev/zero > big",
            "never ends": "sleep 100",
        }
        for what, command in attacks.items():
            result = await box.exec(command, timeout=4)
            say(what, f"{result.verdict.cause}: {result.verdict.message}")
        say("and the box still answers", (await box.exec("echo yes")).stdout.strip())


async def show_jobs(hutch: Hutch) -> None:
    print("\nProcesses are resources")
    async with hutch.box() as box:
        job = await box.start('while read line; do echo "you said $line"; done')
        await job.write("hello\n")
        chunk = await job.read(wait=10)
        say("a shell that goes on between calls", chunk.text.strip())
        await job.close_stdin()
        say("it ended with", (await job.wait(10)).exit_code)


async def show_many(hutch: Hutch) -> None:
    print("\nA hundred boxes at once")
    started = time.perf_counter()
    boxes = await asyncio.gather(*(hutch.create() for _ in range(100)))
    made = time.perf_counter()
    answers = await asyncio.gather(*(box.exec(["hostname"]) for box in boxes))
    answered = time.perf_counter()
    say("created", f"{(made - started) * 1000:.0f} ms")
    say("each ran a command", f"{(answered - made) * 1000:.0f} ms, {len({a.stdout for a in answers})} host names")
    await asyncio.gather(*(box.destroy() for box in boxes))
    say("destroyed", f"{(time.perf_counter() - answered) * 1000:.0f} ms")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hd-", dir="/tmp") as scratch:
        async with Hutch(state_dir=str(Path(scratch) / "s"), run_dir=str(Path(scratch) / "r")) as hutch:
            capabilities = (await hutch.providers())[0]
            print(f"Engine: {capabilities.provider}, isolation by {capabilities.isolation}")
            await show_a_box(hutch)
            await show_limits(hutch)
            await show_jobs(hutch)
            await show_many(hutch)
    print("\nNothing is left: no process, no mount, no cgroup, no directory.")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except HutchError as error:
        raise SystemExit(f"hutch: {error}\nRun `hutch doctor` to see what this machine lacks.") from error
