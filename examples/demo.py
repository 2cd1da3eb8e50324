"""What Hutch does, in half a minute: boxes are made, used, broken and thrown away, and what happened is shown."""

import asyncio
import os
import tempfile
import time
from pathlib import Path

from hutch import Hutch, __version__
from hutch.errors import HutchError


def say(what: str, result: object = "") -> None:
    print(f"  {what:<44} {result}", flush=True)


def since(start: float) -> str:
    return f"{(time.perf_counter() - start) * 1000:.1f} ms"


async def show_a_box(hutch: Hutch) -> None:
    print("\nA box, from nothing to its first answer")
    start = time.perf_counter()
    async with hutch.box() as box:
        await box.exec(["true"])
        say("the first one also starts the engine", f"{since(start)} ({box.spec.provider})")
    start = time.perf_counter()
    async with hutch.box() as box:
        await box.exec(["true"])
        say("the next one: created, first command done", since(start))
        start = time.perf_counter()
        result = await box.exec("python3 -c 'print(6 * 7)' 2>/dev/null || echo $((6 * 7))")
        say("6 * 7, computed in it", f"{result.stdout.strip()} ({since(start)})")
        await box.files.write("notes/today.txt", "written from outside\n")
        say("a file, written here and read in there", (await box.exec("cat notes/today.txt")).stdout.strip())


async def show_the_wall(hutch: Hutch) -> None:
    print("\nWhat code in there finds when it looks around")
    sights = {
        "who it is": "echo $(id -un) on $(hostname)",
        "its capabilities": "grep CapBnd /proc/self/status | cut -f2",
        "processes it can see": "ls -d /proc/[0-9]* | wc -l",
        "network interfaces": "tail -n +3 /proc/net/dev | cut -d: -f1 | xargs",
        "files in your home that it can see": f"ls -A {Path.home()} | wc -l",
        "replacing /usr/bin/ls": "echo owned 2>&1 > /usr/bin/ls | sed 's/.*: //'",
        "a namespace of its own to be root in": "unshare --user --map-root-user id -u 2>&1 | sed 's/.*: //'",
    }
    async with hutch.box() as box:
        for what, look in sights.items():
            result = await box.exec(["sh", "-c", f"({look}) 2>&1"])
            say(what, result.stdout.strip())


async def show_limits(hutch: Hutch) -> None:
    print("\nLimits hold, the box survives, and the agent learns why and what to do")
    attacks = {
        "eats memory": "python3 -c 'x = bytes([1]) * (400 << 20)'",
        "a fork bomb": "python3 -c 'import os\nwhile True: os.fork()'",
        "fills the disk": "head -c 64M /dev/zero > big",
        "never ends": "sleep 100",
    }
    for what, command in attacks.items():
        async with hutch.box(memory_mb=192, pids=32, disk_mb=16) as box:
            verdict = (await box.exec(command, timeout=2)).verdict
            say(what, f"{verdict.cause}: {verdict.message}")
            say("", f"→ {verdict.remedy}")
            alive = (await box.exec("echo yes")).stdout.strip()
            say("  does the box still answer?", alive)


async def show_jobs(hutch: Hutch) -> None:
    print("\nProcesses go on between calls")
    async with hutch.box() as box:
        job = await box.start('while read line; do echo "you said $line"; done')
        await job.write("hello\n")
        chunk = await job.read(wait=10)
        say("a shell, written to and read from", chunk.text.strip())
        await job.close_stdin()
        say("its exit code", (await job.wait(10)).exit_code)


async def show_many(hutch: Hutch) -> None:
    print("\nA hundred boxes at once")
    start = time.perf_counter()
    boxes = await asyncio.gather(*(hutch.create() for _ in range(100)))
    say("created", since(start))
    start = time.perf_counter()
    answers = await asyncio.gather(*(box.exec(["hostname"]) for box in boxes))
    say("each ran a command", f"{since(start)}, {len({answer.stdout for answer in answers})} host names")
    start = time.perf_counter()
    await asyncio.gather(*(box.destroy() for box in boxes))
    say("destroyed", since(start))


def left_behind(scratch: Path) -> dict[str, int]:
    """What of ours is on the machine: processes below us, mounts, boxes' directories."""
    parents = (Path(f"/proc/{pid}/stat") for pid in os.listdir("/proc") if pid.isdigit())
    ours = 0
    for stat in parents:
        try:
            ours += stat.read_text().rpartition(")")[2].split()[1] == str(os.getpid())
        except OSError:
            continue  # it has just ended
    mounts = Path("/proc/self/mountinfo").read_text().count(str(scratch))
    own = {"keepers", "processes"}  # of the keepers, not of boxes
    boxes = sum(path.name not in own for name in ("r", "s/boxes") for path in (scratch / name).glob("*"))
    return {"processes": ours, "mounts": mounts, "directories of boxes": boxes}


async def main() -> None:
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    print(f"Hutch {__version__} on Linux {os.uname().release}, as {who}: no daemon, no container engine, no KVM")
    with tempfile.TemporaryDirectory(prefix="hd-", dir="/tmp") as name:
        scratch = Path(name)
        async with Hutch(state_dir=str(scratch / "s"), run_dir=str(scratch / "r")) as hutch:
            await show_a_box(hutch)
            await show_the_wall(hutch)
            await show_limits(hutch)
            await show_jobs(hutch)
            await show_many(hutch)
        print("\nWhat is left of all that")
        for what, count in left_behind(scratch).items():
            say(what, count)
    print("\nNext: `hutch run -- COMMAND`, `hutch shell`, `hutch --help`; docs/guides/ has the rest.")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except HutchError as error:
        raise SystemExit(f"hutch: {error}\nRun `hutch doctor` to see what this machine lacks.") from error
