"""Skills: packages of instructions, scripts and files for agents, in the open SKILL.md format.

Boxes show them read-only at /workspace/.skills/NAME; what is installed or changed is seen in running boxes at once.
"""

import argparse
import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypedDict

from hutch.api import Skills
from hutch.cli.connect import open_hutch
from hutch.cli.live_output import progress
from hutch.cli.options import add_session
from hutch.cli.output import byte_size, emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.errors import FileThere, Invalid
from hutch.keeper.skills.skills import scan
from hutch.model.skills import SkillFile, SkillInfo, SkillPermissions, SkillPreview
from hutch.model.units import format_seconds
from hutch.skills.manifest import MANIFEST

SOURCE_EXAMPLES = """\
examples:
  hutch skill preview ./pdf-tools                       what it would bring, and what it changes
  hutch skill install pdf-tools.zip
  hutch skill install https://example.org/skills.git --ref v2 --path pdf-tools
  hutch skill install ~/src/skills --git --path pdf-tools   a commit of a local repository, not its working files
"""


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


# --- installing -----------------------------------------------------------------------------------------------------


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="a directory, a zip file or a git URL")
    parser.add_argument("--path", default="", help="which of several skills, below the source")
    parser.add_argument("--ref", default="", help="branch, tag or commit of a repository")
    parser.add_argument("--git", action="store_true", help="the directory is a repository: take a commit from it")


class SourceOptions(TypedDict):
    path: str
    ref: str
    local_git: bool


def _source_options(arguments: argparse.Namespace) -> SourceOptions:
    return {"path": arguments.path, "ref": arguments.ref, "local_git": arguments.git}


class Install(CliCommand):
    """Install a skill from a directory, a zip file or a git repository; the same content twice is one version."""

    epilog = SOURCE_EXAMPLES

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_source(parser)
        parser.add_argument("--digest", default="", help="only if it is this version, as a preview has shown it")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            with progress(f"installing {arguments.source}"):
                options = _source_options(arguments)
                skill = await hutch.skills.install(arguments.source, digest=arguments.digest, **options)
        _show_changed(skill, as_json=arguments.json)
        return 0


