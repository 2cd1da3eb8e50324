"""The base class of commands, and their parsers: shared options, and errors that are raised instead of exiting."""

import argparse
import os
from collections.abc import Iterable
from importlib import import_module
from typing import NoReturn

from hutch.cli.commands import COMMANDS, GROUPS
from hutch.errors import Invalid

SERVED = ("box", "app", "volume", "events", "skill", "status", "mcp", "dashboard")
"""Commands that take the address of a server."""

try:
    _WIDTH = max(40, min(os.get_terminal_size(1).columns - 2, 120))
except OSError:
    _WIDTH = 100


class CliCommand:
    """One command. The first line of its docstring is its description in `--help`."""

    epilog = ""
    json_help = "one JSON object on standard output, errors too"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options and arguments of this command; by default it has none."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do the command's work and return its exit code."""
        import asyncio  # some commands need no event loop

        return asyncio.run(self.run_async(arguments))

    async def run_async(self, arguments: argparse.Namespace) -> int:
        """The same for commands that talk to a keeper."""
        raise NotImplementedError


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises a HutchError for a wrong command line, so that `--json` covers it too."""

    def error(self, message: str) -> NoReturn:
        remedy = f"`{self.prog} --help` shows the options"
        missing = message.removeprefix("the following arguments are required: ")
        if missing != message:
            choices = [each.choices for each in self._actions if each.dest == missing and each.choices]
            message = f"{self.prog} needs one of {', '.join(choices[0])}" if choices else f"{self.prog} needs {missing}"
        raise Invalid(message, op=self.prog, remedy=remedy)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A formatter with a fixed width: argparse makes one per option, and would load shutil to find the width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH)


def parser_of(name: str, action: str = "") -> tuple[CliCommand, Parser]:
    """Import one command and make its parser. `action` is the command of a group, such as `create` of `box`."""
    if name not in COMMANDS:
        raise Invalid(f"hutch has no command {name!r}", op="hutch", remedy=_nearest(name, COMMANDS, "hutch"))
    place, help_line = COMMANDS[name]
    if action:
        op, actions = f"hutch {name}", GROUPS[name]
        if action not in actions:
            raise Invalid(f"{op} has no command {action!r}", op=op, remedy=_nearest(action, actions, op))
        place, help_line = actions[action]
        name = f"{name} {action}"
    module, _, class_name = place.partition(":")
    command: CliCommand = getattr(import_module(module), class_name)()
    parser = Parser(
        prog=f"hutch {name}",
        description=(command.__doc__ or help_line).partition("\n")[0],
        epilog=command.epilog or None,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    command.add_options(parser)
    shared = parser.add_argument_group("shared options")
    shared.add_argument("--config", metavar="FILE", help="read this hutch.toml instead of the usual ones")
    if name.split(" ")[0] in SERVED:
        shared.add_argument("--server", metavar="URL", help="work at this server: http(s)://HOST:PORT or unix:/PATH")
    shared.add_argument("--json", action="store_true", help=command.json_help)
    shared.add_argument("--verbose", action="store_true", help="log to standard error what is done")
    return command, parser


def _nearest(name: str, known: Iterable[str], before: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f"did you mean `{before} {near[0]}`?" if near else f"commands: {', '.join(known)}"
