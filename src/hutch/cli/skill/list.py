"""Show the skills there are."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json
from hutch.cli.skill.text import tell_all


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_list(arguments))


async def _list(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        skills = await hutch.skills.all()
    if arguments.json:
        emit_json({"skills": [skill.to_plain() for skill in skills]})
    elif not skills:
        print("there is no skill; `hutch skill install SRC` brings one")
    else:
        tell_all(skills)
    return 0
