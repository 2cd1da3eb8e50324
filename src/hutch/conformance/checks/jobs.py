"""Processes as resources: started, read by cursor, written to, signalled, waited for, listed, forgotten."""

import asyncio
import signal
import time

from hutch.conformance.claims import broken, holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import Conflict, NotFound, NotRunnable, Timeout, Unsupported
from hutch.model.results import Cause, JobInfo, JobState
from hutch.providers.base import Instance
from hutch.providers.handles import Process

TICKS = "n=0; while [ $n -lt 5 ]; do n=$((n+1)); echo tick $n; echo tock $n >&2; sleep 0.02; done"
TICKED = b"".join(b"tick %d\n" % n for n in range(1, 6))


@check("jobs")
async def check_start(bench: Workbench) -> None:
    """`start` returns while the job runs; `info` has command, name, pid and start; `wait` gives the result."""
    async with bench.plain_box() as box:
        before = time.time()
        job = await bench.start(box, ("sh", "-c", "read line; echo got $line; exit 7"), name="reader")
        info = await job.info()
        same((info.id, info.state, info.name, info.exit_code), (job.id, JobState.RUNNING, "reader", None), "info")
        same(info.command, ("sh", "-c", "read line; echo got $line; exit 7"), "command")
        holds(info.pid > 0, "a running job has no pid")
        holds(before - 60 < info.started_at < time.time() + 60, f"started_at is {info.started_at}, no unix time of now")
        await job.write(b"word\n")
        result = await bench.ended(job)
        same((result.exit_code, result.stdout_bytes, result.verdict.cause), (7, b"got word\n", Cause.EXIT), "result")


@check("jobs")
async def check_info_after_end(bench: Workbench) -> None:
    """After the end `info` carries state, exit code, totals, verdict and usage, every time it is asked."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", "echo out; echo error >&2; exit 4"))
        await bench.ended(job)
        for _ in range(2):
            info = await job.info()
            same((info.state, info.exit_code, info.stdout_total, info.stderr_total), (JobState.EXITED, 4, 4, 6), "info")
            holds(info.verdict is not None and info.verdict.cause is Cause.EXIT, f"verdict is {info.verdict}")
            holds(info.usage is not None, "an ended job has no usage")


@check("jobs")
async def check_cursor(bench: Workbench) -> None:
    """Reading continues at the cursor, takes at most `limit` bytes, and never uses up what it reads."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", "printf 0123456789"))
        await bench.ended(job)
        first = await job.read(0, limit=4)
        same((first.data, first.cursor, first.dropped), (b"0123", 4, 0), "the first read")
        second = await job.read(first.cursor, limit=4)
        same((second.data, second.cursor), (b"4567", 8), "the second read")
        last = await job.read(second.cursor, limit=100)
        same((last.data, last.cursor, last.eof), (b"89", 10, True), "the last read")
        again = await job.read(0, limit=100)
        same((again.data, again.eof), (b"0123456789", True), "reading again from the start")


@check("jobs")
async def check_read_waits(bench: Workbench) -> None:
    """A read without `wait` answers at once, empty and without eof; with it, at the first byte that comes."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",))
        nothing = await job.read(0)
        same((nothing.data, nothing.cursor, nothing.eof), (b"", 0, False), "a read before any output")
        reading = asyncio.create_task(job.read(0, wait=bench.patience))
        await asyncio.sleep(0.05)
        holds(not reading.done(), "a read with `wait` answered before there was a byte")
        await job.write(b"now")
        chunk = await reading
        same((chunk.data, chunk.eof), (b"now", False), "the read that waited")


@check("jobs")
async def check_eof(bench: Workbench) -> None:
    """A read says eof only when the process has ended and its last byte was returned; waiting ends there too."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", "echo first; exec >&-; read line"))
        await bench.read_until(job, b"first\n")
        same((await job.read(6)).eof, False, "eof while the process still runs")
        await job.close_stdin()
        await bench.ended(job)
        same((await job.read(0, limit=3)).eof, False, "eof before the last byte")
        same((await job.read(6, wait=bench.patience)).eof, True, "eof at the end")