class Preview(CliCommand):
    """Show what installing a skill would bring and change, and install nothing."""

    epilog = SOURCE_EXAMPLES

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_source(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            found = await hutch.skills.preview(arguments.source, **_source_options(arguments))
        if arguments.json:
            emit_json(found.to_plain())
        else:
            _show_preview(found)
        return 0


class Scan(CliCommand):
    """Find the skills in a tree of directories, and what is wrong with those that cannot be installed."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("directory", metavar="DIR", nargs="?", default=".", help="default: here")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        found = await scan(os.path.abspath(arguments.directory))
        if arguments.json:
            emit_json({"skills": [each.to_plain() for each in found]})
        elif not found:
            print("there is no SKILL.md below it")
        else:
            table(("SKILL", "PATH", ""), [(each.name or "?", each.path, printable(each.problem)) for each in found])
        return 0


# --- looking --------------------------------------------------------------------------------------------------------


class List(CliCommand):
    """Show the skills there are."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            skills = await hutch.skills.all()
        if arguments.json:
            emit_json({"skills": [skill.to_plain() for skill in skills]})
        elif not skills:
            print("there is no skill; `hutch skill install SRC` brings one")
        else:
            _show_all(skills)
        return 0


class Show(CliCommand):
    """Show one skill: what it declares, its files, or the text of one of them."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_name(parser)
        parser.add_argument("--file", metavar="PATH", help="write this file of it to standard output, as it is")
        parser.add_argument("--version", default="", metavar="DIGEST", help="of this version, not the active one")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            if arguments.file:
                data = await hutch.skills.read_file(arguments.name, arguments.file, arguments.version)
                sys.stdout.buffer.write(data)
                return 0
            skill = await hutch.skills.get(arguments.name)
            files = await hutch.skills.files(arguments.name, arguments.version)
        if arguments.json:
            emit_json({**skill.to_plain(), "content": [file.to_plain() for file in files]})
        else:
            _show_one(skill, files)
        return 0


class Versions(CliCommand):
    """Show the versions of a skill that are kept, newest first."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_name(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            versions = await hutch.skills.versions(arguments.name)
        if arguments.json:
            emit_json({"versions": [version.to_plain() for version in versions]})
            return 0
        rows = [
            (
                version.digest[:12], "pinned" if version.pinned else "active" if version.active else "",
                format_seconds(time.time() - version.installed_at), printable(version.origin),
            )
            for version in versions
        ]  # fmt: skip
        table(("VERSION", "", "AGE", "FROM"), rows)
        return 0


class Export(CliCommand):
    """Write a skill as a zip file; the same version gives the same bytes."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_name(parser)
        parser.add_argument("target", metavar="FILE", nargs="?", help="default: NAME.zip here; - is standard output")
        parser.add_argument("--version", default="", metavar="DIGEST", help="this one, not the active one")

    def run(self, arguments: argparse.Namespace) -> int:
        target = arguments.target or f"{arguments.name}.zip"
        if target == "-" and arguments.json:
            raise Invalid("--json and standard output exclude each other", op="skill export", remedy="leave one out")
        data = asyncio.run(self._read(arguments))
        if target == "-":
            sys.stdout.buffer.write(data)
            return 0
        try:
            with open(target, "xb") as file:
                file.write(data)
        except FileExistsError as error:
            raise FileThere(f"{target} exists", remedy="name another file, or remove it") from error
        if arguments.json:
            emit_json({"file": str(Path(target).absolute()), "bytes": len(data)})
        else:
            note(f"wrote {target}, {byte_size(len(data))}")
        return 0

    async def _read(self, arguments: argparse.Namespace) -> bytes:
        async with open_hutch(arguments) as hutch:
            return await hutch.skills.export(arguments.name, arguments.version)


# --- changing -------------------------------------------------------------------------------------------------------


class ChangeCommand(CliCommand):
    """A command that changes one skill and shows which version it has afterwards."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_name(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            skill = await self.change(hutch.skills, arguments)
        if skill is None:
            note("nothing was changed")
        else:
            _show_changed(skill, as_json=arguments.json)
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
        _add_name(parser)
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
        _add_name(parser)
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
        _add_name(parser)
        parser.add_argument("--box", required=True, metavar="BOX", help="its name or id")
        parser.add_argument("--path", default="", help="the edited copy in the box")
        add_session(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await hutch.attach((await hutch.find(arguments.box)).id)
            skill = await hutch.skills.save(arguments.name, box, arguments.path)
        _show_changed(skill, as_json=arguments.json)
        return 0


class Upgrade(ChangeCommand):
    """Get the newest of a skill from where it came."""

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo:
        return await skills.upgrade(arguments.name)


class Rollback(ChangeCommand):
    """Make the version before, or the one named, the active one."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_name(parser)
        parser.add_argument("version", metavar="DIGEST", nargs="?", default="", help="the one before unless named")

    async def change(self, skills: Skills, arguments: argparse.Namespace) -> SkillInfo:
        return await skills.rollback(arguments.name, arguments.version)


class Pin(ChangeCommand):
    """Keep a skill at its version, or at the one named, whatever is installed later."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_name(parser)
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
        _add_name(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            await hutch.skills.remove(arguments.name)
        if arguments.json:
            emit_json({"removed": arguments.name})
        return 0


# --- how a skill is shown -------------------------------------------------------------------------------------------


def _show_changed(skill: SkillInfo, *, as_json: bool) -> None:
    if as_json:
        emit_json(skill.to_plain())
        return
    print(f"{skill.name} {skill.digest[:12]}{' (pinned)' if skill.pinned else ''}")
    if skill.warning:
        note(printable(skill.warning))


def _show_all(skills: tuple[SkillInfo, ...]) -> None:
    rows = [
        (
            skill.name, skill.digest[:12] + ("*" if skill.pinned else ""), str(skill.versions), byte_size(skill.size),
            format_seconds(time.time() - skill.installed_at), printable(skill.description)[:60],
        )
        for skill in skills
    ]  # fmt: skip
    table(("SKILL", "VERSION", "KEPT", "SIZE", "AGE", "DESCRIPTION"), rows)


def _show_one(skill: SkillInfo, files: tuple[SkillFile, ...]) -> None:
    facts = {
        "name": skill.name,
        "description": printable(skill.description),
        "version": skill.digest + (" (pinned)" if skill.pinned else ""),
        "from": printable(skill.origin),
        "license": printable(skill.license),
        "compatibility": printable(skill.compatibility),
        "tools": printable(", ".join(tool.name for tool in skill.tools)),
        "needs": printable(", ".join((*skill.dependencies.python, *skill.dependencies.node))),
        "declares": "; ".join(_permission_lines(skill.permissions)),
        "warning": printable(skill.warning),
    }
    for name, value in facts.items():
        if value:
            print(f"{name + ':':<15}{value}")
    print("files:")
    for file in files:
        print(f"  {'x' if file.executable else ' '} {byte_size(file.size):>10}  {printable(file.path)}")


def _show_preview(found: SkillPreview) -> None:
    print(f"{found.name}  {found.digest[:12]}  from {printable(found.origin)}")
    print(f"  {printable(found.description)}")
    print(f"  {len(found.files)} files, {byte_size(found.size)}")
    for file in found.files:
        mark = "x" if file.executable else " "
        print(f"    {mark} {byte_size(file.size):>10}  {printable(file.path)}")
    for tool in found.tools:
        print(f"  tool {tool.name}: {printable(' '.join(tool.command))}")
    for line in _permission_lines(found.permissions):
        print(f"  {line}")
    for kind, names in (("python", found.dependencies.python), ("node", found.dependencies.node)):
        if names:
            print(f"  needs ({kind}): {printable(', '.join(names))}")
    if found.replaces:
        print(f"  replaces {found.replaces[:12]}:" if found.changes else "  is the active version already")
        for change in found.changes:
            print(f"    {change.kind:<8} {printable(change.path)}")
    for warning in found.warnings:
        note(printable(warning))


def _permission_lines(declared: SkillPermissions) -> list[str]:
    lines = []
    if declared.network is not None:
        lines.append(f"network: {'yes' if declared.network else 'no'}")
    if declared.paths is not None:
        lines.append(f"paths: {printable(', '.join(declared.paths)) or 'none'}")
    if declared.tools is not None:
        lines.append(f"tools: {printable(', '.join(declared.tools)) or 'none'}")
    return lines
