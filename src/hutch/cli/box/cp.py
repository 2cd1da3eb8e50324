"""Copy files and trees into a box, out of it, or from one box to another. `-` is standard input or output.

A target that is a directory gets the source inside it, as with cp; `DIR/.` means what is in DIR. Local names with a
colon begin with ./ or /.
"""

import argparse
import asyncio
import os
import posixpath
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hutch.api import Box
from hutch.cli import streams
from hutch.cli.keeper_choice import add_session, visit
from hutch.cli.output import emit_json, note
from hutch.cli.tables import Progress, amount, progress
from hutch.errors import FileMissing, Invalid, NotDirectory
from hutch.model.files import FileKind

if TYPE_CHECKING:
    from hutch.api import Hutch

EPILOG = """\
examples:
  hutch box cp ./project dev:                      the tree as /workspace/project
  hutch box cp dev:results/out.csv .
  hutch box cp dev:src test:src                    from one box to another
  tar c . | hutch box cp - dev:/tmp/all.tar        and hutch box cp dev:/tmp/all.tar - | tar t
"""


@dataclass(frozen=True, slots=True)
class End:
    """One side of a copy: a path here, or in a box."""

    box: str
    path: str

    @property
    def is_pipe(self) -> bool:
        return not self.box and self.path == "-"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="PATH, BOX:PATH or -")
    parser.add_argument("target", metavar="DST", help="the same; a relative path in a box starts at its workdir")
    add_session(parser)


def run(arguments: argparse.Namespace) -> int:
    source, target = end_of(arguments.source), end_of(arguments.target)
    if not source.box and not target.box:
        raise Invalid("neither side names a box", op="cp", remedy="write BOX:PATH on one side, or use cp")
    if target.is_pipe and arguments.json:
        raise Invalid("--json and standard output exclude each other", op="cp", remedy="leave one out")
    count = asyncio.run(_copy(arguments, source, target))
    if arguments.json:
        emit_json({"source": arguments.source, "target": arguments.target, "bytes": count})
    elif os.isatty(2) and not target.is_pipe:
        note(f"copied {amount(count)}")
    return 0


def end_of(text: str) -> End:
    """`dev:a/b` is in a box; `./dev:a`, `/dev:a` and names without a colon are here."""
    box, colon, path = text.partition(":")
    if not colon or not box or box[0] in "./" or "/" in box:
        return End("", text)
    return End(box, path or ".")


async def _copy(arguments: argparse.Namespace, source: End, target: End) -> int:
    async with visit(arguments) as hutch:
        giver = await _opened(hutch, source)
        taker = await _opened(hutch, target)
        async with progress(f"copying {arguments.source} to {arguments.target}") as told:
            if giver is None and taker is not None:
                return await _copy_in(source, taker, target.path, told)
            if taker is None and giver is not None:
                return await _copy_out(giver, source.path, target, told)
            assert giver is not None and taker is not None
            return await _between(giver, source.path, taker, target.path, told)


async def _opened(hutch: "Hutch", end: End) -> Box | None:
    return await hutch.attach((await hutch.find(end.box)).id) if end.box else None


async def _copy_in(source: End, box: Box, path: str, told: Progress) -> int:
    if source.is_pipe:
        return (await box.files.write(path, _counted(streams.pieces(0), told))).size
    told.total = await asyncio.to_thread(size_of, source.path)
    into = inside(source.path, path) if await _is_directory(box, path) else path
    return await box.files.copy_in(source.path, into)


async def _copy_out(box: Box, path: str, target: End, told: Progress) -> int:
    if not target.is_pipe:
        into = inside(path, target.path) if os.path.isdir(target.path) else target.path
        return await box.files.copy_out(path, into)
    sink = streams.Sink(1)
    try:
        async for piece in _counted(box.files.open(path), told):
            await sink.write(piece)
    finally:
        sink.close()
    return told.done


async def _between(giver: Box, source: str, taker: Box, target: str, told: Progress) -> int:
    """A file is streamed from box to box; a tree passes through a directory here, which is removed."""
    found = await giver.files.stat(source)
    into = inside(source, target) if await _is_directory(taker, target) else target
    if found.kind is FileKind.FILE:
        told.total = found.size
        await taker.files.write(into, _counted(giver.files.open(source), told), mode=found.mode & 0o777)
        return told.done
    with tempfile.TemporaryDirectory(prefix="hutch-cp-") as here:
        middle = os.path.join(here, "tree")
        await giver.files.copy_out(source, middle)
        return await taker.files.copy_in(middle, into)


def inside(source: str, directory: str) -> str:
    """Where the source goes in a directory: under its own name, if it has one."""
    name = posixpath.basename(source.rstrip("/"))
    return directory if name in ("", ".", "..") else posixpath.join(directory, name)


async def _is_directory(box: Box, path: str) -> bool:
    try:
        return (await box.files.stat(f"{path}/.")).kind is FileKind.DIRECTORY
    except (FileMissing, NotDirectory):
        return False


async def _counted(pieces: AsyncIterator[bytes], told: Progress) -> AsyncIterator[bytes]:
    async for piece in pieces:
        told.done += len(piece)
        yield piece


def size_of(path: str) -> int:
    """Bytes of a file, or of all files of a tree."""
    if not os.path.isdir(path):
        return os.stat(path).st_size if os.path.exists(path) else 0
    return sum(os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(path) for name in names)