@check("jobs")
async def check_streams_apart(bench: Workbench) -> None:
    """Each stream has cursors of its own."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", "echo out; echo error >&2"))
        await bench.ended(job)
        same((await job.read(0)).data, b"out\n", "stdout")
        same((await job.read(0, stream="stderr")).data, b"error\n", "stderr")
        same((await job.read(3, stream="stderr")).data, b"or\n", "stderr from a cursor")


@check("jobs")
async def check_write(bench: Workbench) -> None:
    """Input reaches the running process as it is written, in order, byte for byte."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",))
        for line in (b"one\n", b"\x00\xff\r\n", b"three\n"):
            await job.write(line)
            await bench.read_until(job, line)
        same((await job.read(0)).data, b"one\n\x00\xff\r\nthree\n", "what came back")


@check("jobs")
async def check_much_input(bench: Workbench) -> None:
    """Megabytes written to a job all arrive, while its output is read by nobody."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", "sleep 0.1; wc -c"))
        for _ in range(4):
            await job.write(b"x" * 1_000_000)
        await job.close_stdin()
        same((await bench.ended(job)).stdout_bytes.split(), [b"4000000"], "bytes that arrived")


@check("jobs")
async def check_close_stdin(bench: Workbench) -> None:
    """Closing the input ends it for the process; closing twice is fine; writing afterwards is a Conflict."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", "cat; echo end; sleep 7401"))
        await job.write(b"last words\n")
        await job.close_stdin()
        await job.close_stdin()
        await bench.read_until(job, b"last words\nend\n")
        with raises(Conflict, what="writing to a closed input"):
            await job.write(b"more")


@check("jobs")
async def check_write_after_end(bench: Workbench) -> None:
    """Writing to a job that has ended is a Conflict; closing its input is not."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("true",))
        await bench.ended(job)
        with raises(Conflict, what="writing to a job that has ended"):
            await job.write(b"late")
        await job.close_stdin()


@check("jobs")
async def check_given_stdin(bench: Workbench) -> None:
    """A job that was given its input at the start finds the end of file after it."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",), stdin=b"all of it")
        same((await bench.ended(job)).stdout_bytes, b"all of it", "output of cat")


@check("jobs")
async def check_signal(bench: Workbench) -> None:
    """A signal reaches every process of the job's group, can be handled, and one that kills is reported."""
    async with bench.plain_box() as box:
        script = "trap 'echo caught' USR1; (trap 'echo child too; exit' USR1; echo up; while :; do sleep 0.05; done) & "
        job = await bench.start(box, ("sh", "-c", script + "while :; do wait; sleep 0.05; done"))
        await bench.read_until(job, b"up\n")
        await job.signal(signal.SIGUSR1)
        await bench.read_until(job, b"caught\n")
        await bench.read_until(job, b"child too\n")
        await job.signal(signal.SIGKILL)
        result = await bench.ended(job)
        same((result.exit_code, result.signal), (128 + signal.SIGKILL, int(signal.SIGKILL)), "exit code and signal")


@check("jobs")
async def check_signal_after_end(bench: Workbench) -> None:
    """A job that has ended ignores signals, and its result stays what it was."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("true",))
        await bench.ended(job)
        await job.signal(signal.SIGKILL)
        same((await bench.ended(job)).exit_code, 0, "exit code after a late signal")


@check("jobs")
async def check_wait_timeout(bench: Workbench) -> None:
    """`wait` that takes too long raises Timeout; the job keeps running and can be waited for again, by several."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",))
        with raises(Timeout, what="waiting 0.1 s for a job that runs"):
            await job.wait(0.1)
        same((await job.info()).state, JobState.RUNNING, "state after the timeout")
        waiting = [asyncio.create_task(bench.ended(job)) for _ in range(3)]
        await job.close_stdin()
        same([result.exit_code for result in await asyncio.gather(*waiting)], [0, 0, 0], "exit codes of three waits")


