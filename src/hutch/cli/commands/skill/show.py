"""Listing skills, their files and versions, and exporting them."""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from hutch.cli.connect import open_hutch
from hutch.cli.output import byte_size, emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.errors import FileThere, Invalid
from hutch.model.skills import SkillFile, SkillInfo, SkillPermissions
from hutch.model.units import format_seconds


def add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


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
        add_name(parser)
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
        add_name(parser)

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
        add_name(parser)
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


def show_changed(skill: SkillInfo, *, as_json: bool) -> None:
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
        "declares": "; ".join(permission_lines(skill.permissions)),
        "warning": printable(skill.warning),
    }
    for name, value in facts.items():
        if value:
            print(f"{name + ':':<15}{value}")
    print("files:")
    for file in files:
        print(f"  {'x' if file.executable else ' '} {byte_size(file.size):>10}  {printable(file.path)}")


def permission_lines(declared: SkillPermissions) -> list[str]:
    lines = []
    if declared.network is not None:
        lines.append(f"network: {'yes' if declared.network else 'no'}")
    if declared.paths is not None:
        lines.append(f"paths: {printable(', '.join(declared.paths)) or 'none'}")
    if declared.tools is not None:
        lines.append(f"tools: {printable(', '.join(declared.tools)) or 'none'}")
    return lines
