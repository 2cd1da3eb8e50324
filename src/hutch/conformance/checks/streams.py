"""Input and output of a command: bytes in, bytes out, apart, bounded, and nothing lost within the bounds."""

import hashlib

from hutch.conformance.claims import holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import NotFound

EVERY_BYTE = bytes(range(256))
NUMBERS = b"".join(b"%d\n" % number for number in range(1, 200_001))
"""The output of `seq 200000`: 1.3 MB in which every position can be recognised."""


@check("streams")
async def check_stdin(bench: Workbench) -> None:
    """Input is given byte for byte, then closed: NUL, 0xff, and a megabyte as well as nothing."""
    async with bench.plain_box() as box:
        for data in (b"", EVERY_BYTE, EVERY_BYTE * 4096):
            got = await bench.output(box, ("sha256sum",), stdin=data)
            same(got.split()[0].decode(), hashlib.sha256(data).hexdigest(), f"digest of {len(data)} bytes of input")


@check("streams")
async def check_no_stdin(bench: Workbench) -> None:
    """Without input a command finds the end of file at once; it never waits for the caller's terminal."""
    async with bench.plain_box() as box:
        result = await bench.run(box, ("sh", "-c", "cat; echo end"))
        same((result.exit_code, result.stdout_bytes), (0, b"end\n"), "a command without input")


@check("streams")
async def check_unread_stdin(bench: Workbench) -> None:
    """A command that ends without reading its input ends as usual, however much there was."""
    async with bench.plain_box() as box:
        result = await bench.run(box, ("sh", "-c", "exit 3"), stdin=b"x" * 3_000_000)
        same(result.exit_code, 3, "exit code")
        await bench.answers(box)


@check("streams")
async def check_apart(bench: Workbench) -> None:
    """Standard output and standard error come back apart, each in its order."""
    async with bench.plain_box() as box:
        result = await bench.run(box, ("sh", "-c", "echo 1; echo a >&2; echo 2; echo b >&2"))
    same((result.stdout_bytes, result.stderr_bytes), (b"1\n2\n", b"a\nb\n"), "the two streams")


@check("streams")
async def check_binary(bench: Workbench) -> None:
    """Output is bytes: no newline is added, changed or dropped, and nothing is decoded on the way."""
    async with bench.plain_box() as box:
        for data in (EVERY_BYTE, b"\r\n\n\r", b"no newline", b"\xff" * 1000):
            same(await bench.output(box, ("cat",), stdin=data), data, "output")
        text = (await bench.run(box, ("cat",), stdin=b"a\xffb")).stdout
        same(text, "a\ufffdb", "text of output that is no UTF-8")


@check("streams")
async def check_whole(bench: Workbench) -> None:
    """Output within `keep_output` is whole, and the result says so: total is its length and truncated is false."""
    async with bench.plain_box() as box:
        result = await bench.run(box, ("sh", "-c", "seq 20000; seq 20000 >&2"))
    for data, total, cut in (
        (result.stdout_bytes, result.stdout_total, result.stdout_truncated),
        (result.stderr_bytes, result.stderr_total, result.stderr_truncated),
    ):
        wanted = NUMBERS[: NUMBERS.index(b"\n20000\n") + 7]
        same(data, wanted, "the whole output")
        same((total, cut), (len(wanted), False), "total and truncated")


@check("streams")
async def check_head_and_tail(bench: Workbench) -> None:
    """Of output over `keep_output` the head and the tail are returned, within the bound, with the true total."""
    async with bench.plain_box() as box:
        result = await bench.run(box, ("seq", "200000"), keep_output=10_000)
    data = result.stdout_bytes
    same((result.stdout_total, result.stdout_truncated), (len(NUMBERS), True), "total and truncated")
    holds(0 < len(data) <= 10_000, f"{len(data)} bytes were returned, over the bound of 10000")
    head = len(data) * 6 // 10 - 100
    same(data[:head], NUMBERS[:head], "the head, 60 % of what is kept")
    tail = len(data) * 4 // 10 - 100
    same(data[-tail:], NUMBERS[-tail:], "the tail, 40 % of what is kept")


@check("streams")
async def check_middle_by_cursor(bench: Workbench) -> None:
    """What a result leaves out is not lost: its job id is a handle from which all of it is read (lesson 17)."""
    async with bench.plain_box() as box:
        result = await bench.run(box, ("seq", "200000"), keep_output=1000)
        job = await box.job(result.job_id)
        chunk = await job.read(600_000, limit=5000)
        same(chunk.data[:1000], NUMBERS[600_000:601_000], "bytes from the middle")
        same(await bench.read_all(job), NUMBERS, "all of the output")


@check("streams")
async def check_whole_results_are_let_go(bench: Workbench) -> None:
    """A command whose output was returned whole leaves no job behind: a thousand execs do not fill the list."""
    async with bench.plain_box() as box:
        result = await bench.run(box, ("echo", "x"))
        same(await box.jobs(), (), "jobs after a small command")
        if result.job_id:
            with raises(NotFound, what="the job of a command whose output was returned whole"):
                await box.job(result.job_id)


@check("streams")
async def check_much_output(bench: Workbench) -> None:
    """Twenty megabytes of output neither stop the command nor the box; the count is exact."""
    async with bench.box(disk_mb=256) as box:
        result = await bench.run(box, ("sh", "-c", "head -c 20000000 /dev/zero; echo end >&2"))
        same((result.exit_code, result.stdout_total, result.stderr_bytes), (0, 20_000_000, b"end\n"), "the end")
        await bench.answers(box)
