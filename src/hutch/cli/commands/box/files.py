"""Commands that move files: into, out of and between boxes, and whole boxes to and from a file."""

import argparse
import asyncio
import os
import posixpath
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hutch.api import Box
from hutch.cli import stdio
from hutch.cli.connect import attach_box, keeps_boxes, open_hutch
from hutch.cli.live_output import Progress, progress
from hutch.cli.options import add_box, add_session, duration
from hutch.cli.output import byte_size, emit_json, note
from hutch.cli.parsers import CliCommand
from hutch.errors import FileFailed, FileMissing, HutchError, Invalid, NotDirectory
from hutch.model.files import FileKind
from hutch.providers.guest_client.trees import observed

if TYPE_CHECKING:
    from hutch.api import Hutch


@dataclass(frozen=True, slots=True)
class End:
    """One side of a copy: a path here, or in a box."""

    box: str
    path: str

    @property
    def is_pipe(self) -> bool:
        return not self.box and self.path == "-"


class Copy(CliCommand):
    """Copy files and trees into a box, out of it, or from one box to another. `-` is standard input or output.

    A target that is a directory gets the source inside it, as with cp; `DIR/.` means the content of DIR. Local names
    with a colon begin with ./ or /.
    """

    epilog = """\
examples:
  hutch box cp ./project dev:                      the tree as /workspace/project
  hutch box cp dev:results/out.csv .
  hutch box cp dev:src test:src                    from one box to another
  tar c . | hutch box cp - dev:/tmp/all.tar        and hutch box cp dev:/tmp/all.tar - | tar t
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("source", metavar="SRC", help="PATH, BOX:PATH or -")
        parser.add_argument("target", metavar="DST", help="the same; a relative path in a box starts at its workdir")
        add_session(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        source, target = end_of(arguments.source), end_of(arguments.target)
        if not source.box and not target.box:
            raise Invalid("neither side names a box", op="cp", remedy="write BOX:PATH on one side, or use cp")
        if target.is_pipe and arguments.json:
            raise Invalid("--json and standard output exclude each other", op="cp", remedy="leave one out")
        count = await _copy(arguments, source, target)
        if arguments.json:
            emit_json({"source": arguments.source, "target": arguments.target, "bytes": count})
        elif os.isatty(2) and not target.is_pipe:
            note(f"copied {byte_size(count)}")
        return 0


def end_of(text: str) -> End:
    """Parse one side: `dev:a/b` is in a box; `./dev:a`, `/dev:a` and names without a colon are here."""
    box, colon, path = text.partition(":")
    if not colon or not box or box[0] in "./" or "/" in box:
        return End("", text)
    return End(box, path or ".")


async def _copy(arguments: argparse.Namespace, source: End, target: End) -> int:
    async with open_hutch(arguments) as hutch:
        source_box = await _open_end(hutch, source)
        target_box = await _open_end(hutch, target)
        with progress(f"copying {arguments.source} to {arguments.target}") as state:
            if source_box is None and target_box is not None:
                return await _copy_in(source, target_box, target.path, state)
            if target_box is None and source_box is not None:
                return await _copy_out(source_box, source.path, target, state)
            assert source_box is not None and target_box is not None
            return await _between(source_box, source.path, target_box, target.path, state)


async def _open_end(hutch: "Hutch", end: End) -> Box | None:
    return await hutch.attach((await hutch.find(end.box)).id) if end.box else None


async def _copy_in(source: End, box: Box, path: str, state: Progress) -> int:
    if source.is_pipe:
        return (await box.files.write(path, _count(stdio.read_pieces(0), state))).size
    state.total = await asyncio.to_thread(size_of, source.path)
    into = _inside(source.path, path) if await _is_directory(box, path) else path
    with observed(state.add):
        return await box.files.copy_in(source.path, into)


async def _copy_out(box: Box, path: str, target: End, state: Progress) -> int:
    if not target.is_pipe:
        into = _inside(path, target.path) if os.path.isdir(target.path) else target.path
        found = await box.files.stat(path)
        state.total = found.size if found.kind is FileKind.FILE else 0
        with observed(state.add):
            return await box.files.copy_out(path, into)
    sink = stdio.Sink(1)
    try:
        async for piece in _count(box.files.open(path), state):
            await sink.write(piece)
    finally:
        sink.close()
    return state.done


async def _between(source_box: Box, source: str, target_box: Box, target: str, state: Progress) -> int:
    """Stream a file from box to box; copy a tree through a temporary directory here."""
    found = await source_box.files.stat(source)
    into = _inside(source, target) if await _is_directory(target_box, target) else target
    if found.kind is FileKind.FILE:
        state.total = found.size
        await target_box.files.write(into, _count(source_box.files.open(source), state), mode=found.mode & 0o777)
        return state.done
    with tempfile.TemporaryDirectory(prefix="hutch-cp-") as here:
        middle = os.path.join(here, "tree")
        with observed(state.add):
            await source_box.files.copy_out(source, middle)
            state.report(0, await asyncio.to_thread(size_of, middle))
            return await target_box.files.copy_in(middle, into)


def _inside(source: str, directory: str) -> str:
    """Tell where the source goes in a directory: under its own name, if it has one."""
    name = posixpath.basename(source.rstrip("/"))
    return directory if name in ("", ".", "..") else posixpath.join(directory, name)


async def _is_directory(box: Box, path: str) -> bool:
    try:
        return (await box.files.stat(f"{path}/.")).kind is FileKind.DIRECTORY
    except (FileMissing, NotDirectory):
        return False


async def _count(pieces: AsyncIterator[bytes], state: Progress) -> AsyncIterator[bytes]:
    async for piece in pieces:
        state.add(len(piece))
        yield piece


def size_of(path: str) -> int:
    """Count the bytes of a file, or of all files of a tree."""
    if not os.path.isdir(path):
        return os.stat(path).st_size if os.path.exists(path) else 0
    return sum(
        os.lstat(os.path.join(directory, name)).st_size for directory, _, names in os.walk(path) for name in names
    )


class Export(CliCommand):
    """Write a box to a file: workspace, home, changes of its system, spec and labels. The box keeps running."""

    epilog = """\
