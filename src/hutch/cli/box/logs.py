"""Show what a job has written, from its beginning; an earlier command may have started it."""

import argparse
import asyncio
from contextlib import aclosing

from hutch.api import Job
from hutch.cli import streams
from hutch.cli.box.jobs import add_job, chosen
from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json, note

CHUNK = 1 << 20


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_argument("--stderr", action="store_true", help="only its error output, on standard output")
    add_job(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_logs(arguments))


async def _logs(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        instance = await hutch.observe((await hutch.find(arguments.box)).id)
        info = chosen(await instance.jobs(), arguments.job)
        process = await instance.job(info.id)
        if arguments.follow:
            await _follow(process, only_stderr=arguments.stderr, as_json=arguments.json)
            return 0
        read = {name: await _whole(process, name) for name in _streams(arguments)}
    if arguments.json:
        emit_json({"job": info.to_plain(), **{name: data.decode("utf-8", "replace") for name, data in read.items()}})
        return 0
    if info.dropped:
        note(f"{info.dropped} bytes of its output were past every bound and are lost")
    for name, data in read.items():
        await _put(name, data, only_stderr=arguments.stderr)
    return 0


def _streams(arguments: argparse.Namespace) -> tuple[str, ...]:
    return ("stderr",) if arguments.stderr else ("stdout", "stderr")


async def _whole(process: Job, stream: str) -> bytes:
    """What there is now."""
    parts, cursor = [], 0
    while True:
        chunk = await process.read(cursor, stream=stream, limit=CHUNK)
        parts.append(chunk.data)
        if chunk.eof or not chunk.data:
            return b"".join(parts)
        cursor = chunk.cursor


async def _follow(process: Job, *, only_stderr: bool, as_json: bool) -> None:
    async with aclosing(process.follow()) as output:  # type: ignore[type-var]
        async for name, data in output:
            if only_stderr and name != "stderr":
                continue
            if as_json:
                emit_json({"stream": name, "text": data.decode("utf-8", "replace")})
            else:
                await _put(name, data, only_stderr=only_stderr)


async def _put(stream: str, data: bytes, *, only_stderr: bool) -> None:
    sink = streams.Sink(2 if stream == "stderr" and not only_stderr else 1)
    try:
        await sink.write(data)
    finally:
        sink.close()