@check("jobs")
async def check_job_timeout(bench: Workbench) -> None:
    """A job's own timeout kills its group and is its verdict, though nobody waits for it."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", "sleep 7402 & sleep 7402"), timeout_sec=0.2)
        await bench.until(lambda: _exited(job), "the end of a job at its timeout")
        same((await bench.ended(job)).verdict.cause, Cause.TIMEOUT, "cause")


@check("jobs")
async def check_list(bench: Workbench) -> None:
    """The list has running jobs and ended ones with unread output, each once, with its name."""
    async with bench.plain_box() as box:
        running = await bench.start(box, ("sleep", "7403"), name="runs")
        unread = await bench.start(box, ("echo", "x"), name="unread")
        await bench.until(lambda: _exited(unread), "the end of the short job")
        listed = {info.id: (info.name, info.state) for info in await box.jobs()}
        same(listed, {running.id: ("runs", JobState.RUNNING), unread.id: ("unread", JobState.EXITED)}, "jobs")


@check("jobs")
async def check_find(bench: Workbench) -> None:
    """A job is found again by its id, and the new handle does all the old one did."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",))
        found = await box.job(job.id)
        await found.write(b"hello")
        await bench.read_until(job, b"hello")
        await found.close_stdin()
        same((await bench.ended(found)).exit_code, 0, "exit code")
        with raises(NotFound, what="a job that never was"):
            await box.job("nosuchjob")


@check("jobs")
async def check_forget(bench: Workbench) -> None:
    """Forgetting drops an ended job and its output; a running one is a Conflict, an unknown one NotFound."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",))
        with raises(Conflict, what="forgetting a running job"):
            await box.forget(job.id)
        await job.close_stdin()
        await bench.ended(job)
        await box.forget(job.id)
        same(await box.jobs(), (), "jobs")
        with raises(NotFound, what="a forgotten job"):
            await box.job(job.id)
        with raises(NotFound, what="forgetting twice"):
            await box.forget(job.id)


@check("jobs")
async def check_follow(bench: Workbench) -> None:
    """Following yields both streams as they grow, every byte once, and ends when the job has."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("sh", "-c", TICKS))
        same(await _followed(bench, job), {"stdout": TICKED, "stderr": TICKED.replace(b"tick", b"tock")}, "streams")
        same(await _followed(bench, job, stdout=28, stderr=35), {"stdout": b"tick 5\n", "stderr": b""}, "from cursors")


@check("jobs")
async def check_follow_live(bench: Workbench) -> None:
    """What a process writes reaches its follower while the process runs."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",), follow=True)
        following = job.follow()
        await job.write(b"ping")
        async with bench.within("the first piece of a job that is followed"):
            same(await anext(following), ("stdout", b"ping"), "the first piece")
        same((await job.info()).state, JobState.RUNNING, "state while it is followed")
        await job.close_stdin()
        async with bench.within("the end of a job that is followed"):
            same([piece async for piece in following], [], "pieces after the end")


@check("jobs")
async def check_follow_everything(bench: Workbench) -> None:
    """A job started with `follow` waits for a slow reader instead of losing output: 8 MB arrive whole."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("head", "-c", "8000000", "/dev/zero"), follow=True)
        size = 0
        async with bench.within("8 MB of followed output"):
            async for _stream, data in job.follow():
                size += len(data)
                if size < 1_000_000:
                    await asyncio.sleep(0.01)
        same(size, 8_000_000, "bytes that were followed")
        same((await bench.ended(job)).exit_code, 0, "exit code")


@check("jobs")
async def check_unread_output(bench: Workbench) -> None:
    """A job that nobody reads is not held up by its output, and all of it can be read afterwards."""
    async with bench.box(disk_mb=256) as box:
        job = await bench.start(box, ("seq", "500000"))
        result = await bench.ended(job)
        same((result.exit_code, result.stdout_total), (0, 3_388_895), "exit code and total")
        output = await bench.read_all(job, limit=1 << 20)
        same(output, b"".join(b"%d\n" % n for n in range(1, 500_001)), "output that was read afterwards")


