"""Commands that create, pause, stop, rename and destroy boxes."""

import argparse
from typing import TYPE_CHECKING, Any

from hutch.api import Hutch
from hutch.cli.commands.box.show import box_facts
from hutch.cli.connect import attach_box, keeps_boxes, open_hutch
from hutch.cli.options import add_box, add_box_options, add_session, duration, spec_of
from hutch.cli.output import emit_json, fail, note
from hutch.cli.parsers import CliCommand
from hutch.errors import BoxBusy, Conflict, HutchError, Invalid, Unsupported
from hutch.model import capabilities
from hutch.model.boxes import State
from hutch.model.spec import Retention

if TYPE_CHECKING:
    from hutch.api import Box

FAILED = 125


class Create(CliCommand):
    """Make a box that stays, and print its id. It lives 15 minutes without use, unless --keep says otherwise.

    Nothing keeps the box between commands but its own timer, so a job that runs in it does not keep it alive either.
    """

    epilog = """\
examples:
  hutch box create --name dev --profile code
  hutch box exec dev -- python3 -c 'print(6 * 7)'
  hutch box create --persistent --keep 2h          after two hours without use its processes end, its files stay
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--name", help="a name for it, which no other box has")
        life = parser.add_argument_group("its life")
        life.add_argument("--keep", type=duration, metavar="TIME", help="how long it lives without use: 90s, 2h (15m)")
        life.add_argument("--persistent", action="store_true", help="its files stay when it ends for lack of use")
        life.add_argument("--ttl", type=duration, metavar="TIME", help="when it ends however much it is used")
        life.add_argument(
            "--auto-checkpoint", choices=("off", "exec"), help="exec: each command can be undone (`hutch box undo`)"
        )
        parser.add_argument(
            "--label", action="append", default=[], metavar="K=V", help="a label, shown by list and show"
        )
        add_box_options(parser)
        add_session(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments, grace=arguments.keep) as hutch:
            spec = _spec(arguments)
            if arguments.keep is not None and not keeps_boxes(hutch):
                spec["idle_timeout_sec"] = arguments.keep  # a server's timer does what the box's own does without one
            box = await hutch.create(**spec)
            if arguments.json:
                emit_json(box_facts(await hutch.find(box.id)))
            else:
                for adjustment in box.adjustments:
                    note(str(adjustment))
                print(box.id)
        return 0


def _spec(arguments: argparse.Namespace) -> dict[str, Any]:
    spec = spec_of(arguments)
    if arguments.name is not None:
        spec["name"] = arguments.name
    if arguments.persistent:
        spec["retention"] = "persistent"
    if arguments.ttl is not None:
        spec["ttl_sec"] = arguments.ttl
    if arguments.auto_checkpoint is not None:
        spec["auto_checkpoint"] = arguments.auto_checkpoint
    if arguments.label:
        spec["labels"] = dict(_label(text) for text in arguments.label)
    return spec


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Invalid(f"--label {text!r} is not NAME=VALUE", remedy="for example --label task=42")
    return name, value


class BoxCommand(CliCommand):
    """A command about one box, which it leases to our session."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box(parser)


class Pause(BoxCommand):
    """Freeze a box: no process of it runs until its next use. While it is paused its clocks stand still too."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            signals = capabilities.Pause.SIGNALS
            if keeps_boxes(hutch) and await _pause_method(hutch, box.spec.provider) is signals:
                stops = "stop it, which keeps its files, or " if box.spec.retention is Retention.PERSISTENT else ""
                raise Unsupported(
                    "without a control group a box is paused by the process that keeps it, and this one ends now",
                    op="pause",
                    remedy=f"{stops}pause it through a server (`hutch serve`), which keeps it, or give Hutch control "
                    "groups (`hutch doctor`)",
                )
            await box.pause()
            await _show_state(box, as_json=arguments.json)
        return 0


class Resume(BoxCommand):
    """Let a paused box run again, or bring back a stopped one with its files. Any use of a box does the same."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            await box.resume()
            await _show_state(box, as_json=arguments.json)
        return 0


class Stop(BoxCommand):
    """End the processes of a persistent box and keep its files; its next use brings it back."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            record = await hutch.find(arguments.box)
            if record.spec.retention is not Retention.PERSISTENT:
                method = await _pause_method(hutch, record.spec.provider)
                signals = method is capabilities.Pause.SIGNALS and not keeps_boxes(hutch)
                pause = "pause it, " if method is capabilities.Pause.FREEZE or signals else ""
                raise Conflict(
                    f"box {record.id} is temporary: stopping it would lose its files",
                    op="stop",
                    remedy=f"{pause}destroy it, or create boxes with --persistent",
                )
            if record.state is not State.STOPPED:
                box = await attach_box(hutch, arguments)
                await box.stop()
            if arguments.json:
                emit_json({"id": record.id, "state": str(State.STOPPED)})
        return 0


async def _pause_method(hutch: Hutch, provider: str) -> capabilities.Pause:
    """Find out how this provider pauses boxes; only a frozen box stays paused when its keeper ends."""
    return next((found.pause for found in await hutch.providers(provider)), capabilities.Pause.NONE)


async def _show_state(box: "Box", *, as_json: bool) -> None:
    if as_json:
        emit_json({"id": box.id, "state": str(await box.state())})


class Rename(CliCommand):
    """Give a box another name; no other box may have it. An empty name takes the name away."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box(parser)
        parser.add_argument("name", metavar="NAME", help="letters, digits and _ . - only")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            await box.rename(arguments.name)
        if arguments.json:
            emit_json({"id": box.id, "name": arguments.name})
        return 0


class Destroy(CliCommand):
    """End boxes: their processes, their files, their records. Volumes stay."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--all", action="store_true", help="all there are, but for those that live processes use")
        parser.add_argument("--force", action="store_true", help="also boxes that another session holds")
        add_box(parser, many=True)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        if arguments.all == bool(arguments.boxes):
            raise Invalid("name the boxes, or say --all", op="destroy", remedy="`hutch box list` shows those there are")
        destroyed: list[str] = []
        failures: list[HutchError] = []
        async with open_hutch(arguments) as hutch:
            for text in arguments.boxes or [box.id for box in await hutch.boxes() if not box.elsewhere]:
                try:
                    destroyed.append(await _destroy(hutch, text, force=arguments.force))
                except HutchError as error:  # the other boxes are to be destroyed all the same
                    failures.append(error)
        if arguments.json:
            emit_json({"destroyed": destroyed, "errors": [failure.to_wire() for failure in failures]})
        else:
            for box_id in destroyed:
                print(box_id)
            for failure in failures:
                fail(failure, as_json=False)
        return FAILED if failures else 0


async def _destroy(hutch: Hutch, text: str, *, force: bool) -> str:
    record = await hutch.find(text)
    try:
        await hutch.destroy(record.id, force=force)
    except BoxBusy as busy:
        raise BoxBusy(busy.message, details=busy.details, remedy="wait for its lease to end, or --force") from busy
    return record.id
