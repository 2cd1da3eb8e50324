"""Commands about states of a box's files: checkpoint, rollback, undo, diff, fork, merge."""

import argparse

from hutch.cli.connect import attach_box, open_hutch
from hutch.cli.options import add_box
from hutch.cli.output import emit_json, note
from hutch.cli.parsers import CliCommand
from hutch.model.layers import ChangeKind, Way

_SIGNS = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}


class LayerCommand(CliCommand):
    """A command about one box, which it leases to our session."""

    kills = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box(parser)
        if self.kills:
            parser.add_argument("--kill", action="store_true", help="end the box's processes first")


class Checkpoint(LayerCommand):
    """Freeze the files of a box as a state to go back to, and print its id. The box keeps running.

    Without running processes this takes milliseconds, however many files there are; else what changed is copied.
    """

    kills = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--name", default="", help="a name for it")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            made = await box.checkpoint(arguments.name, kill=arguments.kill)
            if arguments.json:
                emit_json(made.to_plain())
                return 0
            if made.way is Way.COPY:
                note("processes run in the box, so what it had changed was copied")
            _note_left_out(made.left_out)
            print(made.id)
        return 0


class Checkpoints(LayerCommand):
    """List the checkpoints of a box, oldest first."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            found = await box.checkpoints()
            if arguments.json:
                emit_json([each.to_plain() for each in found])
                return 0
            for each in found:
                kind = "step" if each.automatic else each.way.value
                print(f"{each.id}  {each.name or '-'}  {kind}")
        return 0


class Rollback(LayerCommand):
    """Give a box the files of a checkpoint, by its id or name. The checkpoints stay."""

    kills = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("checkpoint", help="the id or name of a checkpoint")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            done = await box.rollback(arguments.checkpoint, kill=arguments.kill)
            if arguments.json:
                emit_json(done.to_plain())
            _note_left_out(done.left_out)
        return 0


class Undo(LayerCommand):
    """Undo the last commands of a box that was created with --auto-checkpoint exec."""

    kills = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--steps", type=int, default=1, metavar="N", help="how many commands (1)")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            done = await box.undo(arguments.steps, kill=arguments.kill)
            if arguments.json:
                emit_json(done.to_plain())
            _note_left_out(done.left_out)
        return 0


class Diff(LayerCommand):
    """List what differs between two checkpoints of a box: by default from the newest to now."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("start", nargs="?", default="", help="a checkpoint (the newest)")
        parser.add_argument("end", nargs="?", default="", help="a later one (now)")
        parser.add_argument("--text", action="store_true", help="show what changed inside text files")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            found = await box.diff(arguments.start, arguments.end, text=arguments.text)
            if arguments.json:
                emit_json(found.to_plain())
                return 0
            for change in found.changes:
                size = change.size_before if change.size_after is None else change.size_after
                sizes = f"  {size}" if change.type == "file" else ""
                slash = "/" if change.type == "directory" else ""
                print(f"{_SIGNS[change.kind]} {change.path}{slash}{sizes}")
                if change.text:
                    print(change.text, end="")
            if found.truncated:
                note("there are more changes than are listed")
            _note_left_out(found.left_out)
        return 0


class Fork(LayerCommand):
    """Make boxes that begin with the files of a box, and print their ids. They share the files until they change."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--count", type=int, default=1, metavar="N", help="how many (1)")
        parser.add_argument("--checkpoint", default="", help="begin with a checkpoint, not with the present files")
        parser.add_argument("--kernel", action="store_true", help="also with its Python kernels and their variables")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            made = await box.fork(arguments.count, checkpoint=arguments.checkpoint, kernel=arguments.kernel)
            if arguments.json:
                emit_json([fork.id for fork in made])
                return 0
            for fork in made:
                print(fork.id)
        return 0


class Merge(LayerCommand):
    """Bring what a fork changed into the box that it was forked from: all of it, or nothing if there are conflicts."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("fork", help="the id or name of the fork")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            done = await box.merge((await hutch.find(arguments.fork)).id)
            if arguments.json:
                emit_json(done.to_plain())
                return 0
            for path in done.paths:
                print(path)
        return 0


def _note_left_out(places: tuple[str, ...]) -> None:
    if places:
        note(f"left out, because it lies on the host or in a volume: {', '.join(places)}")
