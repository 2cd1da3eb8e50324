"""Run a command in a new box: its output, its exit code and our signals as if it ran here, and the box is gone after.

A string for a shell is `hutch run -- sh -c '…'`. Options end at the command or at `--`.
"""

import argparse
import asyncio
import gc
import os
from binascii import b2a_base64
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hutch.cli.attach import Attachment, Signals
from hutch.cli.embedded import hutch_of
from hutch.cli.options import add_box_options, duration, spec_of
from hutch.cli.output import emit_json, note
from hutch.config import Config
from hutch.errors import Invalid
from hutch.model.results import Cause, Result
from hutch.policy.effective import clamp_timeout
from hutch.providers.base import Command

if TYPE_CHECKING:
    from hutch.api import Box

TIMED_OUT = 124
BROKEN_PIPE = 141

EPILOG = """\
exit codes: the command's own; 128+N if signal N ended it; 124 timeout; 125 Hutch failed;
126 the program cannot be executed; 127 there is no such program.
Ctrl-C goes to the command; a second one kills it.
"""


def add(parser: argparse.ArgumentParser) -> None:
    add_box_options(parser)
    how = parser.add_argument_group("the command")
    how.add_argument(
        "--timeout", type=duration, metavar="TIME", help="until it is killed: 90, 5m (default: the profile's)"
    )
    how.add_argument("-i", "--stdin", action="store_true", help="feed input from a terminal too; other input always is")
    how.add_argument("-t", "--tty", action="store_true", help="give it a terminal")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="program and arguments")


def run(arguments: argparse.Namespace) -> int:
    argv = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not argv and not (arguments.image or "").startswith("oci:"):
        raise Invalid("there is no command to run", op="run", remedy="for example: hutch run -- echo hello")
    if arguments.json and arguments.tty:
        raise Invalid("--json and -t exclude each other", op="run", remedy="leave one out")
    return asyncio.run(in_new_box(arguments, tuple(argv), terminal=arguments.tty, timeout=arguments.timeout))


async def in_new_box(
    arguments: argparse.Namespace, argv: tuple[str, ...], *, terminal: bool, timeout: float | None
) -> int:
    """Make a box, stay with the command to its end, destroy the box, tell what happened. `timeout` 0: none."""

    async def work(attachment: Attachment) -> Ran:
        async with hutch_of(arguments) as hutch, hutch.box(**spec_of(arguments)) as box:
            seconds, clamped = clamp_timeout(timeout, box.spec.limits) if timeout != 0 else (0.0, None)
            order = Command(
                command=argv or await _command_of_image(hutch.config, box.spec.image), timeout_sec=seconds or None
            )
            notes = [str(adjustment) for adjustment in (*box.adjustments, clamped) if adjustment]
            gc.freeze()
            gc.enable()
            return await stay(arguments, attachment, box, order, notes, terminal=terminal)

    return await attended(arguments, work, terminal=terminal)


class Ran(NamedTuple):
    """A command that has ended."""

    box: "Box"
    result: Result
    notes: list[str]
    """What was to be said before it began."""


async def attended(
    arguments: argparse.Namespace, work: Callable[[Attachment], Awaitable[Ran]], *, terminal: bool
) -> int:
    """Do `work`, whose command has our input and our signals; then tell what ended it. The exit code for it."""
    with Signals() as signals:
        fed = terminal or arguments.stdin or not os.isatty(0)
        attachment = Attachment(signals, stdin=0 if fed else None)
        try:
            ran = await work(attachment)
        except asyncio.CancelledError:
            if signals.ended_by is None:
                raise
            return 128 + signals.ended_by
    if arguments.json:
        emit_json(as_plain(ran))
        return code_of(ran.result)
    return ending(ran.result, attachment)


async def stay(
    arguments: argparse.Namespace, attachment: Attachment, box: "Box", order: Command, notes: list[str], *,
    terminal: bool,
) -> Ran:  # fmt: skip
    """Run the command to its end. Its output is shown as it comes, unless all of it is wanted as JSON."""
    if not arguments.json:
        tell(notes)
    order = order.but(follow=not arguments.json)
    return Ran(box, await (attachment.run_on_terminal if terminal else attachment.run)(box, order), notes)


async def _command_of_image(config: Config, reference: str) -> tuple[str, ...]:
    from hutch.cli.image.ensure import command_of

    return await asyncio.to_thread(command_of, config, reference)


def tell(notes: list[str]) -> None:
    for line in notes:
        note(line)


def ending(result: Result, attachment: Attachment) -> int:
    """Say in one line what ended the command, if that was not the command itself; and the exit code for it."""
    if attachment.reader_left:
        return BROKEN_PIPE
    tell(list(result.notes))
    verdict = result.verdict
    ours = verdict.cause is Cause.SIGNAL and bool(attachment.signals.forwarded)
    if verdict.cause not in (Cause.OK, Cause.EXIT) and not ours:
        note(f"{verdict.cause}: {verdict.message}" + (f" ({verdict.remedy})" if verdict.remedy else ""))
    return code_of(result)


def code_of(result: Result) -> int:
    if result.verdict.cause is Cause.TIMEOUT:
        return TIMED_OUT
    if result.exit_code is not None:
        return result.exit_code
    return 128 + (result.signal or 0)


def as_plain(ran: Ran) -> dict[str, Any]:
    """The result as JSON: text where it is text, base64 beside it where it is not."""
    box, result, notes = ran
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
