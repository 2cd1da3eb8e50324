"""Parsers of the commands: the options all of them share, and errors that are raised instead of exiting."""

import argparse
import os
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from hutch.cli.commands import COMMANDS, GROUPS
from hutch.errors import Invalid

SERVED = ("box", "volume", "events", "skill", "status", "mcp")
"""Commands that work at a server as they do without one."""

_JSON = "one JSON object on standard output, errors too"
"""A module whose `JSON` says otherwise means something else by it."""

try:
    _WIDTH = max(40, min(os.get_terminal_size(1).columns - 2, 120))
except OSError:
    _WIDTH = 100


class Parser(argparse.ArgumentParser):
    """An argparse parser whose complaint is a HutchError, so that it can be JSON like every other."""

    def error(self, message: str) -> NoReturn:
        remedy = f"`{self.prog} --help` shows the options"
        missing = message.removeprefix("the following arguments are required: ")
        if missing != message:
            choices = [each.choices for each in self._actions if each.dest == missing and each.choices]
            message = f"{self.prog} needs one of {', '.join(choices[0])}" if choices else f"{self.prog} needs {missing}"
        raise Invalid(message, op=self.prog, remedy=remedy)


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for each option it adds; told the width, it does not load shutil to ask for it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH)


def parser_of(name: str, action: str = "") -> tuple[ModuleType, Parser]:
    """The command's module and its parser; only this module is imported. `action` is the command of a group."""
    if name not in COMMANDS:
        raise Invalid(f"hutch has no command {name!r}", op="hutch", remedy=_nearest(name, COMMANDS, "hutch"))
    place, help_line = COMMANDS[name]
    if action:
        op, actions = f"hutch {name}", GROUPS[name]
        if action not in actions:
            raise Invalid(f"{op} has no command {action!r}", op=op, remedy=_nearest(action, actions, op))
        place, help_line = actions[action]
        name = f"{name} {action}"
    module = import_module(place)
    parser = Parser(
        prog=f"hutch {name}",
        description=(module.__doc__ or help_line).partition("\n")[0],
        epilog=getattr(module, "EPILOG", None),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    module.add(parser)
    shared = parser.add_argument_group("shared options")
    shared.add_argument("--config", metavar="FILE", help="read this hutch.toml instead of the usual ones")
    if name.split(" ")[0] in SERVED:
        shared.add_argument("--server", metavar="URL", help="work at this server: http(s)://HOST:PORT or unix:/PATH")
    shared.add_argument("--json", action="store_true", help=getattr(module, "JSON", _JSON))
    shared.add_argument("--verbose", action="store_true", help="log to standard error what is done")
    return module, parser


def _nearest(name: str, known: Iterable[str], before: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f"did you mean `{before} {near[0]}`?" if near else f"commands: {', '.join(known)}"