examples:
  hutch box export dev dev.hutch
  hutch box import dev.hutch --provider docker     the same box on another engine
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box(parser)
        parser.add_argument("file", metavar="FILE", help="where to; it is replaced as a whole")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            with progress(f"exporting {arguments.box}"):
                with _caller_file("export"):
                    moved = await box.export(arguments.file)
        if arguments.json:
            emit_json({"id": moved.box_id, "file": arguments.file, **moved.to_plain()})
            return 0
        for each in moved.notes:
            note(each)
        print(f"{arguments.file}: {', '.join(moved.parts) or 'the spec alone'}, {byte_size(moved.size)}")
        return 0


class Import(CliCommand):
    """Make a box from an exported one, on the same or another provider, and print its id."""

    epilog = """\
examples:
  hutch box import dev.hutch
  hutch box import dev.hutch --provider docker --image oci:debian:12 --name dev2
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="what `hutch box export` wrote")
        parser.add_argument("--provider", help="the engine (default: that of the exported box)")
        parser.add_argument("--profile", help="another profile")
        parser.add_argument("--image", metavar="REF", help="another image")
        parser.add_argument("--name", help="another name; an empty one for none")
        parser.add_argument(
            "--keep", type=duration, metavar="TIME", help="how long it lives without use: 90s, 2h (15m)"
        )
        add_session(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments, grace=arguments.keep) as hutch:
            changes = {"profile": arguments.profile, "image": arguments.image, "name": arguments.name}
            with progress(f"importing {arguments.file}") as state:
                with _caller_file("import"):
                    state.total = await asyncio.to_thread(size_of, arguments.file)
                    box = await hutch.import_box(arguments.file, provider=arguments.provider or "", **changes)
            if arguments.keep is not None and not keeps_boxes(hutch):
                await box.change(idle_timeout_sec=arguments.keep)  # without a server the box's own timer does it
        if arguments.json:
            emit_json({"id": box.id, "notes": box.notes})
            return 0
        for each in box.notes:
            note(each)
        print(box.id)
        return 0


@contextmanager
def _caller_file(op: str) -> Iterator[None]:
    """Report a fault of the caller's own file as such: it is no defect of Hutch."""
    try:
        yield
    except HutchError:
        raise
    except OSError as error:
        path = error.filename2 or error.filename
        raise FileFailed(f"{path}: {error.strerror}", op=op, remedy="choose another file") from error
