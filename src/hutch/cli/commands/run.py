"""`hutch run` and `hutch shell`: one command in a new box, which is destroyed afterwards."""

import argparse
import asyncio
import gc
import os
from binascii import b2a_base64
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from hutch.cli.attach import Attachment, Signals
from hutch.cli.connect import temporary_hutch
from hutch.cli.options import add_box_options, duration, spec_of
from hutch.cli.output import emit_json, note
from hutch.cli.parsers import CliCommand
from hutch.config import Config
from hutch.errors import Invalid
from hutch.model.results import Cause, Result
from hutch.policy.effective import clamp_timeout
from hutch.providers.base import Command

if TYPE_CHECKING:
    from hutch.api import Box
    from hutch.model.spec import Adjustment

TIMED_OUT = 124
NOT_STARTED = 126  # No process was left for the command; a shell reports the same.
BROKEN_PIPE = 141

SHELL = ("sh", "-c", "exec $(command -v bash || echo sh) -i")


class Run(CliCommand):
    """Run a command in a new box: its output, its exit code and our signals as if it ran here; the box is gone after.

    A string for a shell is `hutch run -- sh -c '…'`. Options end at the command or at `--`.
    """

    epilog = """\
exit codes: the command's own; 128+N if signal N ended it; 124 timeout; 125 Hutch failed;
126 the program cannot be executed; 127 there is no such program.
Ctrl-C goes to the command; a second one kills it.
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box_options(parser)
        how = parser.add_argument_group("the command")
        how.add_argument(
            "--timeout", type=duration, metavar="TIME", help="until it is killed: 90, 5m (default: the profile's)"
        )
        how.add_argument(
            "-i", "--stdin", action="store_true", help="feed input from a terminal too; other input always is"
        )
        how.add_argument("-t", "--tty", action="store_true", help="give it a terminal")
        parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="program and arguments")

    def run(self, arguments: argparse.Namespace) -> int:
        argv = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
        if not argv and not (arguments.image or "").startswith("oci:"):
            raise Invalid("there is no command to run", op="run", remedy="for example: hutch run -- echo hello")
        if arguments.json and arguments.tty:
            raise Invalid("--json and -t exclude each other", op="run", remedy="leave one out")
        return _run(run_in_new_box(arguments, tuple(argv), terminal=arguments.tty, timeout=arguments.timeout))


class Shell(CliCommand):
    """Open a shell in a new box, on this terminal; the box is gone when the shell ends."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.json or not (os.isatty(0) and os.isatty(1)):
            raise Invalid(
                "hutch shell needs a terminal for its input and output",
                op="shell",
                remedy="to run a script use: hutch run -- sh < script",
            )
        return _run(run_in_new_box(arguments, SHELL, terminal=True, timeout=0))


def _run(work: Coroutine[None, None, int]) -> int:
    """Run `work` as `asyncio.run` does, but without its handler of Ctrl-C, which `Signals` would replace at once.

    `signal` makes a text of each handler that it tells of; that one holds a task, and the text of a task takes 3 ms.
    """
    with asyncio.Runner() as runner:
        return runner.get_loop().run_until_complete(work)


async def run_in_new_box(
    arguments: argparse.Namespace, argv: tuple[str, ...], *, terminal: bool, timeout: float | None
) -> int:
    """Run a command in a new box to its end and destroy the box. A `timeout` of 0 means none."""

    async def work(attachment: Attachment) -> EndedCommand:
        async with temporary_hutch(arguments) as hutch, hutch.box(**spec_of(arguments)) as box:
            seconds, clamped = clamp_timeout(timeout, box.spec.limits) if timeout != 0 else (0.0, None)
            order = Command(
                command=argv or await _image_command(hutch.config, box.spec.image), timeout_sec=seconds or None
            )
            notes = [*map(str, box.adjustments), *clamp_notes(clamped)]
            gc.freeze()
            gc.enable()
            return await run_to_end(arguments, attachment, box, order, notes, terminal=terminal)

    return await run_attached(arguments, work, terminal=terminal)


class EndedCommand(NamedTuple):
    """A command that has ended."""

    box: "Box"
    result: Result
    notes: list[str]
    """What Hutch had to say before the command began."""


async def run_attached(
    arguments: argparse.Namespace, work: Callable[[Attachment], Awaitable[EndedCommand]], *, terminal: bool
) -> int:
    """Do `work`, whose command gets our input and our signals; report what ended it, and return the exit code."""
    with Signals() as signals:
        feeds_input = terminal or arguments.stdin or not os.isatty(0)
        attachment = Attachment(signals, stdin=0 if feeds_input else None)
        try:
            ended = await work(attachment)
        except asyncio.CancelledError:
            if signals.ended_by is None:
                raise
            return 128 + signals.ended_by
    if arguments.json:
        emit_json(as_plain(ended))
        return exit_code(ended.result)
    return report_end(ended.result, attachment)


async def run_to_end(
    arguments: argparse.Namespace, attachment: Attachment, box: "Box", order: Command, notes: list[str], *,
    terminal: bool,
) -> EndedCommand:  # fmt: skip
    """Run the command to its end. Its output is shown as it comes, unless it is to be part of the JSON."""
    if not arguments.json:
        show_notes(notes)
    order = order.but(follow=not arguments.json)
    return EndedCommand(box, await (attachment.run_on_terminal if terminal else attachment.run)(box, order), notes)


async def _image_command(config: Config, reference: str) -> tuple[str, ...]:
    from hutch.cli.commands.image.pull import image_command

    return await asyncio.to_thread(image_command, config, reference)


def clamp_notes(clamped: "Adjustment | None") -> list[str]:
    """Say that a timeout was cut, and how to get rid of it: a person who watches the command can end it."""
    return [f"{clamped} (--timeout 0 sets none)"] if clamped else []


def show_notes(notes: list[str]) -> None:
    for line in notes:
        note(line)


def report_end(result: Result, attachment: Attachment) -> int:
    """Say in one line what ended the command, or what helps against the refusal it met; return the exit code."""
    if attachment.reader_left:
        return BROKEN_PIPE
    show_notes(list(result.notes))
    verdict = result.verdict
    ours = verdict.cause is Cause.SIGNAL and bool(attachment.signals.forwarded)
    if verdict.cause not in (Cause.OK, Cause.EXIT) and not ours:
        note(f"{verdict.cause}: {verdict.message}" + (f" ({verdict.remedy})" if verdict.remedy else ""))
    elif verdict.cause is Cause.EXIT and verdict.remedy:
        note(verdict.remedy)
    return exit_code(result)


def exit_code(result: Result) -> int:
    if result.verdict.cause is Cause.TIMEOUT:
        return TIMED_OUT
    return NOT_STARTED if result.exit_code is None else result.exit_code


def as_plain(ended: EndedCommand) -> dict[str, Any]:
    """Prepare the result for JSON: output as text, and also as base64 where it is not text."""
    box, result, notes = ended
    plain = result.to_plain()
    for stream in ("stdout", "stderr"):
        data: bytes = getattr(result, f"{stream}_bytes")
        plain[stream] = getattr(result, stream)
        del plain[f"{stream}_bytes"]
        if data and plain[stream].encode() != data:
            plain[f"{stream}_base64"] = b2a_base64(data, newline=False).decode()
    plain["notes"] = [*notes, *result.notes]
    plain["box"] = {"id": box.id, "profile": box.spec.profile, "provider": box.spec.provider}
    return plain