@check("jobs")
async def check_several(bench: Workbench) -> None:
    """Several jobs run at once and do not mix: each has its own input, output and end."""
    async with bench.plain_box() as box:
        jobs = [await bench.start(box, ("sh", "-c", f"cat; exit {n}")) for n in range(6)]
        same(len({job.id for job in jobs}), 6, "different ids")
        for number, job in enumerate(jobs):
            await job.write(b"to %d" % number)
        for job in reversed(jobs):
            await job.close_stdin()
        results = await asyncio.gather(*(bench.ended(job) for job in jobs))
        same([result.exit_code for result in results], list(range(6)), "exit codes")
        same([result.stdout_bytes for result in results], [b"to %d" % n for n in range(6)], "outputs")


@check("jobs")
async def check_not_runnable(bench: Workbench) -> None:
    """A job that cannot be started raises NotRunnable at `start`, and is in no list."""
    async with bench.plain_box() as box:
        with raises(NotRunnable, what="starting a missing program"):
            await bench.start(box, ("no-such-program-here",))
        with raises(NotRunnable, what="starting in a missing directory"):
            await bench.start(box, ("true",), cwd="/no/such")
        same(await box.jobs(), (), "jobs")


@check("jobs")
async def check_resize_without_terminal(bench: Workbench) -> None:
    """Resizing a job that has no terminal is Unsupported."""
    async with bench.plain_box() as box:
        job = await bench.start(box, ("cat",))
        with raises(Unsupported, what="resizing a job without a terminal"):
            await job.resize(30, 100)


@check("jobs")
async def check_outlive_handle(bench: Workbench) -> None:
    """A job outlives the handle: after `close` and `attach` it runs on, with its unread output and its input."""
    order = bench.order()
    async with bench.made(order) as box:
        job = await bench.start(box, ("sh", "-c", "echo early; cat"), name="stays")
        await bench.until(lambda: _wrote(job, 6), "the job's first output")
        await box.close()
        async with bench.attached(box.record, order.spec) as again:
            await _goes_on(bench, again, job.id)


@check("jobs", needs="durable_jobs")
async def check_outlive_provider(bench: Workbench) -> None:
    """With `durable_jobs` a job outlives the provider object: another one finds it, its output and its input."""
    order = bench.order()
    async with bench.another() as first, bench.another() as second:
        box = await first.create(order, first.plan(order))
        try:
            job = await bench.start(box, ("sh", "-c", "echo early; cat"), name="stays")
            await bench.until(lambda: _wrote(job, 6), "the job's first output")
            await box.close()
            await first.close()
            async with bench.attached(box.record, order.spec, second) as again:
                await _goes_on(bench, again, job.id)
        finally:
            await second.destroy(box.record)


async def _goes_on(bench: Workbench, box: Instance, job_id: str) -> None:
    listed: tuple[JobInfo, ...] = await box.jobs()
    same([(info.id, info.name, info.state) for info in listed], [(job_id, "stays", JobState.RUNNING)], "jobs")
    job = await box.job(job_id)
    await bench.read_until(job, b"early\n")
    await job.write(b"later\n")
    await job.close_stdin()
    result = await bench.ended(job)
    same((result.exit_code, result.stdout_bytes), (0, b"early\nlater\n"), "exit code and output")


async def _exited(job: Process) -> bool:
    return (await job.info()).state is JobState.EXITED


async def _wrote(job: Process, count: int) -> bool:
    return (await job.info()).stdout_total >= count


async def _followed(bench: Workbench, job: Process, stdout: int = 0, stderr: int = 0) -> dict[str, bytes]:
    seen = {"stdout": b"", "stderr": b""}
    async with bench.within("the end of a job that is followed"):
        async for stream, data in job.follow(stdout, stderr):
            if stream not in seen or not data:
                broken(f"follow yielded {stream!r} with {len(data)} bytes")
            seen[stream] += data
    return seen
