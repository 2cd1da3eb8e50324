"""Installing skills, and what an installation would change."""

import argparse
import os
from typing import TypedDict

from hutch.cli.commands.skill.show import permission_lines, show_changed
from hutch.cli.connect import open_hutch
from hutch.cli.live_output import progress
from hutch.cli.output import byte_size, emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.keeper.skills.skills import scan
from hutch.model.skills import SkillPreview

SOURCE_EXAMPLES = """\
examples:
  hutch skill preview ./pdf-tools                       what it would bring, and what it changes
  hutch skill install pdf-tools.zip
  hutch skill install https://example.org/skills.git --ref v2 --path pdf-tools
  hutch skill install ~/src/skills --git --path pdf-tools   a commit of a local repository, not its working files
"""


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
        show_changed(skill, as_json=arguments.json)
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


def _show_preview(found: SkillPreview) -> None:
    print(f"{found.name}  {found.digest[:12]}  from {printable(found.origin)}")
    print(f"  {printable(found.description)}")
    print(f"  {len(found.files)} files, {byte_size(found.size)}")
    for file in found.files:
        mark = "x" if file.executable else " "
        print(f"    {mark} {byte_size(file.size):>10}  {printable(file.path)}")
    for tool in found.tools:
        print(f"  tool {tool.name}: {printable(' '.join(tool.command))}")
    for line in permission_lines(found.permissions):
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
