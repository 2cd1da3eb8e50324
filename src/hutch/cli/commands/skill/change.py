"""Changing installed skills: their files, versions and groups."""

import argparse
import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from hutch.api import Skills
from hutch.cli.commands.skill.show import add_name, show_changed
from hutch.cli.connect import open_hutch
from hutch.cli.options import add_session
from hutch.cli.output import emit_json, note, table
from hutch.cli.parsers import CliCommand
from hutch.errors import Invalid
from hutch.model.skills import SkillInfo
from hutch.skills.manifest import MANIFEST


class ChangeCommand(CliCommand):
    """A command that changes one skill and shows which version it has afterwards."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            skill = await self.change(hutch.skills, arguments)
        if skill is None:
            note("nothing was changed")
        else:
            show_changed(skill, as_json=arguments.json)
        return 0

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo | None:
        """Make the change; None means that there was nothing to change."""
        raise NotImplementedError


class Create(ChangeCommand):
    """Make a new skill of one file; the instructions may come from standard input."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="lowercase letters, digits and hyphens")
        parser.add_argument("--description", required=True, help="what it is for, and when to use it")
        parser.add_argument("--stdin", action="store_true", help="read the instructions from standard input")

    def run(self, arguments: argparse.Namespace) -> int:
        arguments.body = sys.stdin.read() if arguments.stdin and not os.isatty(0) else ""
        return super().run(arguments)

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo:
        return await skills.create(arguments.name, arguments.description, arguments.body)


class Edit(ChangeCommand):
    """Open a file of a skill in your editor; what you save becomes a new version."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        parser.add_argument("file", metavar="PATH", nargs="?", default=MANIFEST, help=f"default: {MANIFEST}")

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo | None:
        before = await skills.get(arguments.name)
        old = await skills.read_file(arguments.name, arguments.file)
        new = await asyncio.to_thread(_edit, old, arguments.file)
        if new == old:
            return None
        return await skills.write_file(arguments.name, arguments.file, new, expect=before.digest)


def _edit(old: bytes, name: str) -> bytes:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="hutch-skill-") as directory:
        path = Path(directory, Path(name).name)
        path.write_bytes(old)
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except OSError as error:
            raise Invalid(f"the editor {editor!r} cannot be started: {error.strerror}", remedy="set EDITOR") from error
        if done.returncode:
            raise Invalid(f"the editor ended with {done.returncode}: nothing was changed")
        return path.read_bytes()


class Write(ChangeCommand):
    """Write one file of a skill from standard input, or remove it: a new version, in which all else is as it was."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        parser.add_argument("file", metavar="PATH", help="below the skill's directory")
        parser.add_argument("--executable", action="store_true", help="it is a program")
        parser.add_argument("--remove", action="store_true", help="remove the file instead")

    def run(self, arguments: argparse.Namespace) -> int:
        arguments.data = b"" if arguments.remove else sys.stdin.buffer.read()
        return super().run(arguments)

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo:
        if arguments.remove:
            return await skills.remove_file(arguments.name, arguments.file)
        return await skills.write_file(
            arguments.name, arguments.file, arguments.data, executable=arguments.executable
        )  # fmt: skip


class Save(CliCommand):
    """Make what was edited in a box a new version of a skill.

    Skills are read-only in boxes: the edited copy lies in the skill's state directory under `edit`, or where --path
    says.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        parser.add_argument("--box", required=True, metavar="BOX", help="its name or id")
        parser.add_argument("--path", default="", help="the edited copy in the box")
        add_session(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await hutch.attach((await hutch.find(arguments.box)).id)
            skill = await hutch.skills.save(arguments.name, box, arguments.path)
        show_changed(skill, as_json=arguments.json)
        return 0


class Upgrade(ChangeCommand):
    """Get the newest of a skill from where it came."""

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo:
        return await skills.upgrade(arguments.name)


class Rollback(ChangeCommand):
    """Make the version before, or the one named, the active one."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        parser.add_argument("version", metavar="DIGEST", nargs="?", default="", help="the one before unless named")

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo:
        return await skills.rollback(arguments.name, arguments.version)


class Pin(ChangeCommand):
    """Keep a skill at its version, or at the one named, whatever is installed later."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)
        parser.add_argument("version", metavar="DIGEST", nargs="?", default="", help="the active one unless named")

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo:
        return await skills.pin(arguments.name, arguments.version)


class Unpin(ChangeCommand):
    """Let a pinned skill change again."""

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo:
        return await skills.unpin(arguments.name)


class Bind(CliCommand):
    """Show the groups of skills, or say which skills one holds. Boxes made with --skills GROUP show exactly those."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("group", metavar="GROUP", nargs="?", help="show all groups unless named")
        parser.add_argument("names", metavar="NAME", nargs="*", help="exactly these skills, in running boxes too")
        parser.add_argument("--end", action="store_true", help="end the group instead")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            if arguments.group and (arguments.names or arguments.end):
                await hutch.skills.bind(arguments.group, () if arguments.end else arguments.names)
            bindings = await hutch.skills.bindings()
            installed = {skill.name for skill in await hutch.skills.all()}
        for name in sorted({*arguments.names} - installed):
            note(f"there is no skill {name} yet; the group's boxes show it when it is installed")
        chosen = [each for each in bindings if arguments.group in (None, each.group)]
        if arguments.json:
            emit_json({"bindings": [each.to_plain() for each in chosen]})
        else:
            table(("GROUP", "SKILLS"), [(each.group, " ".join(each.skills)) for each in chosen])
        return 0


class Remove(CliCommand):
    """Remove a skill with all its versions; running boxes no longer show it."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_name(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            await hutch.skills.remove(arguments.name)
        if arguments.json:
            emit_json({"removed": arguments.name})
        return 0
