"""Run a command in a box: its output, its exit code and our signals as if it ran here. The box stays.

Options end at the box; what follows it is the command. A string for a shell is `hutch box exec BOX -- sh -c '…'`.
"""

import argparse
import asyncio

from hutch.api import Box
from hutch.cli.attach import Attachment
from hutch.cli.keeper_choice import add_box, attach, visit
from hutch.cli.options import duration, variable
from hutch.cli.output import emit_json
from hutch.cli.run import Ran, attended, stay
from hutch.errors import Invalid
from hutch.policy.effective import clamp_timeout
from hutch.providers.base import Command

EPILOG = """\
examples:
  hutch box exec dev -- ls -l
  hutch box exec -t dev bash                       a shell on this terminal, without a timeout
  hutch box exec --detach dev -- sh -c 'make all'  prints the job's id; hutch box logs --follow dev
exit codes are those of `hutch run`.
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=duration, metavar="TIME", help="until it is killed: 90, 5m, 1h30m")
    parser.add_argument("--env", "-e", action="append", default=[], metavar="K=V", help="set a variable; K: as here")
    parser.add_argument("--cwd", "-w", metavar="DIR", help="where it starts (default: the box's workdir)")
    parser.add_argument("--user", "-u", help="user (default), root (of the box) or a number")
    parser.add_argument(
        "-i", "--stdin", action="store_true", help="feed input from a terminal too; other input always is"
    )
    parser.add_argument("-t", "--tty", action="store_true", help="give it a terminal")
    parser.add_argument("-d", "--detach", action="store_true", help="start it as a job, print the job's id, and go")
    parser.add_argument("--name", default="", help="a name for the job")
    add_box(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] COMMAND ...", help="program and arguments")


def run(arguments: argparse.Namespace) -> int:
    argv = tuple(arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command)
    if not argv:
        raise Invalid("there is no command to run", op="exec", remedy="for example: hutch box exec BOX -- echo hello")
    if arguments.json and arguments.tty and not arguments.detach:
        raise Invalid("--json and -t exclude each other", op="exec", remedy="leave one out")
    order = Command(
        command=argv, cwd=arguments.cwd, env=dict(variable(text) for text in arguments.env), user=arguments.user,
        name=arguments.name, pty=arguments.tty,
    )  # fmt: skip
    return asyncio.run(_start(arguments, order) if arguments.detach else _stay(arguments, order))


async def _start(arguments: argparse.Namespace, order: Command) -> int:
    """A job has no timeout but the one it is given."""
    async with visit(arguments) as hutch:
        box = await attach(hutch, arguments)
        job = await box.start(
            order.command, cwd=order.cwd, env=order.env, timeout=arguments.timeout or None, user=order.user,
            pty=order.pty, name=order.name,
        )  # fmt: skip
        info = await job.info()
    if arguments.json:
        emit_json({"box": box.id, "job": info.to_plain()})
    else:
        print(job.id)
    return 0


async def _stay(arguments: argparse.Namespace, order: Command) -> int:
    async def work(attachment: Attachment) -> Ran:
        async with visit(arguments) as hutch:
            box = await attach(hutch, arguments)
            timed, notes = _timed(order, arguments, box)
            ran = await stay(arguments, attachment, box, timed, notes, terminal=arguments.tty)
            await box.forget(ran.result.job_id)  # its output has been read: it is not to be found among the jobs
            return ran

    return await attended(arguments, work, terminal=arguments.tty)


def _timed(order: Command, arguments: argparse.Namespace, box: Box) -> tuple[Command, list[str]]:
    """Somebody who sits at the terminal ends it himself; everything else has the profile's timeout."""
    if arguments.timeout == 0 or (arguments.tty and arguments.timeout is None):
        return order, []
    seconds, clamped = clamp_timeout(arguments.timeout, box.spec.limits)
    return order.but(timeout_sec=seconds or None), [str(clamped)] if clamped else []
