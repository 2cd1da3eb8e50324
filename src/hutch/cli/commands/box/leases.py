"""Commands about the lease of a box, which says which session holds it."""

import argparse
import time

from hutch.cli.commands.box.life import BoxCommand
from hutch.cli.commands.box.show import lease_facts, lease_text
from hutch.cli.connect import attach_box, open_hutch
from hutch.cli.options import add_box
from hutch.cli.output import emit_json
from hutch.cli.parsers import CliCommand
from hutch.errors import Conflict
from hutch.model.boxes import BoxInfo


class Lease(CliCommand):
    """Show which session holds a box and until when. `--renew` extends a lease that is ours."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--renew", action="store_true", help="extend it to its full time from now")
        add_box(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            record = await hutch.find(arguments.box)
            if arguments.renew:
                _check_ours(record, hutch.session)
                await (await attach_box(hutch, arguments)).renew()
                record = await hutch.find(record.id)
        _show(record, hutch.session, as_json=arguments.json)
        return 0


class Takeover(BoxCommand):
    """Hold a box from now on, also one that another session holds; what that session still tries in it is refused."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await hutch.attach((await hutch.find(arguments.box)).id, takeover=True)
            record = await hutch.find(box.id)
        _show(record, hutch.session, as_json=arguments.json)
        return 0


class Release(BoxCommand):
    """Give up the lease of a box, so that another session may have it at once. The box keeps running."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            await box.release()
        if arguments.json:
            emit_json({"id": box.id, "lease": None})
        return 0


def _show(record: BoxInfo, session: str, *, as_json: bool) -> None:
    lease = lease_facts(record, time.time())
    if as_json:
        emit_json({"id": record.id, "session": session, "lease": lease})
    else:
        print(lease_text(lease))


def _check_ours(record: BoxInfo, session: str) -> None:
    """Refuse to renew a lease that has expired: another session may have used the box since (P6)."""
    lease = record.lease
    if lease is None or lease.holder != session or not lease.live(time.time()):
        raise Conflict(
            f"session {session} does not hold box {record.id}: there is nothing to renew",
            op="lease",
            remedy=f"hutch box takeover {record.spec.name or record.id}",
        )
