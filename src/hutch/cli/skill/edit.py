"""Open a file of a skill in your editor; what you save becomes a new version."""

import argparse
import asyncio
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from hutch.cli.keeper_choice import visit
from hutch.cli.output import note
from hutch.cli.skill.text import tell
from hutch.errors import Invalid
from hutch.skills.manifest import MANIFEST


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("file", metavar="PATH", nargs="?", default=MANIFEST, help=f"default: {MANIFEST}")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_edit(arguments))


async def _edit(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        before = await hutch.skills.get(arguments.name)
        old = await hutch.skills.read_file(arguments.name, arguments.file)
        new = await asyncio.to_thread(_edited, old, arguments.file)
        if new == old:
            note("nothing was changed")
            return 0
        skill = await hutch.skills.write_file(arguments.name, arguments.file, new, expect=before.digest)
    tell(skill, as_json=arguments.json)
    return 0


def _edited(old: bytes, name: str) -> bytes:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="hutch-skill-") as place:
        path = Path(place, Path(name).name)
        path.write_bytes(old)
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except OSError as error:
            raise Invalid(f"the editor {editor!r} cannot be started: {error.strerror}", remedy="set EDITOR") from error
        if done.returncode:
            raise Invalid(f"the editor ended with {done.returncode}: nothing was changed")
        return path.read_bytes()
